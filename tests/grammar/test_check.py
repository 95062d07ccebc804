"""What is said of grammars that cannot be used; no tokenizer is needed for it."""

import json
import subprocess
import sys

import pytest

from batchgen.errors import JobError
from batchgen.grammar import GrammarError, check_grammar, require_llguidance
from batchgen.types import Grammar
from tests.grammar.builders import choice, regex, schema, small_factory

OBJECT = {"type": "object"}
A_SCHEMA = "must be a schema (an object, true or false), and is"
TYPES = "string, number, integer, boolean, null, array, object"
SCHEMAS = [
    ({"properties": {"a": {"type": "strin"}}}, 'at #/properties/a/type: "strin" is no type, did you mean string'),
    (
        {"properties": {"a/b": {"maxlength": 3}}},
        'at #/properties/a~1b: the keyword "maxlength" is not supported, did you mean maxLength',
    ),
    ({"items": {"uniqueItems": True}}, 'at #/items: the keyword "uniqueItems" is not supported'),
    ({"anyOf": [{}, {"not": {}}]}, 'at #/anyOf/1: the keyword "not" is not supported'),
    ({"$defs": {"unused": {"if": {}}}}, 'at #/$defs/unused: the keyword "if" is not supported'),
    ({"x-guidance": {"lenient": True}}, 'at #: the keyword "x-guidance" is not supported'),
    ({"nullable": True}, 'at #: the keyword "nullable" is not supported'),
    (
        {"properties": {"a": {"$ref": "https://example.com/a.json"}}},
        'at #/properties/a/$ref: "https://example.com/a.json" does not point into this schema (# or #/...), '
        "and nothing else is read",
    ),
    ({"$ref": "#/$defs/a~1b", "$defs": {"ab": {}}}, 'at #/$ref: no schema stands at "#/$defs/a~1b"'),
    # Read as a schema it would hold a keyword that nobody has looked at.
    ({"$ref": "#/default", "default": {"zork": 1}}, 'at #/$ref: no schema stands at "#/default"'),
    ({"$ref": "#/properties", "properties": {"a": {}}}, 'at #/$ref: no schema stands at "#/properties"'),
    ({"$defs": {"a": {}, "b": 3}}, f"at #/$defs/b: {A_SCHEMA} a number"),
    ({"properties": {"a": 5}}, f"at #/properties/a: {A_SCHEMA} a number"),
    ({"anyOf": [{}, "x"]}, f"at #/anyOf/1: {A_SCHEMA} text"),
    ({"patternProperties": {"a/b": None}}, f"at #/patternProperties/a~1b: {A_SCHEMA} null"),
    ({"items": {"properties": [1]}}, "at #/items/properties: must be an object of schemas, and is a list"),
    ({"allOf": {"a": 1}}, "at #/allOf: must be a list of schemas, and is an object"),
    ({"type": ["string", 5]}, "at #/type: must be the name of a type or a list of names, and holds 5"),
    ({"type": "any"}, f'at #/type: "any" is no type, the types are {TYPES}'),
    ({"required": "a"}, 'at #/required: must be a list of texts, and is "a"'),
    ({"required": ["a", 1]}, "at #/required: must be a list of texts, and holds 1"),
    ({"minLength": -1}, "at #/minLength: must be a whole number of at least 0, and is -1"),
    ({"maxItems": True}, "at #/maxItems: must be a whole number of at least 0, and is true"),
    ({"minimum": "3"}, 'at #/minimum: must be a number, and is "3"'),
    ({"pattern": 5}, "at #/pattern: must be text, and is 5"),
    ({"enum": {}}, "at #/enum: must be a list, and is an object"),
    ({"prefixItems": [{"$id": "x"}]}, "at #/prefixItems/0/$id: may stand at the top only"),
    ({"$schema": "draft 3"}, 'at #/$schema: "draft 3" is no draft of JSON Schema from 04 to 2020-12'),
    ({"items": [{}]}, "at #/items: must be one schema; schemas of the first items go under prefixItems"),
    ({"$defs": []}, "at #/$defs: must be an object of schemas, and is a list"),
    ({"exclusiveMinimum": True}, "at #/exclusiveMinimum: must be a number, and is true"),
    *(
        ({"properties": {"a": {"multipleOf": value}}}, "at #/properties/a/multipleOf: must be a number above 0")
        for value in (0, -1, -0.5, 0.0, True, "1", None)
    ),
    ({"type": "string", "pattern": "a("}, 'at #: unclosed group, at character 2 of "a("'),
    (
        {"type": "array", "items": {"$ref": "#/$defs/s"}, "$defs": {"s": {"type": "string", "format": "zork"}}},
        "at #/$defs/s: Unknown format: zork",
    ),
    (
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
        "at #: oneOf stands only where types or constant properties tell its schemas apart; use anyOf",
    ),
    ({"items": 3}, f"at #/items: {A_SCHEMA} a number"),
    ({"enum": []}, "at #: Unsatisfiable schema: anyOf is empty"),
    ({"$ref": "#"}, "no text at all fits it"),
    ([1], "must be a JSON object, and is a list"),
    (True, "must be a JSON object, and is a truth value"),
]
TEXTS = [
    ("json_schema", "{", "is not JSON: "),
    ("json_schema", '{"type": "null", "type": "string"}', 'has the name "type" twice in one object'),
    ("json_schema", '{"minimum": NaN}', "is not JSON: NaN is no JSON value"),
    *(
        ("json_schema", '{"items":' * depth + "{}" + "}" * depth, "is nested more than 100 deep")
        for depth in (100, 125, 200, 600, 950, 2000, 50_000)
    ),
    *(
        ("json_schema", '{"const":' + "[" * depth + "]" * depth + "}", "is nested more than 100 deep")
        for depth in (100, 600, 100_000)
    ),
    ("regex", "a" * 2000 + "(" + "b" * 3000, 'unclosed group, at character 2001 of ..."aaa'),
    ("regex", "a\\", "nothing follows the backslash at its end, at character 2"),
    ("regex", "\\" * 5, "nothing follows the backslash at its end, at character 5"),
    ("json_schema", '{"pattern": "\ud800"}', "holds half of a surrogate pair, which no text has"),
    ("regex", "a(", 'unclosed group, at character 2 of "a("'),
    ("regex", "x+(?=y)", "look-around, including look-ahead and look-behind, is not supported, at character 3 of"),
    ("regex", r"(a)\1", 'backreferences are not supported, at character 4 of "(a)'),
    ("regex", r"\bword", "lookarounds not supported yet"),
    ("regex", "(?P<n>a)\n(?P<n>b)", "duplicate capture group name"),
    ("regex", r"[^\s\S]", "no text at all fits it"),
    ("choice", "yes", "is not JSON: "),
    ("choice", "[]", "must be a list of at least one text"),
    ("choice", '{"a": 1}', "must be a list of at least one text"),
    ("choice", '["a", 1]', "entry 1 must be text, and is a number"),
    ("choice", "[" * 100_000, "is nested too deeply: it must be a list of texts"),
    ("choice", '["a", "b", "a"]', '"a" stands there twice'),
    ("choice", '["\\ud800"]', "holds half of a surrogate pair, which no text has"),
]


@pytest.mark.parametrize(("value", "message"), SCHEMAS, ids=[json.dumps(value)[:60] for value, _ in SCHEMAS])
def test_schemas_that_are_refused(value: object, message: str) -> None:
    assert message_of(schema(value)) == message


@pytest.mark.parametrize(("kind", "text", "beginning"), TEXTS, ids=range(len(TEXTS)))
def test_texts_that_are_refused(kind: str, text: str, beginning: str) -> None:
    message = message_of(Grammar(kind, text))  # type: ignore[arg-type]
    assert message.startswith(beginning)
    assert "\n" not in message and len(message) < 400


def message_of(grammar: Grammar) -> str:
    with pytest.raises(GrammarError) as caught:
        check_grammar(grammar)
    with pytest.raises(GrammarError) as again:
        small_factory().matcher(grammar)
    assert str(caught.value) == str(again.value)
    return str(caught.value)


def nested(depth: int) -> dict[str, object]:
    return {"items": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "a", "title": "a", "default": 1}),
        schema({"properties": {"not": {"title": "a name, not a keyword"}, "if": True}, "examples": [{"not": 1}]}),
        schema({"$ref": "#/properties/c%20d", "properties": {"c d": {"$ref": "#/$defs/e/prefixItems/0"}}, "$defs": {
            "e": {"prefixItems": [{"type": "integer"}]}}}),
        schema({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
        schema({"$ref": "#/$defs/yes", "$defs": {"yes": True, "no": False}}),
        schema(nested(98)),
        regex("a\\\\"),
        schema({"enum": ["x", 1, None, {"maxlength": [1.5]}]}),
        regex(""),
        regex("^a|b$"),
        regex("(?i)[é-ü]{3}/\n"),
        choice(*(f"one of many, {number}" for number in range(3000))),
        choice("", ".*", "\\", "a/b", '"', "\x00", "\U0001f600"),
    ],
    ids=range(13),
)  # fmt: skip
def test_grammars_that_stand(grammar: Grammar) -> None:
    check_grammar(grammar)


def test_llguidance_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_llguidance("sampling.regex")
    monkeypatch.setattr("batchgen.grammar.errors.find_spec", lambda name: None)
    with pytest.raises(JobError) as caught:
        require_llguidance("sampling.regex")
    assert str(caught.value) == (
        "sampling.regex: needs llguidance, which is not installed: pip install 'batchgen[grammar]'"
    )


def test_the_room_can_be_imported_without_llguidance() -> None:
    code = "import sys; sys.modules['llguidance'] = None; from batchgen.grammar import GrammarFactory"
    subprocess.run([sys.executable, "-c", code], check=True)
