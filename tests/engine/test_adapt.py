"""The choice of a round's block: from measured costs and acceptance, in a world where both are known."""

import random

import pytest

from batchgen.engine.adapt import Acceptance, BlockChooser, candidates


def _live(chooser, num_rounds, cost, rate, num_rows=4, seed=0):
    """Rounds in a world where a round of L costs cost(L) seconds and each draft stands with probability `rate`.

    Returns seconds and tokens of all rounds, and the blocks that were used.
    """
    rng = random.Random(seed)
    seconds, tokens, blocks = 0.0, 0, []
    for _ in range(num_rounds):
        block = chooser.choose(num_rows)
        took = cost(block) * rng.uniform(0.97, 1.03)
        chooser.note_round(num_rows, block, took)
        for _ in range(num_rows):
            accepted = 0
            while accepted < block - 1 and rng.random() < rate:
                accepted += 1
            if block > 1:
                chooser.note_row(block - 1, accepted)
            tokens += accepted + 1
        seconds += took
        blocks.append(block)
    return seconds, tokens, blocks


def _expected(block, rate):
    return sum(rate**place for place in range(block))


COSTS = {
    "flat": lambda block: 0.020 + 0.0001 * block,
    "steep": lambda block: 0.004 * block,
    "middle": lambda block: 0.010 + 0.003 * block,
    "jump": lambda block: 0.020 if block <= 4 else 0.060,
}


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", COSTS)
def test_comes_within_a_few_percent_of_the_best_fixed_block(name, rate):
    cost, chooser = COSTS[name], BlockChooser(16)
    seconds, tokens, _ = _live(chooser, 3000, cost, rate)
    best = max(4 * _expected(block, rate) / cost(block) for block in candidates(16))
    assert tokens / seconds > 0.94 * best


def test_a_drafter_that_is_never_right_costs_little():
    """Plain decoding within three percent, though a block costs twice as much."""
    chooser = BlockChooser(8)
    seconds, tokens, blocks = _live(chooser, 2000, lambda block: 0.02 if block == 1 else 0.04, 0.0)
    assert tokens == 4 * 2000
    assert seconds < 2000 * 0.02 * 1.03
    assert blocks.count(1) > 1900


def test_speculation_comes_back_when_it_pays_again():
    chooser = BlockChooser(8)
    _live(chooser, 1000, COSTS["flat"], 0.0)
    _, _, blocks = _live(chooser, 3000, COSTS["flat"], 0.9, seed=1)
    assert blocks[-500:].count(8) > 490


def test_a_clock_that_stands_still_leaves_the_whole_block():
    chooser = BlockChooser(8)
    blocks = []
    for _ in range(100):
        blocks.append(chooser.choose(2))
        chooser.note_round(2, blocks[-1], 0.0)
    assert blocks.count(8) > 90


def test_rounds_beside_other_work_teach_no_costs():
    chooser = BlockChooser(8)
    for _ in range(20):
        chooser.note_round(2, 8, None)
        chooser.note_round(2, 1, None)
    assert "ms a round by block_size, 2 rows" not in chooser.facts() or chooser.choose(2) in (1, 8)
    assert chooser.used == {8: 20, 1: 20}


def test_expected_tokens_are_those_of_the_rate():
    acceptance = Acceptance(7)
    rng = random.Random(1)
    for _ in range(20_000):
        accepted = 0
        while accepted < 7 and rng.random() < 0.7:
            accepted += 1
        acceptance.note(7, accepted)
    assert acceptance.expected_tokens(1) == 1
    assert acceptance.expected_tokens(8) == pytest.approx(_expected(8, 0.7), rel=0.1)


def test_facts_say_what_was_chosen_and_why():
    chooser = BlockChooser(8)
    _live(chooser, 200, COSTS["flat"], 0.8)
    facts = chooser.facts()
    assert facts["rounds by block_size"].endswith("%")
    assert "8: 2" in facts["ms a round by block_size, 4 rows"]
    assert facts["expected tokens a round by block_size"].startswith("1: 1.00, ")


@pytest.mark.parametrize(
    ("largest", "expected"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 3, 4, 5)), (16, (1, 2, 3, 4, 6, 8, 12, 16))]
)
def test_candidates(largest, expected):
    assert candidates(largest) == expected
