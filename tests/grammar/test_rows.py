"""Rows of the bundled pair that are held to a grammar: what drafter, block and neighbours must not change."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from batchgen import engine
from batchgen.engine.decoder import BatchDecoder
from batchgen.grammar import GrammarFactory
from batchgen.types import Generation, Grammar, Request, RowKey, Sampling
from tests.grammar.builders import TINY, TINY_ENDS, regex, schema, text_of, tiny_tokenizer
from tools.structured_figures import SCHEMAS, Bench, Side, faults_of, lines_of, speed_lines

DRAFTER = TINY.parent / "tiny-dflash2"
MODEL_VOCAB = 1024
THOUGHT_END = "."
PHRASE = regex("(The|A) (door|house|clerk) (is|was) [a-z]{2,5}( and [a-z]{2,5})?[.]")
RECORD = schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "sizes": {"type": "array", "maxItems": 2, "items": {
            "type": "integer", "minimum": 0, "maximum": 99}}},
        "required": ["name", "sizes"],
        "additionalProperties": False,
    }
)  # fmt: skip
PROMPTS = ["Describe the house of the clerk.", "What is 12 + 30?", "Write a function that adds two numbers.", "Report:"]
Setup = tuple[Path | None, int | None, int]
SETUPS: list[Setup] = [(None, None, 16), (DRAFTER, 2, 16), (DRAFTER, 4, 3), (DRAFTER, 8, 16), (DRAFTER, 8, 1)]


def request(row: int, grammar: Grammar | None, max_tokens: int = 90, after: str | None = None) -> Request:
    text = f"<|im_start|>user\n{PROMPTS[row % len(PROMPTS)]}<|im_end|>\n<|im_start|>assistant\n"
    matcher = None if grammar is None else model_factory().matcher(grammar, after)
    sampling = Sampling(temperature=(0.0, 0.9)[row % 2])
    tokens = tiny_tokenizer().encode(text).ids
    return Request(RowKey(row, 0), tokens, max_tokens, sampling, noise_key=row * 7919, grammar_matcher=matcher)


@cache
def model_factory() -> GrammarFactory:
    return GrammarFactory(tiny_tokenizer(), MODEL_VOCAB, TINY_ENDS)


def mixed() -> list[Request]:
    """Rows with grammars of three kinds, behind a text and from the start, and free ones between them."""
    return [
        request(0, PHRASE),
        request(1, PHRASE),
        request(2, RECORD),
        request(3, RECORD),
        request(4, None),
        request(5, None, max_tokens=40),
        request(6, Grammar("choice", json.dumps(["yes", "no", "none of the two"]))),
        request(7, RECORD, after=THOUGHT_END),
        request(8, PHRASE, after=THOUGHT_END),
        request(9, RECORD, max_tokens=9),
    ]


@cache
def decoded(setup: Setup) -> dict[int, Generation]:
    drafter, block, max_rows = setup
    options = engine.EngineOptions(
        frozenset(TINY_ENDS), lambda: 0.0, max_rows=max_rows, block_size=block, dtype="float32"
    )
    return run(engine.load(TINY, drafter, options), mixed())


def run(decoder: BatchDecoder, requests: Sequence[Request]) -> dict[int, Generation]:
    waiting, done = list(requests), []
    while waiting or decoder.num_rows:
        free = decoder.max_rows - decoder.num_rows
        decoder.admit(waiting[:free])
        waiting = waiting[free:]
        done += decoder.step()
    return {one.key.row: one for one in done}


@pytest.mark.parametrize("setup", SETUPS[1:], ids=str)
def test_rows_are_the_same_with_any_block_and_batch(setup: Setup) -> None:
    plain, drafted = decoded(SETUPS[0]), decoded(setup)
    for row, generation in plain.items():
        assert drafted[row].tokens == generation.tokens, row
        assert drafted[row].finish_reason == generation.finish_reason


def test_rows_keep_to_their_grammars() -> None:
    texts = {row: text_of(list(one.tokens[:-1])) for row, one in decoded(SETUPS[0]).items()}
    reasons = {row: one.finish_reason for row, one in decoded(SETUPS[0]).items()}
    assert [row for row, reason in reasons.items() if reason == "length" and row != 5] == [9]
    assert re.fullmatch(PHRASE.text, texts[0]) and re.fullmatch(PHRASE.text, texts[1])
    for row in (2, 3):
        jsonschema.validate(json.loads(texts[row]), json.loads(RECORD.text))
    assert texts[6] in ("yes", "no", "none of the two")


def test_grammars_begin_behind_the_text_that_ends_thinking() -> None:
    for row in (7, 8):
        thought, _, answer = text_of(list(decoded(SETUPS[0])[row].tokens[:-1])).partition(THOUGHT_END)
        assert thought
        if row == 7:
            jsonschema.validate(json.loads(answer), json.loads(RECORD.text))
        else:
            assert re.fullmatch(PHRASE.text, answer.lstrip("\n"))


def test_a_budget_that_ends_inside_the_structure_is_said_to() -> None:
    generation = decoded(SETUPS[3])[9]
    assert generation.finish_reason == "length" and len(generation.tokens) == 9
    assert text_of(list(generation.tokens)).startswith('{"name":')


def test_free_rows_are_what_they_are_without_neighbours() -> None:
    options = engine.EngineOptions(frozenset(TINY_ENDS), lambda: 0.0, dtype="float32")
    alone = run(engine.load(TINY, DRAFTER, options), [one for one in mixed() if one.key.row in (4, 5)])
    for row, generation in alone.items():
        assert decoded(SETUPS[0])[row].tokens == generation.tokens


def test_without_its_grammar_a_row_says_something_else() -> None:
    options = engine.EngineOptions(frozenset(TINY_ENDS), lambda: 0.0, dtype="float32")
    free = run(engine.load(TINY, None, options), [replace(one, grammar_matcher=None) for one in mixed()])
    same = [row for row in free if free[row].tokens == decoded(SETUPS[0])[row].tokens]
    assert same == [4, 5]


def test_json_of_five_schemas_all_validates() -> None:
    bench = Bench(num_rows=3, temperature=0.8, block_size=3)
    sides = {(kind, name): Side() for kind in ("grammar", "free") for name in bench.decoders}
    for name, decoder in bench.decoders.items():
        sides["grammar", name].decode(decoder, bench.structured())
        sides["free", name].decode(decoder, bench.free(dict.fromkeys(bench.rows, 3)))
    assert faults_of(bench, sides) == []
    counts = {line[0]: int(line[1]) for line in lines_of(bench, sides["grammar", "drafted"])}
    assert counts == {**dict.fromkeys(SCHEMAS, 3), "all": 15}
    assert [line[0] for line in speed_lines(sides)] == ["with grammar", "without"]
    assert {len(one.tokens) for one in sides["free", "plain"].generations.values()} == {3}


def test_faults_are_found() -> None:
    """Rows that are free of their grammar neither parse nor stay the same."""
    bench = Bench(num_rows=1, temperature=0.8)
    sides = {("grammar", name): Side() for name in bench.decoders}
    for number, (name, decoder) in enumerate(bench.decoders.items()):
        sides["grammar", name].decode(decoder, bench.free(dict.fromkeys(bench.rows, 3 + number)))
    assert len(faults_of(bench, sides)) == 2 * len(SCHEMAS)
