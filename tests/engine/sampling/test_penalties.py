"""Penalties and bias inside a block are those of mlx-lm's processors, each position seeing the tokens before it."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors
from mlx_lm.utils import load_model

from batchgen.engine.row import Row
from batchgen.engine.sampling.penalties import Penalties
from batchgen.engine.sampling.rules import Rules
from batchgen.types import Request, RowKey, Sampling
from tests.engine.builders import prompt_tokens
from tests.engine.sampling.rows import EOS, MAX_TOKENS, decode, decoder

VOCAB = 20
BLOCK = 5
REPETITION = Sampling(repetition_penalty=1.7)
SETTINGS = (
    Sampling(),
    REPETITION,
    Sampling(repetition_penalty=0.6, repetition_context_size=3),
    Sampling(presence_penalty=0.9),
    Sampling(presence_penalty=-0.7, presence_context_size=1),
    Sampling(frequency_penalty=0.4, frequency_context_size=100),
    Sampling(frequency_penalty=-0.2, frequency_context_size=2),
    Sampling(
        repetition_penalty=1.3,
        repetition_context_size=50,
        presence_penalty=0.5,
        presence_context_size=7,
        frequency_penalty=0.25,
        frequency_context_size=12,
        logit_bias=((3, 2.0), (4, -100.0), (19, 0.5)),
    ),
    Sampling(logit_bias=((0, -1.0),)),
)


def processors(sampling):
    return make_logits_processors(
        dict(sampling.logit_bias) or None,
        None if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        sampling.repetition_context_size,
        sampling.presence_penalty or None,
        sampling.presence_context_size,
        sampling.frequency_penalty or None,
        sampling.frequency_context_size,
    )


def reference(sampling, before, logits):
    """mlx-lm's processors on logits [V] behind the tokens `before`."""
    result = mx.array(logits)[None]
    for processor in processors(sampling):
        result = processor(mx.array(before), result)
    return np.array(result[0])


def row_of(sampling, prompt, completion):
    row = Row(Request(RowKey(0, 0), prompt, 1000, sampling), 0.0, 0.0, frozenset(), acceptance_counts=[0] * 8)
    row.tokens = list(completion)
    return row


def texts(seed, count):
    """Prompts of 1 to 40 tokens and completions of 1 to 30, over few tokens, so that many are repeated."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        prompt = rng.integers(0, VOCAB // 2, rng.integers(1, 40)).tolist()
        made.append((prompt, rng.integers(0, VOCAB // 2, rng.integers(1, 30)).tolist()))
    return made


def block_of(rows, seed):
    """Logits [R, BLOCK, V] of both signs, and tokens [R, BLOCK]: each row's anchor and drafts, with repetitions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (len(rows), BLOCK, VOCAB)).astype(np.float32)
    tokens = rng.integers(0, VOCAB // 2, (len(rows), BLOCK)).astype(np.int32)
    tokens[:, 0] = [row.tokens[-1] for row in rows]
    return logits, tokens


@pytest.mark.parametrize("seed", range(4))
def test_every_position_of_a_block_sees_the_tokens_before_it(seed):
    settings = [*SETTINGS, SETTINGS[7]]
    rows = [row_of(sampling, *text) for sampling, text in zip(settings, texts(seed, len(settings)), strict=True)]
    logits, tokens = block_of(rows, seed)
    adjusted = np.array(Rules(rows).adjust(mx.array(logits), mx.array(tokens), None))
    for slot, row in enumerate(rows):
        before = [*row.request.tokens, *row.tokens]
        for position in range(BLOCK):
            seen = before + tokens[slot, 1 : position + 1].tolist()
            expected = reference(row.request.sampling, seen, logits[slot, position])
            np.testing.assert_allclose(adjusted[slot, position], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(adjusted[0], logits[0])  # no rules: not a bit is touched


def counted(row, block, sizes):
    """How often each token of the vocabulary stands in the last so many tokens before each position, [3, BLOCK, V]."""
    texts = [[*row.request.tokens, *row.tokens, *block[1 : position + 1]] for position in range(len(block))]
    return np.array([[np.bincount(text[-size:], minlength=VOCAB) for text in texts] for size in sizes])


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_plain_count(seed):
    """With the first size as long as the longest context, others shorter, and texts that are shorter still."""
    sizes = [(1024, 20, 1), (300, 7, 1024), (2, 3, 4), (20, 20, 20)]
    settings = [
        Sampling(
            repetition_penalty=1.5,
            repetition_context_size=repetition,
            presence_penalty=0.5,
            presence_context_size=presence,
            frequency_penalty=0.5,
            frequency_context_size=frequency,
        )
        for repetition, presence, frequency in sizes
    ]
    long = [text[0] * 40 for text in texts(seed, len(sizes))]
    rows = [
        row_of(sampling, prompt[: 1 + 500 * (slot % 3)], text[1])
        for slot, (sampling, prompt, text) in enumerate(zip(settings, long, texts(seed, len(sizes)), strict=True))
    ]
    _, tokens = block_of(rows, seed)
    penalties = Penalties.of(settings, lambda width: [row.tail(width) for row in rows])
    # A penalty of minus one on logits of zero leaves the counts themselves.
    for number in range(3):
        alone = replace(
            penalties,
            repetition=mx.ones(len(rows)),
            presence=mx.zeros(len(rows)),
            frequency=mx.full((len(rows),), -1.0),
            context_sizes=(mx.ones(len(rows), mx.int32),) * 2 + (penalties.context_sizes[number],),
        )
        mine = np.array(alone.apply(mx.zeros((len(rows), BLOCK, VOCAB)), mx.array(tokens)))
        for slot, row in enumerate(rows):
            np.testing.assert_array_equal(mine[slot], counted(row, tokens[slot].tolist(), sizes[slot])[number])


def test_the_shortest_texts():
    """One token of prompt, and the completion's first token is to come or just came."""
    for prompt, completion, anchor in (([5], [], 5), ([5], [5], 5), ([5], [6], 6)):
        rows = [row_of(sampling, prompt, completion) for sampling in SETTINGS]
        logits = np.random.default_rng(1).normal(0, 2, (len(rows), 1, VOCAB)).astype(np.float32)
        anchors = mx.full((len(rows), 1), anchor, mx.int32)
        adjusted = np.array(Rules(rows).adjust(mx.array(logits), anchors, None))
        for slot, sampling in enumerate(SETTINGS):
            expected = reference(sampling, [*prompt, *completion], logits[slot, 0])
            np.testing.assert_allclose(adjusted[slot, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_moving_along_equals_building_anew(seed):
    """Ten rounds of any acceptance, empty slots (count 0) among them."""
    rng = np.random.default_rng(seed)
    rows = [row_of(sampling, *text) for sampling, text in zip(SETTINGS, texts(seed, len(SETTINGS)), strict=True)]
    rules = Rules(rows)
    for turn in range(10):
        logits, tokens = block_of(rows, 100 * seed + turn)
        counts = rng.integers(0, BLOCK + 1, len(rows)).astype(np.int32)
        rules.advance(mx.array(tokens), mx.array(counts))
        for row, block, count in zip(rows, tokens.tolist(), counts.tolist(), strict=True):
            # The anchor is among the row's tokens already; behind what stands comes a new one.
            row.tokens += [*block[1:count], int(rng.integers(0, VOCAB // 2))] if count else []
        logits, tokens = block_of(rows, 100 * seed + turn + 50)
        moved = rules.adjust(mx.array(logits), mx.array(tokens), None)
        anew = Rules(rows).adjust(mx.array(logits), mx.array(tokens), None)
        np.testing.assert_array_equal(np.array(moved), np.array(anew))
        np.testing.assert_array_equal(np.array(rules.positions), [len(row.tokens) for row in rows])


def test_a_drafter_is_told_what_is_known_before_any_draft():
    rows = [row_of(sampling, *text) for sampling, text in zip(SETTINGS, texts(9, len(SETTINGS)), strict=True)]
    logits, tokens = block_of(rows, 9)
    adjusted = np.array(Rules(rows).adjust_drafts(mx.array(logits), mx.array(tokens[:, 0])))
    for slot, row in enumerate(rows):
        before = [*row.request.tokens, *row.tokens]
        for position in range(BLOCK):
            expected = reference(row.request.sampling, before, logits[slot, position])
            np.testing.assert_allclose(adjusted[slot, position], expected, rtol=1e-6, atol=1e-6)


# Decoding: greedy rows under penalties, several of them in one batch.
PENALISED = (
    Sampling(repetition_penalty=1.8),
    Sampling(repetition_penalty=3.0, repetition_context_size=4),
    Sampling(presence_penalty=2.0, presence_context_size=40),
    Sampling(frequency_penalty=1.5, frequency_context_size=9),
    Sampling(logit_bias=((3, 6.0), (10, -50.0), (50, -8.0))),
    Sampling(),
    Sampling(
        repetition_penalty=1.3,
        repetition_context_size=64,
        presence_penalty=0.6,
        presence_context_size=30,
        frequency_penalty=0.4,
        frequency_context_size=10,
        logit_bias=((3, 1.5), (41, -3.0), (60, 2.0)),
    ),
)
PROMPTS = [prompt_tokens(seed, length) for seed, length in enumerate((1, 2, 30, 7, 90, 12, 50))]


def requests():
    return [
        Request(RowKey(2 * row + turn, 0), PROMPTS[(row + 2 * turn) % len(PROMPTS)], MAX_TOKENS, sampling)
        for row, sampling in enumerate(PENALISED)
        for turn in range(2)
    ]


def generate_alone(folder: Path, request):
    model, _ = load_model(folder)
    tokens: list[int] = []
    steps = generate_step(
        mx.array(request.tokens), model, max_tokens=MAX_TOKENS, logits_processors=processors(request.sampling)
    )
    for token, _ in steps:
        tokens.append(int(token))
        if tokens[-1] in EOS:
            break
    return tuple(tokens)


@pytest.fixture(scope="module")
def expected(folders):
    return {kind: [generate_alone(folders[kind], request) for request in requests()] for kind in ("hybrid", "qwen3")}


@pytest.mark.parametrize(("drafter", "block"), [(None, None), ("v2", 2), ("v2", 8), ("v1", 4)])
@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_penalised_greedy_rows_are_those_of_mlx_lm(folders, expected, kind, drafter, block):
    folder = None if drafter is None else folders[f"{kind}-{drafter}"]
    done = decode(decoder(folders[kind], folder, 5, block), requests(), per_step=3)
    assert [done[request.key].tokens for request in requests()] == expected[kind]
    if drafter is not None:
        assert sum(generation.accepted_tokens for generation in done.values()) > 30


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_every_penalty_changes_texts_and_no_neighbours(folders, expected, kind):
    """So that the equality above says something of each."""
    bare = [replace(request, sampling=Sampling()) for request in requests()]
    done = decode(decoder(folders[kind], None, 14), bare)
    changed = [done[request.key].tokens != text for request, text in zip(requests(), expected[kind], strict=True)]
    by_setting = [any(changed[2 * row : 2 * row + 2]) for row in range(len(PENALISED))]
    assert by_setting == [sampling != Sampling() for sampling in PENALISED]
