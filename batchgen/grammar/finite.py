"""Which schemas of a document no JSON value fits because it would have to hold itself, and the document without them.

llguidance follows references without end: of an object that must hold one of its own kind it writes the beginning, and
never finds a way on. Only what certainly has no value is taken out; what is empty for another reason, such as a minimum
above the maximum, llguidance sees by itself.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from batchgen.grammar.schema import Schema, references, subschemas

_NESTED = frozenset({"object", "array"})

Fits = Callable[[Any], bool]
"""Whether a schema may have a value."""


def without_endless(schema: Schema) -> Schema | None:
    """The document with each schema that no finite value fits made false where it stands, None if all of it is.

    Pointers into the document hold as before. `schema` is as `read_schema` gives it.
    """
    endless = _endless(schema)
    if id(schema) in endless:
        return None
    closed: Schema = _closed(schema, endless) if endless else schema
    return closed


def _closed(value: Any, endless: set[int]) -> Any:
    if isinstance(value, list):
        return [_closed(item, endless) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {key: _closed(item, endless) for key, item in value.items()}
    if id(value) in endless:
        # A reference is followed before anything beside it is looked at.
        copy.pop("$ref", None)
        copy["allOf"] = [*copy.get("allOf", []), False]
    return copy


def _endless(schema: Schema) -> set[int]:
    """The schemas (by `id`) that no finite value fits: those that are left when all that have one are found."""
    targets = references(schema)
    if not targets:
        return set()
    left = {id(part): part for _, part in subschemas(schema)}

    def fits(part: Any) -> bool:
        return part is not False and id(part) not in left

    num_left = len(left) + 1
    while len(left) < num_left:
        num_left = len(left)
        # Inner ones first, so that most are found in one turn.
        for key, part in reversed(list(left.items())):
            if _has_value(part, targets, fits):
                del left[key]
    return set(left)


def _has_value(part: Schema, targets: Mapping[str, Any], fits: Fits) -> bool:
    """Whether a value may fit, if `fits` knows of values for all that it would hold."""
    if "$ref" in part and not fits(targets[part["$ref"]]):
        return False
    if not all(fits(each) for each in _list(part, "allOf")):
        return False
    if any(key in part and not any(fits(each) for each in _list(part, key)) for key in ("anyOf", "oneOf")):
        return False
    kinds = part.get("type", [])
    kinds = {kinds} if isinstance(kinds, str) else set(_strings(kinds))
    if not kinds or kinds - _NESTED:
        return True
    return ("object" in kinds and _has_object(part, fits)) or ("array" in kinds and _has_array(part, fits))


def _has_object(part: Schema, fits: Fits) -> bool:
    named, patterns = _mapping(part, "properties"), _mapping(part, "patternProperties")
    others = part.get("additionalProperties", True)
    required = _strings(part.get("required", []))
    if not all(fits(named[name]) if name in named else patterns or fits(others) for name in required):
        return False
    needs_one = _number(part, "minProperties") > 0
    return not needs_one or any(fits(each) for each in (*named.values(), *patterns.values(), others))


def _has_array(part: Schema, fits: Fits) -> bool:
    least, first = _number(part, "minItems"), _list(part, "prefixItems")
    return all(fits(each) for each in first[: int(least)]) and (least <= len(first) or fits(part.get("items", True)))


def _list(part: Schema, key: str) -> list[Any]:
    value = part.get(key)
    return value if isinstance(value, list) else []


def _mapping(part: Schema, key: str) -> dict[str, Any]:
    value = part.get(key)
    return value if isinstance(value, dict) else {}


def _number(part: Schema, key: str) -> float:
    value = part.get(key)
    return value if isinstance(value, int | float) else 0


def _strings(value: Any) -> Iterable[str]:
    return (each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
