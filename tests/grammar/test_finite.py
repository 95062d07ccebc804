"""Schemas that refer to themselves: without a finite value they are refused, with one no completion gets stuck."""

import json
import random
from typing import Any

import jsonschema
import pytest

from batchgen.grammar import GrammarError, check_grammar
from tests.grammar.builders import schema, text_of, walk

LOOP = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"], "additionalProperties": False}
LEAF = {"const": 1}


def ref(name: str = "n") -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def closed(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """An object with no other properties than these."""
    keys = {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}
    return keys | more


def loops(part: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    return {**part, "$defs": {"n": LOOP, **definitions}}


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "#"},
        closed({"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}, "a"),
        loops(ref()),
        loops(closed({"a": {"allOf": [ref()]}}, "a")),
        loops({"anyOf": [ref(), closed({"b": ref()}, "b")]}),
        loops({"type": "array", "items": ref(), "minItems": 1}),
        loops({"type": "array", "prefixItems": [LEAF, ref()], "minItems": 2}),
        loops({"type": "object", "required": ["q"], "additionalProperties": ref()}),
        loops({"type": "object", "minProperties": 1, "additionalProperties": ref()}),
        {"type": ["object", "array"], "items": {"$ref": "#"}, "minItems": 1,
         "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
    ids=range(10),
)  # fmt: skip
def test_what_would_have_to_hold_itself_fits_nothing(value: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r"^no text at all fits it$"):
        check_grammar(schema(value))


@pytest.mark.parametrize(
    "value",
    [
        loops(closed({"a": ref(), "b": LEAF})),
        loops({"anyOf": [ref(), LEAF]}),
        loops({"type": "array", "items": ref(), "maxItems": 2}),
        loops({"type": "array", "prefixItems": [LEAF, ref()], "items": LEAF, "maxItems": 3}),
        loops({"type": "object", "additionalProperties": ref()}),
        loops({"type": "object", "patternProperties": {"^a$": ref(), "^b$": LEAF}, "additionalProperties": False}),
        # A schema that fits something may stand within one that fits nothing.
        loops(closed({"a": {"$ref": "#/$defs/m/properties/x"}, "b": ref("m")}),
              m=closed({"x": LEAF, "y": ref("m")}, "y")),
        loops(closed({"v": LEAF, "next": ref("t")}, "v"), t=closed({"v": LEAF, "next": {"anyOf": [ref("t"), ref()]}})),
    ],
    ids=range(8),
)  # fmt: skip
def test_an_optional_part_that_fits_nothing_is_never_begun(value: dict[str, Any]) -> None:
    rng = random.Random(3)
    for _ in range(20):
        tokens, is_whole = walk(schema(value), rng)
        assert is_whole
        jsonschema.validate(json.loads(text_of(tokens)), value)


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """Mostly closed objects, arrays and references to `#/$defs/a` to `c`, so that many fit nothing."""
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return ref(rng.choice("abc"))
    if kind < 0.5:
        return LEAF
    if kind < 0.65:
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]}
    if kind < 0.75:
        first = [random_schema(rng, depth - 1)]
        return {"type": "array", "minItems": rng.randint(0, 2), "maxItems": 2, "prefixItems": first, "items": first[0]}
    named = {name: random_schema(rng, depth - 1) for name in rng.sample("xyz", rng.randint(0, 2))}
    return closed(named, *(name for name in named if rng.random() < 0.6))


def test_no_completion_of_a_schema_that_stands_gets_stuck() -> None:
    num_refused = num_walked = 0
    for seed in range(150):
        rng = random.Random(seed)
        value = random_schema(rng, 2) | {"$defs": {name: random_schema(rng, 2) for name in "abc"}}
        try:
            check_grammar(schema(value))
        except GrammarError:
            num_refused += 1
            continue
        # It fails where nothing but an end is left in the middle of a value.
        walk(schema(value), rng, max_tokens=60)
        num_walked += 1
    assert num_refused > 20 and num_walked > 60
