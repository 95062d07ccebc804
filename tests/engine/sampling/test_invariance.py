"""A row's tokens are a function of model, prompt, settings and key: of nothing that makes them come faster."""

import random
from dataclasses import replace

import numpy as np
import pytest

from batchgen.types import RowKey
from tests.engine.sampling.rows import SETTINGS, decode, decoder, requests, texts

KINDS = ("hybrid", "qwen3")


@pytest.fixture(scope="module")
def plain(folders):
    """Each row decoded alone and without a drafter."""
    return {kind: decode(decoder(folders[kind], None, 1), requests()) for kind in KINDS}


def test_the_rows_are_worth_comparing(plain):
    for done in plain.values():
        assert len(set(texts(done))) >= len(done) - 2
        lengths = [len(text) for text in texts(done)]
        assert max(lengths) == 24
        assert sum(length < 24 for length in lengths) >= 3
        assert len({token for text in texts(done) for token in text}) > 40


@pytest.mark.parametrize("max_rows", [1, 5, 16])
@pytest.mark.parametrize(("drafter", "block"), [(None, None), ("v2", 2), ("v2", 4), ("v2", 8), ("v1", 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_neither_drafter_block_nor_batch_changes_a_sampled_row(folders, plain, kind, drafter, block, max_rows):
    engine = decoder(folders[kind], None if drafter is None else folders[f"{kind}-{drafter}"], max_rows, block)
    done = decode(engine, requests(), per_step=3)
    assert texts(done) == texts(plain[kind])
    if drafter is not None:
        assert sum(generation.accepted_tokens for generation in done.values()) > 60


@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_launched_ahead_change_no_sampled_row(folders, plain, kind, per_step):
    """Penalties too see the tokens of a round that nobody has read yet."""
    engine = decoder(folders[kind], folders[f"{kind}-v2"], 7, 4)
    engine.options = replace(engine.options, ahead=True, bucket_slots=True)
    done = decode(engine, requests(), per_step)
    assert texts(done) == texts(plain[kind])
    for key, generation in done.items():
        assert np.allclose(generation.logprobs, plain[kind][key].logprobs, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_another_order_have_the_same_tokens(folders, plain, kind):
    order = requests()
    random.Random(0).shuffle(order)
    done = decode(decoder(folders[kind], folders[f"{kind}-v2"], 5, 8), order, per_step=2)
    assert texts(done) == texts(plain[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_change_nothing(folders, plain, kind):
    """The same rows among others of other lengths and settings."""
    others = [replace(request, key=RowKey(100 + request.key.row, 0)) for request in requests(seed=5, max_tokens=40)]
    mixed = [request for pair in zip(others, requests(), strict=True) for request in pair]
    done = decode(decoder(folders[kind], folders[f"{kind}-v2"], 16, 8), mixed)
    mine = {key: generation for key, generation in done.items() if key.row < 100}
    assert texts(mine) == texts(plain[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_plain_decoding(folders, plain, kind):
    done = decode(decoder(folders[kind], folders[f"{kind}-v2"], 5, 8), requests())
    for key, generation in done.items():
        assert generation.logprobs is not None
        assert len(generation.logprobs) == len(generation.tokens)
        np.testing.assert_allclose(generation.logprobs, plain[kind][key].logprobs, atol=1e-3)
        assert max(generation.logprobs) <= 1e-5


def test_the_key_is_what_makes_a_row_its_own(folders):
    """Another key gives another text; greedy rows have no chance to be told apart by."""
    asked = [request for request in requests() if request.sampling.temperature > 0]
    engine = decoder(folders["hybrid"], None, 16)
    first = texts(decode(engine, asked))
    again = texts(decode(engine, [replace(request, noise_key=request.noise_key ^ 1) for request in asked]))
    pairs = list(zip(first, again, strict=True))
    assert sum(a == b for a, b in pairs) <= 1
    assert sum(a[:3] == b[:3] for a, b in pairs) < len(pairs) / 2


def test_rejection_keeps_greedy_rows_and_is_a_function_of_the_block(folders, plain):
    """Under rejection a greedy row is still the target's own; a sampled one is repeatable, alone or beside others."""
    together = decode(decoder(folders["hybrid"], folders["hybrid-v2"], 16, 4, "rejection"), requests())
    alone = decode(decoder(folders["hybrid"], folders["hybrid-v2"], 1, 4, "rejection"), requests())
    assert texts(together) == texts(alone)
    for key, generation in together.items():
        if SETTINGS[key.row % len(SETTINGS)].temperature == 0:
            assert generation.tokens == plain["hybrid"][key].tokens
    other_block = decode(decoder(folders["hybrid"], folders["hybrid-v2"], 16, 8, "rejection"), requests())
    assert texts(together) != texts(other_block)


@pytest.mark.parametrize("drafter", [None, "v2"])
def test_samples_of_a_prompt_share_its_prefill_and_nothing_else(folders, drafter):
    """Four samples at once, one at a time, or two now and two later are the same four, and are four."""
    base = requests()[1]
    samples = [replace(base, key=RowKey(1, sample), noise_key=base.noise_key + sample) for sample in range(4)]

    def run(max_rows):
        return decode(decoder(folders["hybrid"], None if drafter is None else folders["hybrid-v2"], max_rows), samples)

    together = run(8)
    assert texts(together) == texts(run(1)) == texts(run(2))
    assert len(set(texts(together))) == 4
    cached = [generation.cached_prompt_tokens for _, generation in sorted(together.items())]
    assert cached == [0, *[len(base.tokens)] * 3]


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
@pytest.mark.parametrize("drafter", [None, "v2"])
@pytest.mark.parametrize("groups", [(1, 1, 1, 1), (2, 1, 1), (1, 3), (3, 1)])
def test_a_prompt_is_read_once_for_samples_that_come_later(folders, kind, drafter, groups):
    """Others come and go between the samples; a kept prompt is let go after the last one."""
    base, other = requests()[1], requests()[2]
    folder = None if drafter is None else folders[f"{kind}-v2"]
    samples = [replace(base, key=RowKey(1, sample), noise_key=base.noise_key + sample) for sample in range(4)]
    expected = texts(decode(decoder(folders[kind], folder, 8), samples))

    engine = decoder(folders[kind], folder, 3)
    reads, read = [], engine.target.prefill

    def counting(state, tokens, counts):
        reads.append(sum(counts.tolist()))
        return read(state, tokens, counts)

    engine.target.prefill = counting
    done, left = {}, list(samples)
    for number, size in enumerate(groups):
        while engine.num_rows + size > engine.max_rows:
            done |= {generation.key: generation for generation in engine.step()}
        group, left = left[:size], left[size:]
        engine.admit([replace(sample, num_following=len(left)) for sample in group])
        if engine.num_rows < engine.max_rows:
            engine.admit([replace(other, key=RowKey(2 + number, 0))])
        done |= {generation.key: generation for generation in engine.step()}
    while engine.num_rows:
        done |= {generation.key: generation for generation in engine.step()}
    assert texts({key: generation for key, generation in done.items() if key.row == 1}) == expected
    num_others = sum(key.row != 1 for key in done)
    assert sum(reads) == len(base.tokens) + num_others * len(other.tokens)
    cached = [done[sample.key].cached_prompt_tokens for sample in samples]
    assert cached == [0, *[len(base.tokens)] * 3]
    assert engine._kept is None
