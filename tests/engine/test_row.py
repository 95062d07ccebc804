"""Accept and bonus bookkeeping of one row: what a verify pass leaves in tokens and counters."""

import pytest

from batchgen.engine.row import Row
from batchgen.types import Request, RowKey

EOS = 99


def _row(max_tokens=100, block_size=8):
    row = Row(
        Request(RowKey(0, 0), (1, 2, 3), max_tokens), 0.0, 0.0, frozenset({EOS}), acceptance_counts=[0] * block_size
    )
    row.begin(10, 1.0)
    return row


def _holds(row):
    assert len(row.tokens) == 1 + row.accepted_tokens + row.verify_passes
    assert sum(row.acceptance_counts) == row.verify_passes
    assert sum(count * passes for count, passes in enumerate(row.acceptance_counts)) == row.accepted_tokens
    assert row.accepted_tokens <= row.drafted_tokens


@pytest.mark.parametrize(
    ("choice", "num_accepted", "tokens", "accepted", "drafted", "reason"),
    [
        ([20, 21, 22, 23], 0, [20], 0, 3, None),
        ([20, 21, 22, 23], 2, [20, 21, 22], 2, 3, None),
        ([20, 21, 22, 23], 3, [20, 21, 22, 23], 3, 3, None),
        # The end token is the target's own choice: the draft it replaced counts, those behind it do not.
        ([20, EOS, 22, 23], 1, [20, EOS], 1, 2, "stop"),
        # The end token was an accepted draft: it counts as the pass's own token, and nothing behind it counts.
        ([20, EOS, 22, 23], 3, [20, EOS], 1, 1, "stop"),
        ([EOS, 21, 22, 23], 3, [EOS], 0, 0, "stop"),
        ([EOS, 21, 22, 23], 0, [EOS], 0, 1, "stop"),
        # The end token as the bonus behind a fully accepted block.
        ([20, 21, 22, EOS], 3, [20, 21, 22, EOS], 3, 3, "stop"),
    ],
)
def test_one_pass(choice, num_accepted, tokens, accepted, drafted, reason):
    row = _row()
    row.emit(choice, num_accepted, 4)
    assert row.tokens == [10, *tokens]
    assert (row.accepted_tokens, row.drafted_tokens, row.finish_reason) == (accepted, drafted, reason)
    _holds(row)


def test_three_passes_give_the_documented_acceptance_length():
    row = _row()
    for num_accepted in (4, 0, 2):
        row.emit(range(20, 25), num_accepted, 5)
    assert (row.verify_passes, row.drafted_tokens, row.accepted_tokens) == (3, 12, 6)
    assert row.acceptance_counts == [1, 0, 1, 0, 1, 0, 0, 0]
    assert (row.accepted_tokens + row.verify_passes) / row.verify_passes == 3.0
    _holds(row)


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_budget_is_never_passed_and_never_missed(max_tokens):
    row = _row(max_tokens)
    while row.finish_reason is None:
        block = row.block_length(4)
        assert block <= row.remaining_tokens
        row.emit(range(20, 20 + block), block - 1, block)
    assert len(row.tokens) == max_tokens
    assert row.finish_reason == "length"
    _holds(row)


def test_an_end_token_on_the_last_place_of_the_budget_is_a_stop():
    row = _row(max_tokens=2)
    row.emit([EOS], 0, 1)
    assert (row.tokens, row.finish_reason) == ([10, EOS], "stop")


def test_an_end_token_first_finishes_without_a_pass():
    row = Row(Request(RowKey(0, 0), (1,), 5), 0.25, 0.5, frozenset({EOS}), acceptance_counts=[0])
    row.begin(EOS, 1.0)
    generation = row.generation(1.0)
    assert (generation.tokens, generation.finish_reason, generation.verify_passes) == ((EOS,), "stop", 0)
    assert (generation.queue_s, generation.prefill_s, generation.decode_s) == (0.25, 0.5, 0.0)


def test_length_is_what_the_caches_hold():
    row = _row()
    assert row.length == 3
    row.emit([20, 21], 1, 2)
    assert row.length == 5
