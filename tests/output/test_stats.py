"""The definitions of the figures."""

import pytest

from batchgen.output.stats import Totals, tokens_per_s
from batchgen.types import Generation, RowKey
from tests.fakes import make_error, make_result


def with_counts(row: int, *, passes: int, accepted: int, drafted: int) -> Generation:
    tokens = tuple(range(1 + passes + accepted))
    return Generation(RowKey(row, 0), tokens, "length", 5, 0, passes, drafted, accepted, (), 0.5, 0.5)


def test_acceptance_length_of_a_group_is_of_sums_not_a_mean_of_means() -> None:
    totals = Totals()
    totals.add_result(make_result(0, generation=with_counts(0, passes=3, accepted=6, drafted=12), prompt_tokens=5))
    assert totals.acceptance_length == (6 + 3) / 3
    totals.add_result(make_result(1, generation=with_counts(1, passes=1, accepted=0, drafted=4), prompt_tokens=5))
    assert totals.acceptance_length == (6 + 4) / 4
    assert (totals.drafted_tokens, totals.accepted_tokens, totals.verify_passes) == (16, 6, 4)
    assert (totals.prompt_tokens, totals.completion_tokens) == (10, 10 + 2)


def test_no_passes_are_no_figure() -> None:
    totals = Totals()
    assert totals.acceptance_length is None
    totals.add_result(make_result(0, generation=with_counts(0, passes=0, accepted=0, drafted=0)))
    assert totals.acceptance_length is None
    assert totals.completion_tokens == 1


def test_errors_and_empties_are_counted_apart() -> None:
    totals = Totals()
    for result in (make_error(0), make_error(1), make_error(2, "invalid_utf8"), make_result(3, completion="")):
        totals.add_result(result)
    assert dict(totals.errors) == {"missing_prompt": 2, "invalid_utf8": 1}
    assert (totals.num_rows, totals.num_errors, totals.num_ok, totals.num_empty) == (4, 3, 1, 1)


@pytest.mark.parametrize(("tokens", "seconds", "speed"), [(100, 4.0, 25.0), (0, 4.0, 0.0), (5, 0.0, None)])
def test_tokens_per_second(tokens: int, seconds: float, speed: float | None) -> None:
    assert tokens_per_s(tokens, seconds) == speed
