"""Admission: similar lengths together, the oldest always, never more than there are places, samples side by side."""

from hypothesis import given
from hypothesis import strategies as st

from batchgen.schedule.admission import Admitted, Waiting, choose, look_ahead

WAITING = st.lists(st.builds(Waiting, st.integers(1, 5000), st.integers(1, 9), st.just(False)), max_size=40)


def positions(lengths: list[int], num_free: int) -> list[int]:
    """What is chosen of prompts with one sample each."""
    return [position for position, _ in choose([Waiting(length) for length in lengths], num_free)]


@given(WAITING, st.integers(-1, 50))
def test_the_oldest_goes_and_places_are_filled_but_not_overfilled(waiting: list[Waiting], num_free: int) -> None:
    chosen = choose(waiting, num_free)
    num_waiting = sum(prompt.num_samples for prompt in waiting)
    assert sum(num_samples for _, num_samples in chosen) == max(0, min(num_free, num_waiting))
    assert all(1 <= num_samples <= waiting[position].num_samples for position, num_samples in chosen)
    assert chosen == sorted(chosen)
    assert len({position for position, _ in chosen}) == len(chosen)
    assert not chosen or chosen[0].position == 0


@given(WAITING, st.integers(1, 50))
def test_what_is_left_of_a_prompt_goes_first_then_the_oldest(waiting: list[Waiting], num_free: int) -> None:
    chosen = choose([Waiting(9000, 3, is_begun=True), *waiting], num_free)
    assert chosen[0] == (0, min(3, num_free))
    assert len(chosen) == 1 or chosen[1].position == 1


@given(WAITING, st.integers(1, 50))
def test_at_most_one_prompt_is_half_in(waiting: list[Waiting], num_free: int) -> None:
    chosen = choose(waiting, num_free)
    assert sum(num_samples < waiting[position].num_samples for position, num_samples in chosen) <= 1


def test_prompts_of_similar_length_go_together() -> None:
    assert positions([8000, *[20] * 10, 8000, 7900], 3) == [0, 11, 12]
    assert positions([20, 8000, 21, 8000, 19], 3) == [0, 2, 4]


def test_equal_likeness_goes_by_age() -> None:
    assert positions([10, 12, 8, 12, 8], 3) == [0, 1, 2]


def test_samples_of_a_prompt_go_before_other_prompts() -> None:
    assert choose([Waiting(10, 4), Waiting(10, 4), Waiting(10, 4)], 6) == [(0, 4), (1, 2)]
    assert choose([Waiting(10, 9), Waiting(10, 1)], 6) == [(0, 6)]


@given(
    st.lists(st.builds(Waiting, st.integers(1, 9000), st.integers(1, 4), st.just(False)), min_size=1, max_size=60),
    st.data(),
)
def test_no_prompt_waits_for_more_rounds_than_there_are_older_ones(prompts: list[Waiting], data: st.DataObject) -> None:
    waiting = list(enumerate(prompts))
    rounds = 0
    while waiting:
        chosen = dict(choose([prompt for _, prompt in waiting], data.draw(st.integers(1, 5))))
        begun = [waiting[position] for position in chosen if not waiting[position][1].is_begun]
        assert all(rounds <= number for number, _ in begun)
        rounds += bool(begun)
        rest = [
            (number, prompt._replace(num_samples=prompt.num_samples - chosen[position], is_begun=True))
            if position in chosen
            else (number, prompt)
            for position, (number, prompt) in enumerate(waiting)
        ]
        left = [entry for entry in rest if entry[1].num_samples]
        waiting = sorted(left, key=lambda entry: not entry[1].is_begun)


def test_look_ahead_is_bounded() -> None:
    assert [look_ahead(max_rows) for max_rows in (1, 4, 32)] == [16, 16, 128]


def test_at_the_end_the_rows_that_may_become_longest_go_first() -> None:
    waiting = [Waiting(10, max_tokens=5), Waiting(90, max_tokens=50), Waiting(12, max_tokens=50), Waiting(11)]
    assert [one.position for one in choose(waiting, 2, are_all=True)] == [1, 2]
    assert [one.position for one in choose(waiting, 3, are_all=True)] == [0, 1, 2]
    assert [one.position for one in choose(waiting, 2)] == [0, 3]
    equal = [Waiting(20), Waiting(8000), Waiting(21), Waiting(8000), Waiting(19)]
    assert [one.position for one in choose(equal, 3, are_all=True)] == [0, 2, 4]


def test_at_the_end_too_a_prompt_that_is_begun_goes_on_first() -> None:
    waiting = [Waiting(10, 2, is_begun=True, max_tokens=5), Waiting(90, max_tokens=50)]
    assert choose(waiting, 2, are_all=True) == [Admitted(0, 2)]
