"""A YAML text as values whose lines are known.

YAML 1.2's core types over PyYAML's parser: `1e-5` is a number; `yes`, `on`, `12:30` and `2024-01-01` are text; `010` is
ten. Repeated keys and tags are problems, not surprises. Knows nothing of what a job may hold.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from batchgen.errors import JobError

_TAG = "tag:yaml.org,2002:"
_WRITTEN = "written:"
_BOOLS = {"true": True, "false": False}
_FOUND_WIDTH = 60

KeyPath = tuple[str | int, ...]
ResolverTable = dict[str, list[tuple[str, re.Pattern[str]]]]

_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    # tag, pattern of plain scalars, characters they may begin with
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
)


def _resolver_table() -> ResolverTable:
    table: ResolverTable = {}
    for tag, pattern, first in _RESOLVERS:
        for character in [*first, *([""] if tag == "null" else [])]:
            table.setdefault(character, []).append((_TAG + tag, re.compile(rf"(?:{pattern})\Z")))
    return table


class CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's plain scalars; only its parser and composer are used."""

    yaml_implicit_resolvers = _resolver_table()

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """The node, with a mark on a tag that is written out, which else could not be told from a value's own."""
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        if tag is not None and node is not None:
            node.tag = _WRITTEN + tag
        return node


def merged_resolvers(*classes: type[yaml.resolver.BaseResolver]) -> ResolverTable:
    """What any of these classes would take for something else than text, by first character."""
    first = {character for owner in classes for character in owner.yaml_implicit_resolvers}
    return {key: [rule for owner in classes for rule in owner.yaml_implicit_resolvers.get(key, [])] for key in first}


@dataclass(slots=True)
class Document:
    """A parsed text: `value` in Python, and the node that each key path came from."""

    root: Node
    value: Any = None
    problems: list[tuple[Node, KeyPath, str]] = field(default_factory=list)

    def read(self) -> None:
        """Builds `value` from the nodes; `problems` gets (node, key path, text) for what cannot be read."""
        self.value = _Reader(self.problems).value(self.root, ())

    def find(self, path: Sequence[str | int]) -> tuple[Node | None, Node]:
        """The key node (None at the root or in a list) and value node of a path, or of the deepest part that exists."""
        key: Node | None = None
        node = self.root
        for part in path:
            if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
                key, node = None, node.value[part]
                continue
            pairs = node.value if isinstance(node, MappingNode) else []
            found = [(child, value) for child, value in pairs if child.value == part]
            if not found:
                break
            key, node = found[-1]
        return key, node

    def put(self, path: Sequence[str], node: Node) -> None:
        """Puts a node in place of what stands under a key path, making the mappings on the way."""
        *parents, last = path
        mapping = self.root
        for part in parents:
            child = next((value for key, value in mapping.value if key.value == part), None)
            if not isinstance(child, MappingNode):
                child = MappingNode(_TAG + "map", [], node.start_mark, node.end_mark)
                _set(mapping, part, child)
            mapping = child
        _set(mapping, last, node)


def parse(text: str, name: str) -> Document:
    """Composes a text; raises JobError with `name` and line if it is not one YAML document with a value."""
    try:
        loader = CoreLoader(text)
        loader.name = name
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f":{mark.line + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise JobError(f"{name}{at}: not valid YAML: {reason}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise JobError(
            f"{name}:{line}: not valid YAML: the character U+{error.character:04X} may not stand here"
        ) from error
    except RecursionError as error:
        raise JobError(f"{name}: nested too deeply to be a job") from error
    except (ValueError, OverflowError) as error:
        raise JobError(f"{name}: not valid YAML: {error}") from error
    if root is None:
        raise JobError(f"{name}: the file is empty, and a job needs at least model, input and output")
    return Document(root)


def found(node: Node) -> str:
    """What stands at a node, for messages: short text as it is written, or what kind of value it is."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    text = " ".join(str(node.value).split())
    style = node.style if isinstance(node, ScalarNode) else None
    if not node.value:
        return '""' if style else "nothing"
    if len(text) > _FOUND_WIDTH:
        text = text[: _FOUND_WIDTH - 3] + "..."
    return f'"{text}"' if style in ("'", '"') else text


def _set(mapping: Node, name: str, node: Node) -> None:
    key = ScalarNode(_TAG + "str", name, node.start_mark, node.end_mark)
    mapping.value = [pair for pair in mapping.value if pair[0].value != name] + [(key, node)]


class _Reader:
    """Turns nodes into values. Each node is read once, so aliases of aliases cost no more than they are long."""

    def __init__(self, problems: list[tuple[Node, KeyPath, str]]) -> None:
        self._problems = problems
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def value(self, node: Node, path: KeyPath) -> Any:
        if id(node) in self._open:
            return self._problem(node, path, "an alias may not stand for what contains it")
        if id(node) not in self._done:
            self._open.add(id(node))
            self._done[id(node)] = self._read(node, path)
            self._open.discard(id(node))
        return self._done[id(node)]

    def _read(self, node: Node, path: KeyPath) -> Any:
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        return self._problem(node, path, _refused_tag(node))

    def _mapping(self, node: Node, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, child in node.value:
            if not isinstance(key, ScalarNode):
                self._problem(key, path, f"a key must be a name, not {found(key)}")
                continue
            if key.tag.startswith(_WRITTEN):
                self._problem(key, path, _refused_tag(key))
            name = str(key.value)
            if name in lines:
                self._problem(key, (*path, name), f"stands twice, first in line {lines[name]}")
            lines.setdefault(name, key.start_mark.line + 1)
            values[name] = self.value(child, (*path, name))
        return values

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        text, tag = str(node.value), node.tag.removeprefix(_TAG)
        if tag not in _SCALARS:
            return self._problem(node, path, _refused_tag(node))
        if not _is_unicode(text):
            return self._problem(node, path, "must be Unicode text, and holds a lone surrogate")
        try:
            return _SCALARS[tag](text)
        except (KeyError, ValueError):
            return self._problem(node, path, f"found {found(node)}, which cannot be read as {_short(node.tag)}")

    def _problem(self, node: Node, path: KeyPath, text: str) -> None:
        self._problems.append((node, path, text))


def _refused_tag(node: Node) -> str:
    return f"the tag {_short(node.tag.removeprefix(_WRITTEN))} may not stand here; leave it out"


def _short(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _int(text: str) -> int:
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: dict[str, Any] = {
    "str": str,
    "null": lambda text: None,
    "bool": lambda text: _BOOLS[text.lower()],
    "int": _int,
    "float": _float,
}
