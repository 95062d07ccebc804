"""Faults that batched speculative decoders are known to have with sampling, each as a test that would see it.

Where a fault can be put in by one patch, it is, and the test's measure has to move.
"""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from batchgen.engine.drafters import drawing
from batchgen.engine.sampling.noise import Stream, gumbel
from batchgen.engine.sampling.rules import Rules
from batchgen.types import Request, RowKey, Sampling, ThinkingLimit
from tests.engine.builders import prompt_tokens
from tests.engine.sampling.chain import keys
from tests.engine.sampling.rows import EOS, MAX_TOKENS, decode, decoder, texts
from tests.engine.sampling.scripts import ScriptedGrammar, StopAt, counts_hold, no_thirds

WARM = Sampling(temperature=1.0)
KEYS = keys(64, seed=9)
KINDS = ("hybrid", "qwen3")


def requests(settings, length=12, same_prompt=False):
    """One row for each of the settings."""
    return [
        Request(RowKey(row, 0), prompt_tokens(0 if same_prompt else row, length), MAX_TOKENS, sampling, KEYS[row])
        for row, sampling in enumerate(settings)
    ]


def speculate(folders, asked, kind="hybrid", block=8, coupling="shared", max_rows=32):
    return decode(decoder(folders[kind], folders[f"{kind}-v2"], max_rows, block, coupling), asked)


def num_accepted(done):
    return sum(generation.accepted_tokens for generation in done.values())


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize("kind", KINDS)
def test_bans_hold_behind_the_first_token(monkeypatch, folders, kind, coupling):
    """Not only there, as where processors are applied in the prompt's pass alone."""
    settings = [Sampling(ignore_eos=True), replace(WARM, ignore_eos=True)] * 6
    free = speculate(folders, requests(settings), kind, coupling=coupling)
    counts = np.bincount([token for text in texts(free) for token in text], minlength=96)
    banned = [int(token) for token in np.argsort(-counts)[:3]]
    assert counts[banned].sum() > 50
    bias = tuple((token, -1e4) for token in banned)
    asked = requests([replace(sampling, logit_bias=bias) for sampling in settings])

    def num_banned():
        done = speculate(folders, asked, kind, coupling=coupling)
        assert num_accepted(done) > 20
        return sum(token in banned for text in texts(done) for token in text)

    assert num_banned() == 0
    original = Rules.adjust

    def adjust(self, logits, tokens, allowed):
        is_prompt = bool((self.positions == 0).all())
        return original(self, logits, tokens, allowed) if is_prompt else logits.astype(mx.float32)

    monkeypatch.setattr(Rules, "adjust", adjust)
    assert num_banned() > 20


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize("kind", KINDS)
def test_identical_prompts_have_texts_of_their_own(folders, kind, coupling):
    """Unless they have one key, and then one text: no row number, slot or order takes part."""
    asked = requests([WARM] * 4, same_prompt=True)
    done = speculate(folders, asked, kind, coupling=coupling)
    assert len(set(texts(done))) == 4
    one_key = [replace(one, noise_key=KEYS[2]) for one in asked]
    assert texts(speculate(folders, one_key, kind, coupling=coupling)) == [done[RowKey(2, 0)].tokens] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_joins_later_keeps_its_own_settings(folders, kind):
    """Greedy among hot ones, hot among greedy ones, and others: two join at a time while the first still decode."""
    settings = [
        Sampling(temperature=1.3),
        Sampling(),
        Sampling(temperature=0.7, top_p=0.5),
        Sampling(repetition_penalty=2.0),
        Sampling(temperature=1.3, top_k=3, frequency_penalty=0.5),
        Sampling(logit_bias=((5, 50.0),)),
        Sampling(temperature=0.4, min_p=0.3),
        WARM,
    ]
    settings = [replace(sampling, ignore_eos=True) for sampling in settings]
    alone = texts(decode(decoder(folders[kind], None, 1), requests(settings)))
    assert len(set(alone)) == len(alone)
    engine = decoder(folders[kind], folders[f"{kind}-v2"], 8, 4)
    assert texts(decode(engine, requests(settings), per_step=2)) == alone
    backwards = texts(decode(engine, requests(settings)[::-1], per_step=1))
    assert backwards == alone


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_advance_by_their_own_acceptance(folders, kind, coupling):
    """Every row makes as many passes in a batch of 12 as alone, not those of the least lucky one beside it."""
    settings = [replace(sampling, ignore_eos=True) for sampling in (WARM, Sampling(), Sampling(temperature=0.6))] * 4
    together = speculate(folders, requests(settings), kind, 5, coupling)
    alone = speculate(folders, requests(settings), kind, 5, coupling, max_rows=1)
    for key, generation in together.items():
        assert counts_hold(generation)
        assert generation.tokens == alone[key].tokens
        assert generation.acceptance_counts == alone[key].acceptance_counts
        assert generation.drafted_tokens == alone[key].drafted_tokens
    passes = [generation.verify_passes for generation in together.values()]
    assert len(set(passes)) > 4
    # If all advanced by the least acceptance, hardly a draft would stand in 12 rows.
    assert num_accepted(together) > 0.5 * sum(passes)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_drawn_by_the_noise_of_the_choice(monkeypatch, folders, kind):
    """Other noise gives the same texts, since drafts never change them, and fewer drafts that stand.

    At temperatures at which these targets leave much to chance: where one token is nearly certain, any noise agrees.
    """
    asked = requests([Sampling(temperature=temperature, ignore_eos=True) for temperature in (2.0, 3.0)] * 16)
    shared = speculate(folders, asked, kind)
    monkeypatch.setattr(
        drawing, "gumbel", lambda keys, positions, tokens, stream: gumbel(keys, positions, tokens, Stream.DRAFT)
    )
    independent = speculate(folders, asked, kind)
    assert texts(independent) == texts(shared)
    rates = [
        num_accepted(done) / sum(generation.verify_passes for generation in done.values())
        for done in (shared, independent)
    ]
    assert rates[0] > 1.1 * rates[1] > 0


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_the_models_own(folders, kind, coupling):
    """One number a token, of bonus tokens and drafts alike: what mlx-lm's model gives for the finished text."""
    settings = [Sampling(ignore_eos=True), replace(WARM, ignore_eos=True), Sampling(temperature=0.7, top_p=0.9)] * 3
    asked = requests(settings)
    done = speculate(folders, asked, kind, coupling=coupling)
    assert num_accepted(done) > 20
    model, _ = load_model(folders[kind])
    for one in asked:
        generation = done[one.key]
        logits = model(mx.array([[*one.tokens, *generation.tokens]]))[0, len(one.tokens) - 1 : -1].astype(mx.float32)
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        expected = logprobs[np.arange(len(generation.tokens)), list(generation.tokens)]
        # Temperature and filters do not enter: they say which token is drawn, not what the model thinks of it.
        np.testing.assert_allclose(generation.logprobs, expected, atol=2e-3)
        assert min(generation.logprobs) < -0.01


@pytest.mark.parametrize(("kind", "block"), [("hybrid", 8), ("qwen3", 3)])
def test_everything_at_once_is_plain_decoding(folders, kind, block):
    """Grammar, thinking budget, stop strings, penalties, bias and filters together, with drafts, beside other rows."""

    def rows(stops):
        made = requests([_everything(row % 10) for row in range(20)])
        return [
            replace(
                one,
                grammar_matcher=ScriptedGrammar(no_thirds) if row % 2 else None,
                thinking_limit=None if row % 2 else ThinkingLimit(row // 2, None, 50, is_open=True),
                stop_matcher=StopAt(stops[row]) if stops else None,
            )
            for row, one in enumerate(made)
        ]

    def _everything(row):
        return Sampling(
            temperature=(0.0, 0.8, 1.2)[row % 3],
            top_p=0.95,
            min_p=0.02,
            top_k=30,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.1,
            logit_bias=((7, 1.0), (50, -3.0)),
            min_tokens=row,
        )

    engine = decoder(folders[kind], None, 20)
    unstopped = texts(decode(engine, rows(None)))
    stops = [text[-3:-1] or text for text in unstopped]
    plain = texts(decode(engine, rows(stops)))
    done = speculate(folders, rows(stops), kind, block)
    assert texts(done) == plain
    assert all(counts_hold(generation) for generation in done.values())
    assert sum(len(a) < len(b) for a, b in zip(plain, unstopped, strict=True)) >= 10
    assert num_accepted(done) > 10
    for row, text in enumerate(plain):
        if row % 2 == 0 and len(text) > row // 2:
            assert 50 in text[: row // 2 + 1] or EOS & set(text)
