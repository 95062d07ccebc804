"""Drawn acceptance: the mean that was asked for, on decisions that are otherwise the real ones."""

import mlx.core as mx
import numpy as np
import pytest

from batchgen.bench.geometry_verdicts import DrawnVerdicts, chance_of, draw_counts
from batchgen.engine.arrays import read_int_rows, read_ints
from batchgen.engine.sampling.coupling import Proposal, decide
from batchgen.engine.sampling.rules import Rules

ROWS, BLOCK, VOCAB = 3, 4, 11


@pytest.mark.parametrize(("acceptance", "block"), [(1.0, 8), (2.5, 3), (5.33, 8), (8.0, 8), (15.2, 16)])
def test_chance_gives_the_mean(acceptance: float, block: int) -> None:
    chance = chance_of(acceptance, block)
    assert sum(chance**k for k in range(block)) == pytest.approx(acceptance)


@pytest.mark.parametrize(("num_rounds", "num_rows", "near"), [(32, 1, 0.1), (16, 8, 0.03), (2000, 2, 0.001)])
@pytest.mark.parametrize("acceptance", [1.0, 3.0, 5.33, 8.0])
def test_drawn_mean_is_the_wanted_one(acceptance: float, num_rounds: int, num_rows: int, near: float) -> None:
    counts = draw_counts(acceptance, 8, num_rounds, num_rows)
    assert counts.shape == (num_rounds, num_rows)
    assert counts.min() >= 0
    assert counts.max() <= 7
    assert counts.mean() + 1 == pytest.approx(acceptance, abs=near)


def test_drawn_counts_are_truncated_geometric() -> None:
    counts, chance = draw_counts(4.0, 8, 4000, 2), chance_of(4.0, 8)
    shares = np.bincount(counts.ravel(), minlength=8) / counts.size
    expected = [chance**k * (1 - chance) for k in range(7)] + [chance**7]
    assert shares == pytest.approx(expected, abs=1e-3)


def test_only_the_count_is_replaced() -> None:
    """Of four rows: one that takes what was drawn, one with a shorter block, one that is empty; tokens stay."""
    mx.random.seed(0)
    rules = Rules([None] * ROWS)
    logits, anchors = mx.random.normal((ROWS, BLOCK, VOCAB)), mx.array([1, 2, 3], mx.int32)
    proposal, lengths = Proposal(mx.zeros((ROWS, BLOCK - 1), mx.int32)), mx.array([4, 2, 0], mx.int32)
    verdicts = DrawnVerdicts(np.array([[2, 3, 3], [0, 0, 0]], np.int32))
    arguments = (rules, "shared", logits, anchors, proposal, lengths)
    decided = decide(*arguments)  # type: ignore[arg-type]
    given = [verdicts(*arguments) for _ in range(3)]  # type: ignore[arg-type]
    for decision in given:
        assert read_int_rows(decision.tokens) == read_int_rows(decided.tokens)
        assert decision.logprobs is None
    assert [read_ints(decision.num_accepted) for decision in given] == [[2, 1, 0], [0, 0, 0], [2, 1, 0]]
    assert (verdicts.num_rounds, verdicts.num_live) == (3, 2)
    assert verdicts.tokens() == 5 + 2 + 5
    assert verdicts.tokens(first_round=1) == 2 + 5
    assert verdicts.tokens(first_round=3) == 0


def test_without_counts_the_decision_is_the_real_one() -> None:
    rules, verdicts = Rules([None]), DrawnVerdicts(None)
    assert verdicts.num_live == 0
    logits = mx.array([[[0.0, 1.0], [1.0, 0.0]]])
    arguments = (rules, "shared", logits, mx.array([0]), Proposal(mx.array([[1]])), mx.array([2]))
    decision = verdicts(*arguments)  # type: ignore[arg-type]
    assert read_ints(decision.num_accepted) == [1]
    assert verdicts.tokens() == 2
