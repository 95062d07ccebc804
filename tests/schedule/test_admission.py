"""Admission: similar lengths together, the oldest always, never more than there are places."""

from hypothesis import given
from hypothesis import strategies as st

from batchgen.schedule.admission import choose, look_ahead

LENGTHS = st.lists(st.integers(1, 5000), max_size=40)


@given(LENGTHS, st.integers(-1, 50))
def test_the_oldest_goes_and_places_are_filled_but_not_overfilled(lengths: list[int], num_free: int) -> None:
    chosen = choose(lengths, num_free)
    assert len(chosen) == max(0, min(num_free, len(lengths)))
    assert chosen == sorted(chosen)
    assert len(dict.fromkeys(chosen)) == len(chosen)
    assert not chosen or chosen[0] == 0


def test_prompts_of_similar_length_go_together() -> None:
    assert choose([8000, *[20] * 10, 8000, 7900], 3) == [0, 11, 12]
    assert choose([20, 8000, 21, 8000, 19], 3) == [0, 2, 4]


def test_equal_likeness_goes_by_age() -> None:
    assert choose([10, 12, 8, 12, 8], 3) == [0, 1, 2]


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60), st.integers(1, 4))
def test_no_row_waits_longer_than_there_are_older_rows(lengths: list[int], num_free: int) -> None:
    waiting = list(enumerate(lengths))
    rounds = 0
    while waiting:
        chosen = choose([length for _, length in waiting], num_free)
        for position in chosen:
            assert rounds <= waiting[position][0]
        waiting = [entry for position, entry in enumerate(waiting) if position not in chosen]
        rounds += 1


def test_look_ahead_is_bounded() -> None:
    assert [look_ahead(max_rows) for max_rows in (1, 4, 32)] == [16, 16, 128]
