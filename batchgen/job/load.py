"""A job file to a `Job`, or to one message that has a line for every problem in it.

Each line reads `jobs/x.yaml:14: sampling.max_tokens: found 0, must be at least 1`. Nothing but JobError leaves this
file, whatever the job file holds.
"""

import contextlib
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from batchgen.errors import InputError, JobError, ModelError, OutputError
from batchgen.job.document import CoreLoader, Document, found, merged_resolvers, parse
from batchgen.job.messages import dotted, key_path, requirement
from batchgen.job.sampling import FromColumn
from batchgen.job.spec import Job

_SET = "--set"
_NO_COLUMN = "missing; a value that rows give themselves is written {column: NAME}, or {column: NAME, default: VALUE}"
_KEY_OF_MESSAGE = re.compile(r"^([a-z_]+(?:\.[a-z_]+)*): |, which ([a-z_.]+) names")
_REFERENCE = "#/$defs/"


def load_job(path: Path, overrides: Mapping[str, str] | None = None) -> Job:
    """Reads a job file.

    `overrides` maps dotted keys to YAML values that stand in for what the file has, as `--set` gives them. Raises
    JobError for whatever cannot stand.
    """
    document = parse(_read_text(path), str(path))
    if not isinstance(document.root, MappingNode):
        raise JobError(f"{path}: a job is a mapping of keys, and this is {found(document.root)}")
    for key, text in (overrides or {}).items():
        document.put(key.split("."), parse(text or '""', f"{_SET} {key}").root)
    document.read()
    _raise_problems([_line(node, keys, text) for node, keys, text in document.problems])
    return _validate(document, path.stem)


@contextlib.contextmanager
def told_with_line(path: Path) -> Iterator[None]:
    """Puts file and line before what is refused later of a key in the job file at `path`.

    The message must begin with the key (`sampling.regex: ...`) or speak of what it names (`..., which input.id names`).
    """
    try:
        yield
    except (JobError, InputError, OutputError, ModelError) as error:
        key = _KEY_OF_MESSAGE.search(str(error))
        line = None if key is None else _line_of(path, (key[1] or key[2]).split("."))
        if line is None:
            raise
        raise type(error)(f"{path}:{line}: {error}") from error


def _line_of(path: Path, keys: Sequence[str]) -> int | None:
    """The line of a key in a job file, None if it is not there."""
    try:
        document = parse(_read_text(path), str(path))
    except JobError:
        return None  # it was good, and has been changed since
    key, _ = document.find(keys)
    return key.start_mark.line + 1 if key is not None and key.value == keys[-1] else None


def job_schema() -> dict[str, Any]:
    """JSON schema of a job file, for editors."""
    schema = Job.model_json_schema()
    schema["required"] = [key for key in schema["required"] if key != "name"]
    definitions = schema["$defs"]
    for info in definitions["SamplingSpec"]["properties"].values():
        if "oneOf" in info:
            # A mapping that names a column may also be a JSON schema that says nothing of it.
            info["anyOf"] = [_inlined(form, definitions) for form in info.pop("oneOf")]
    used = json.dumps(schema)
    schema["$defs"] = {name: part for name, part in definitions.items() if json.dumps(_REFERENCE + name) in used}
    return schema


def _inlined(form: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    reference = form.get("$ref", "").removeprefix(_REFERENCE)
    return {**definitions[reference], "title": FromColumn.__name__} if reference else form


def dump_job(job: Job) -> str:
    """The job with all its defaults as YAML that `load_job` reads to an equal job."""
    return yaml.dump(job.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes what any reader, of YAML 1.1 or 1.2, would take for something else than text."""

    yaml_implicit_resolvers = merged_resolvers(CoreLoader, yaml.SafeDumper)


def _represent_text(dumper: _Dumper, text: str) -> ScalarNode:
    # Outside of double quotes PyYAML would write these as they are, and read them as line ends.
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise JobError(f"{path}: no such job file (paths are relative to the current folder)") from error
    except IsADirectoryError as error:
        raise JobError(f"{path}: is a folder, not a job file") from error
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except (OSError, ValueError) as error:
        raise JobError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _validate(document: Document, stem: str) -> Job:
    try:
        return Job.model_validate({"name": stem} | document.value)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        mistyped = {_mistyped(key_path(details)) for details in errors if details["type"] == "extra_forbidden"}
        problems = [_describe(details, document) for details in errors if tuple(key_path(details)) not in mistyped]
        _raise_problems(problems)
        raise


def _raise_problems(problems: Sequence[tuple[str, int, str]]) -> None:
    if problems:
        raise JobError("\n".join(text for _, _, text in sorted(problems)))


def _line(node: Node, keys: Sequence[str | int], text: str) -> tuple[str, int, str]:
    """A problem as (source, line number, the whole line), to be sorted."""
    source, number = str(node.start_mark.name), node.start_mark.line + 1
    place = source if source.startswith(_SET) else f"{source}:{number}"
    return source, number, ": ".join([place, *([dotted(keys)] if keys else []), text])


def _describe(details: ErrorDetails, document: Document) -> tuple[str, int, str]:
    keys, kind = key_path(details), details["type"]
    key_node, node = document.find(keys)
    if kind == "missing":
        return _line(key_node or node, keys, "missing, and every job needs it" if len(keys) < 3 else _NO_COLUMN)
    if kind == "extra_forbidden":
        return _line(key_node or node, keys, _unknown_key(keys))
    must = requirement(details)
    if kind == "job" and isinstance(node, MappingNode | SequenceNode):
        return _line(key_node or node, keys, must)
    return _line(node, keys, f"found {found(node)}, {must}")


def _unknown_key(keys: Sequence[str | int]) -> str:
    """Why a key is refused: where it belongs, or the nearest key that may stand there, or all that may."""
    *parents, name = [str(key) for key in keys]
    sections = _sections()
    if len(parents) > 1:
        near = difflib.get_close_matches(name, FromColumn.model_fields, n=1)
        return "unknown key, " + (
            f"did you mean {near[0]}" if near else f"the keys here are {', '.join(FromColumn.model_fields)}"
        )
    here = sections.get(".".join(parents), [])
    homes = [section for section, names in sections.items() if name in names]
    if homes:
        return f"unknown key, {name} belongs {'in ' + homes[0] if homes[0] else 'at the top level'}"
    near = difflib.get_close_matches(name, here, n=1)
    if near:
        return f"unknown key, did you mean {near[0]}"
    everywhere = {key: section for section, names in sections.items() for key in names if section}
    near = difflib.get_close_matches(name, everywhere, n=1)
    if near:
        return f"unknown key, did you mean {everywhere[near[0]]}.{near[0]}"
    return f"unknown key, the keys here are {', '.join(here)}"


def _mistyped(keys: Sequence[str | int]) -> tuple[str | int, ...]:
    """The key that an unknown one was meant for, so that it is not called missing as well."""
    *parents, name = keys
    here = list(FromColumn.model_fields) if len(parents) > 1 else _sections().get(".".join(map(str, parents)), [])
    near = difflib.get_close_matches(str(name), here, n=1)
    return (*parents, *near)


def _sections() -> dict[str, list[str]]:
    """Valid keys of each section; the job's own stand under the empty name."""
    sections = {"": list(Job.model_fields)}
    for name, info in Job.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            sections[name] = list(info.annotation.model_fields)
    return sections
