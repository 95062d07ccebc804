"""Whatever a completion says within its masks is in the language: random ones, judged by jsonschema and by re."""

import json
import random
import re

import jsonschema
import pytest

from batchgen.types import Grammar
from tests.grammar.builders import choice, regex, schema, text_of, walk

NUM_WALKS = 40
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMAS = [
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": -3, "maximum": 12}},
        "required": ["n"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["a", 1, None, True, {"x": [1.5]}]}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [DIGIT, {"type": "boolean"}], "items": False, "minItems": 1},
    {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a", "b"], "additionalProperties": False},
    {"type": "object", "patternProperties": {"^(x|y)$": DIGIT}, "additionalProperties": False, "maxProperties": 1},
    {"type": "string", "pattern": "ab|c", "maxLength": 6},
    {"type": "string", "pattern": "^a+b$", "minLength": 4},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10},
    {"type": "integer", "multipleOf": 7, "exclusiveMinimum": 0, "exclusiveMaximum": 100},
    {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 2.25},
    {"type": ["string", "null"], "maxLength": 1},
    {"anyOf": [{"type": "string", "maxLength": 2}, DIGIT]},
    {"oneOf": [{"type": "string", "maxLength": 2}, DIGIT]},
    {"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}},
                                 {"properties": {"a": DIGIT}, "required": ["a"], "additionalProperties": False}]},
    {"const": 'é"\\\n'},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"v": DIGIT, "next": {"$ref": "#/$defs/t"}},
                                          "required": ["v"], "additionalProperties": False}}},
    *({"type": "string", "format": name} for name in ("date", "uuid", "ipv4")),
]  # fmt: skip


@pytest.mark.parametrize("value", SCHEMAS, ids=[json.dumps(value)[:50] for value in SCHEMAS])
def test_what_ends_validates(value: dict[str, object]) -> None:
    validator = jsonschema.Draft202012Validator(value, format_checker=jsonschema.FormatChecker())
    rng = random.Random(5)
    completions = [walk(schema(value), rng) for _ in range(NUM_WALKS)]
    whole = [text_of(tokens) for tokens, is_whole in completions if is_whole]
    assert len(whole) >= NUM_WALKS // 2
    for text in whole:
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    "pattern", ["a*b|c+", "(?i)yes|no!", "[0-9]{2,4}", "é.{0,3}ü", r"[\u4e00-\u4e10]{1,2}", "(a|ab)(c|bcd)", "^x[^a]y$"]
)
def test_what_ends_matches(pattern: str) -> None:
    rng = random.Random(6)
    for _ in range(NUM_WALKS):
        tokens, is_whole = walk(regex(pattern), rng)
        assert is_whole and re.fullmatch(pattern, text_of(tokens))


def test_every_choice_is_made_and_nothing_else() -> None:
    texts = ["a", "ab", "b.c*", "é\n/\\x41", "(x", '"', "\U0001f600"]
    rng = random.Random(7)
    assert {text_of(walk(choice(*texts), rng)[0]) for _ in range(300)} == set(texts)


def test_json_has_no_white_space_but_one_space_after_a_comma_or_colon() -> None:
    rng = random.Random(8)
    value = {"type": "array", "items": {"type": "object", "properties": {"a": DIGIT}}, "maxItems": 3, "minItems": 2}
    closed = {**value, "items": {**value["items"], "additionalProperties": False}}  # type: ignore[dict-item]
    texts = [text_of(walk(schema(closed), rng)[0]) for _ in range(60)]
    assert all(re.fullmatch(r"[^\s]*([,:] ?[^\s]+)*", text) for text in texts)
    assert any(", " in text for text in texts) and any(",{" in text for text in texts)


def test_properties_come_in_the_order_of_the_schema() -> None:
    names = ["zebra", "apple", "mango"]
    value = {
        "type": "object",
        "properties": {name: {"const": 1} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    text = text_of(walk(Grammar("json_schema", json.dumps(value)), random.Random(9))[0])
    assert list(json.loads(text)) == names
