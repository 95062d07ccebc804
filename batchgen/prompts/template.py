"""The job's Jinja template: which columns it reads, and the text it makes of one row.

Sandboxed, and a function of the row alone: no files, no clock, no randomness. A null that would be printed is an error
of that row, never the word None.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.sandbox import SandboxedEnvironment

from batchgen.errors import InputError

_KEY = "input.prompt"


class NullValueError(jinja2.TemplateRuntimeError):
    """A null was used where a value is needed; the message names the column or field."""


class Null(jinja2.Undefined):
    """A null of the input inside a template: false, equal to none, replaceable by `default`, and never text."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(hint=f"{name} is null", name=name, exc=NullValueError)

    def __str__(self) -> str:
        return self._fail_with_undefined_error()

    def __repr__(self) -> str:
        return self._fail_with_undefined_error()

    def __iter__(self) -> Iterator[Any]:
        return self._fail_with_undefined_error()

    def __len__(self) -> int:
        return self._fail_with_undefined_error()

    def __contains__(self, item: object) -> bool:
        return self._fail_with_undefined_error()

    def __eq__(self, other: object) -> bool:
        return _is_none(other)

    def __ne__(self, other: object) -> bool:
        return not _is_none(other)

    def __hash__(self) -> int:
        return hash(None)


class Template:
    """A compiled template. Raises InputError if it cannot be compiled."""

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"{_KEY}: cannot be used as a template: {error.message}") from error
        if any(True for _ in meta.find_referenced_templates(tree)):
            raise InputError(f"{_KEY}: a template may not include, import or extend another; write it out")
        self._known = frozenset(environment.globals)
        # A column may be called `range`: asked of an environment without globals, meta names those too.
        bare = _environment()
        bare.globals.clear()
        self._names = frozenset(meta.find_undeclared_variables(bare.parse(source)))

    def columns(self, available: Sequence[str], source: object) -> tuple[str, ...]:
        """The columns it reads, in their order. Raises InputError if it names something that is no column."""
        for name in sorted(self._names - self._known - set(available)):
            near = difflib.get_close_matches(name, available, n=1)
            hint = f"did you mean {near[0]}" if near else f"its columns are {', '.join(available) or 'none'}"
            raise InputError(f"{source}: no column {name}, which {_KEY} names; {hint}")
        return tuple(name for name in available if name in self._names)

    def render(self, values: Mapping[str, Any]) -> str:
        """The text of one row; raises NullValueError for a null, TemplateError or another error for the rest."""
        return self._template.render({name: _guarded(value, name) for name, value in values.items()})


def _guarded(value: Any, name: str) -> Any:
    """The value with every null in it made a `Null` that knows its name."""
    if value is None:
        return Null(name)
    if isinstance(value, dict):
        return {key: _guarded(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_guarded(item, f"{name}[{number}]") for number, item in enumerate(value)]
    return value


def _is_none(value: object) -> bool:
    return value is None or isinstance(value, Null)


def _is_defined(value: object) -> bool:
    return isinstance(value, Null) or not isinstance(value, jinja2.Undefined)


def _printed(value: Any) -> Any:
    if value is None:
        raise NullValueError("an expression of the template is none")
    return value


def _json_value(value: Any) -> Any:
    """What `tojson` makes of a value that JSON has no type for: null, or its text."""
    return None if isinstance(value, Null) else str(value)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own `tojson` escapes for HTML; a prompt wants the characters as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_json_value)


def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False, finalize=_printed)
    del environment.globals["lipsum"], environment.filters["random"]
    environment.filters["tojson"] = _to_json
    environment.tests |= {"none": _is_none, "defined": _is_defined, "undefined": lambda value: not _is_defined(value)}
    return environment
