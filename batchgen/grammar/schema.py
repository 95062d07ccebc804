"""JSON schemas as they are accepted here: every keyword has an effect or is refused, with its place.

llguidance passes over keywords that it does not know, and names no place for those it does; so documents are walked
here before it sees them. Places are JSON pointers (RFC 6901) with a leading `#`.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from batchgen.grammar.errors import GrammarError

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")
_VALUES = (
    "type",
    "enum",
    "const",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "$ref",
)
# What says nothing about values by JSON Schema's own rules, and what tools write beside it.
_NOTES = (
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
)
KEYWORDS = frozenset((*_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMAS, *_VALUES, *_NOTES))
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SHAPES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (_SCHEMA_MAPS, "an object of schemas", lambda value: isinstance(value, dict)),
    (_SCHEMA_LISTS, "a list of schemas", lambda value: isinstance(value, list)),
    (("enum",), "a list", lambda value: isinstance(value, list)),
    (("pattern", "format"), "text", _is_text),
    (("required",), "a list of texts", lambda value: isinstance(value, list)),
    (("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "a number", _is_number),
    (
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        "a whole number of at least 0",
        _is_count,
    ),
)
_SHOWN_WIDTH = 60
_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[4-7]|draft/20(19-09|20-12))/schema#?")

# llguidance's parser stops at 128, of which what is put around a schema takes some.
_MAX_DEPTH = 100
_TOO_DEEP = f"is nested more than {_MAX_DEPTH} deep"

Schema = dict[str, Any]


def read_schema(text: str) -> Schema:
    """The schema in a JSON text. Raises GrammarError if it is no JSON object or holds what is refused."""
    try:
        schema = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except GrammarError:
        raise
    except ValueError as error:
        raise GrammarError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise GrammarError(_TOO_DEEP) from error
    if _depth(schema) > _MAX_DEPTH:
        raise GrammarError(_TOO_DEEP)
    if not isinstance(schema, dict):
        raise GrammarError(f"must be a JSON object, and is {kind_of(schema)}")
    targets = {pointer for pointer, part in _parts(schema) if isinstance(part, dict | bool)}
    for pointer, part in _parts(schema):
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise GrammarError(f"at {pointer}: must be a schema (an object, true or false), and is {kind_of(part)}")
        _check_part(pointer, part)
        if "$ref" in part and _pointer(part["$ref"]) not in targets:
            raise GrammarError(f"at {pointer}/$ref: no schema stands at {json.dumps(part['$ref'])}")
    return schema


def subschemas(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schema and all schemas in it that are objects, outer ones first, each with its pointer."""
    return ((pointer, part) for pointer, part in _parts(schema) if isinstance(part, dict))


def locate(schema: Schema, message: str, refusal_of: Callable[[Schema], str | None]) -> str:
    """The pointer of the innermost schema that is refused with this message by itself; `#` if none is."""
    moved = _move_references(schema)
    found = "#"
    for pointer, part in subschemas(schema):
        alone = {"$ref": f"#/$defs/whole{pointer[1:]}", "$defs": {"whole": moved}}
        # What refers to the fault is not its place.
        if pointer.startswith(found) and "$ref" not in part and refusal_of(alone) == message:
            found = pointer
    return found


def references(schema: Schema) -> dict[str, Any]:
    """For each `$ref` of a document the schema that it points to, None if there is none."""
    parts = dict(_parts(schema))
    texts = {part["$ref"] for _, part in subschemas(schema) if "$ref" in part}
    return {text: parts.get(_pointer(text)) for text in texts}


def _parts(part: Any, pointer: str = "#") -> Iterator[tuple[str, Any]]:
    """What stands where a schema must, outer ones first, each with its pointer."""
    yield pointer, part
    if not isinstance(part, dict):
        return
    for keyword, value in part.items():
        place = f"{pointer}/{_escape(keyword)}"
        children: list[tuple[str, Any]] = []
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            children = [(f"{place}/{_escape(name)}", child) for name, child in value.items()]
        elif keyword in _SCHEMA_LISTS and isinstance(value, list):
            children = [(f"{place}/{index}", child) for index, child in enumerate(value)]
        elif keyword in _SCHEMAS:
            children = [(place, value)]
        for child_place, child in children:
            yield from _parts(child, child_place)


def _check_part(pointer: str, part: Schema) -> None:
    for keyword, value in part.items():
        if keyword not in KEYWORDS:
            near = difflib.get_close_matches(keyword, KEYWORDS, n=1, cutoff=0.8)
            hint = f", did you mean {near[0]}" if near else ""
            raise GrammarError(f"at {pointer}: the keyword {json.dumps(keyword)} is not supported{hint}")
        fault = _fault(pointer, keyword, value)
        if fault is not None:
            raise GrammarError(f"at {pointer}/{_escape(keyword)}: {fault}")


def _fault(pointer: str, keyword: str, value: Any) -> str | None:
    """What is wrong with a keyword's value, of what llguidance would misread or report without a place."""
    if keyword == "$ref" and not (isinstance(value, str) and (value == "#" or value.startswith("#/"))):
        return f"{json.dumps(value)} does not point into this schema (# or #/...), and nothing else is read"
    if keyword == "$schema" and not (isinstance(value, str) and _DRAFT.fullmatch(value)):
        return f"{json.dumps(value)} is no draft of JSON Schema from 04 to 2020-12"
    if keyword == "$id" and pointer != "#":
        return "may stand at the top only"
    if keyword == "items" and isinstance(value, list):
        return "must be one schema; schemas of the first items go under prefixItems"
    if keyword == "multipleOf" and not (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        return "must be a number above 0"
    if keyword == "type":
        return _type_fault(value)
    if keyword == "required" and isinstance(value, list) and not all(map(_is_text, value)):
        wrong = next(name for name in value if not _is_text(name))
        return f"must be a list of texts, and holds {_shown(wrong)}"
    for keywords, words, is_good in _SHAPES:
        if keyword in keywords and not is_good(value):
            return f"must be {words}, and is {_shown(value)}"
    return None


def _type_fault(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str):
            return f"must be the name of a type or a list of names, and holds {_shown(name)}"
        if name not in _TYPES:
            near = difflib.get_close_matches(name, _TYPES, n=1, cutoff=0.7)
            return f"{json.dumps(name)} is no type, " + (
                f"did you mean {near[0]}" if near else f"the types are {', '.join(_TYPES)}"
            )
    return None


def _shown(value: Any) -> str:
    """A short value as JSON, of others the kind."""
    text = kind_of(value) if isinstance(value, dict | list) else json.dumps(value)
    return text if len(text) <= _SHOWN_WIDTH else kind_of(value)


def _pointer(reference: str) -> str:
    """The same pointer in the one way in which `_parts` writes it."""
    names = (name.replace("~1", "/").replace("~0", "~") for name in unquote(reference).split("/")[1:])
    return "".join(["#", *(f"/{_escape(name)}" for name in names)])


def _depth(value: Any) -> int:
    """How many lists and objects stand in one another, found without a recursion that could itself go too deep."""
    depth, level = 0, [value]
    while True:
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return depth
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
        depth += 1


def _move_references(value: Any) -> Any:
    """The same document, its references fit for standing at #/$defs/whole."""
    if isinstance(value, list):
        return [_move_references(item) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _move_references(item) for key, item in value.items() if key not in ("$id", "$schema")}
    if isinstance(moved.get("$ref"), str):
        moved["$ref"] = f"#/$defs/whole{moved['$ref'][1:]}"
    return moved


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = Counter(name for name, _ in pairs)
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        raise GrammarError(f"has the name {json.dumps(repeated[0])} twice in one object")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise GrammarError(f"is not JSON: {name} is no JSON value")


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
