"""The loop: all rows, each by its key, committed as they finish; bad rows are data, a failed engine is not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import EngineError, InputError, JournalError
from batchgen.schedule.admission import look_ahead
from batchgen.schedule.loop import MAX_PART_ROWS, Loop, LoopOptions
from batchgen.types import Prompt, Request, Result, RowError, RowKey, Sampling
from tests.fakes import FakeClock, FakeCodec, FakeDecoder

SAMPLING = Sampling(max_tokens=8, seed=7)


@dataclass
class MemoryJournal:
    """Keeps what is committed, one list for each commit; fails at commit number `fail_at`."""

    commits: list[list[Result]] = field(default_factory=list)
    fail_at: int = 0
    done: set[RowKey] = field(default_factory=set)

    def commit(self, results: list[Result]) -> None:
        if len(self.commits) + 1 == self.fail_at:
            raise JournalError("parts/part-000001.parquet: cannot be written (No space left on device)")
        if results:
            self.commits.append(list(results))
            self.done |= {result.key for result in results}

    @property
    def results(self) -> list[Result]:
        return [result for commit in self.commits for result in commit]

    @property
    def rows(self) -> list[int]:
        return sorted(result.key.row for result in self.results)


class Watch:
    def __init__(self) -> None:
        self.counts: list[int] = []

    def advance(self, results: list[Result]) -> None:
        self.counts.append(len(results))


def prompts(num_rows: int) -> Iterator[Prompt]:
    return (Prompt(row, text=f"<{row}>", sampling=SAMPLING) for row in range(num_rows))


def make_loop(
    rows: Iterator[Prompt],
    decoder: FakeDecoder,
    journal: MemoryJournal,
    *,
    checkpoint_s: float = 0.0,
    clock: FakeClock | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    watch: Watch | None = None,
) -> Loop:
    return Loop(
        prompts=rows,
        codec=FakeCodec(),
        decoder=decoder,
        journal=journal,
        progress=watch or Watch(),
        options=LoopOptions(checkpoint_s=checkpoint_s, attempt=2, run_id="second"),
        clock=clock or FakeClock(),
        should_stop=should_stop,
    )


@given(
    num_rows=st.sampled_from([0, 1, 7, 16, 17, 60, 61]),
    max_rows=st.sampled_from([1, 3, 17, 50]),
    checkpoint_s=st.sampled_from([0.0, 1.0, 5.0, 1e9]),
    bad=st.sets(st.integers(0, 60)),
)
@settings(max_examples=60, deadline=None)
def test_every_row_comes_out_once_with_its_own_answer(
    num_rows: int, max_rows: int, checkpoint_s: float, bad: set[int]
) -> None:
    rows = (Prompt(row, text=f"<{row}>" + " TOO LONG" * (row in bad)) for row in range(num_rows))
    journal, watch, decoder = MemoryJournal(), Watch(), FakeDecoder(max_rows)
    make_loop(rows, decoder, journal, checkpoint_s=checkpoint_s, clock=FakeClock(tick=0.1), watch=watch).run()
    assert journal.rows == list(range(num_rows))
    assert sum(watch.counts) == num_rows
    assert decoder.peak_rows <= max_rows
    for result in journal.results:
        if result.key.row in bad:
            assert (result.completion, result.error and result.error.kind) == (None, "prompt_too_long")
        else:
            assert (result.completion, result.error) == (f"<{result.key.row}>", None)


def test_answers_go_to_their_rows_whatever_order_they_finish_in() -> None:
    order = [5, 0, 4, 1, 3]
    bad = Prompt(2, error=RowError("missing_prompt", "row 2 has no prompt"))
    rows = (bad if row == 2 else Prompt(row, text=f"<{row}>") for row in range(6))
    decoder = FakeDecoder(max_rows=6, num_steps=lambda request: 1 + order.index(request.key.row))
    journal = MemoryJournal()
    make_loop(rows, decoder, journal).run()
    assert [result.key.row for result in journal.results] == [2, *order]
    assert [result.completion for result in journal.results] == [None, *(f"<{row}>" for row in order)]


def test_one_bad_row_costs_one_row() -> None:
    rows = (Prompt(row, text=f"<{row}>" + " TOO LONG" * (row == 17)) for row in range(20))
    journal, decoder = MemoryJournal(), FakeDecoder()
    make_loop(rows, decoder, journal).run()
    assert journal.rows == list(range(20))
    assert [result.key.row for result in journal.results if result.error is not None] == [17]
    assert sorted(key.row for key in decoder.admitted) == [row for row in range(20) if row != 17]


def test_bad_rows_alone_need_no_decoder_step() -> None:
    rows = (Prompt(row, error=RowError("empty_prompt", f"row {row}")) for row in range(100))
    journal, decoder = MemoryJournal(), FakeDecoder()
    make_loop(rows, decoder, journal).run()
    assert (journal.rows, decoder.steps) == (list(range(100)), 0)


def test_prompts_are_read_a_bounded_number_ahead() -> None:
    read: list[int] = []

    def lazily() -> Iterator[Prompt]:
        for prompt in prompts(1000):
            read.append(prompt.row)
            yield prompt

    ahead: list[int] = []
    decoder = FakeDecoder(max_rows=4, on_step=lambda number: ahead.append(len(read) - len(decoder.admitted)))
    make_loop(lazily(), decoder, MemoryJournal()).run()
    assert max(ahead) <= look_ahead(4)
    assert len(read) == 1000


def test_commits_follow_the_clock() -> None:
    clock = FakeClock()

    def pass_a_second(number: int) -> None:
        clock.now += 1.0

    decoder = FakeDecoder(max_rows=1, num_steps=lambda request: 1, on_step=pass_a_second)
    journal = MemoryJournal()
    make_loop(prompts(10), decoder, journal, checkpoint_s=4.0, clock=clock).run()
    assert [len(commit) for commit in journal.commits] == [4, 4, 2]


def test_a_part_never_grows_without_bound() -> None:
    decoder = FakeDecoder(max_rows=1000, num_steps=lambda request: 1)
    journal = MemoryJournal()
    make_loop(prompts(10_000), decoder, journal, checkpoint_s=1e9).run()
    assert journal.rows == list(range(10_000))
    assert max(len(commit) for commit in journal.commits) <= MAX_PART_ROWS + 1000


def test_a_stop_commits_what_finished_and_leaves_the_rest_pending() -> None:
    decoder = FakeDecoder(max_rows=4, num_steps=lambda request: 1 + request.key.row % 4)
    journal = MemoryJournal()
    make_loop(prompts(20), decoder, journal, checkpoint_s=1e9, should_stop=lambda: decoder.steps == 2).run()
    assert len(journal.commits) == 1
    assert journal.rows == [0, 1, 4]
    assert decoder.num_rows > 0


def test_an_engine_that_fails_is_no_row_error() -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")

    journal = MemoryJournal()
    decoder = FakeDecoder(max_rows=4, num_steps=lambda request: 1, on_step=fail)
    with pytest.raises(EngineError, match=r"RuntimeError: \[METAL\] .*Insufficient Memory.*run the same job again"):
        make_loop(prompts(20), decoder, journal, checkpoint_s=1e9).run()
    assert journal.rows == list(range(8))
    assert all(result.error is None for result in journal.results)


def test_an_input_that_fails_midway_keeps_what_finished() -> None:
    def broken() -> Iterator[Prompt]:
        yield from prompts(20)
        raise InputError("in.parquet: row group 1 cannot be read")

    journal, decoder = MemoryJournal(), FakeDecoder(max_rows=4, num_steps=lambda request: 1)
    with pytest.raises(InputError):
        make_loop(broken(), decoder, journal, checkpoint_s=1e9).run()
    assert journal.rows == list(range(len(decoder.admitted)))
    assert len(journal.rows) > 0


def test_a_failed_write_ends_the_loop_at_once() -> None:
    decoder = FakeDecoder(max_rows=4, num_steps=lambda request: 1)
    journal = MemoryJournal(fail_at=2)
    with pytest.raises(JournalError, match="No space left"):
        make_loop(prompts(20), decoder, journal).run()
    assert len(journal.commits) == 1
    assert decoder.steps == 2


def test_an_empty_answer_is_an_answer() -> None:
    journal = MemoryJournal()
    make_loop(prompts(1), FakeDecoder(answer=lambda request: ""), journal).run()
    (result,) = journal.results
    assert result.generation is not None
    assert (result.completion, result.error, result.generation.finish_reason) == ("", None, "stop")
    assert len(result.generation.tokens) == 1


def test_reasoning_is_split_off() -> None:
    journal = MemoryJournal()
    make_loop(prompts(1), FakeDecoder(answer=lambda request: "<think>hm</think>yes"), journal).run()
    assert [(result.completion, result.reasoning) for result in journal.results] == [("yes", "hm")]


def test_results_bear_times_and_marks() -> None:
    clock = FakeClock()

    def pass_a_second(number: int) -> None:
        clock.now += 1.0

    decoder = FakeDecoder(max_rows=1, num_steps=lambda request: 2, on_step=pass_a_second)
    journal = MemoryJournal()
    make_loop(prompts(3), decoder, journal, clock=clock).run()
    assert [result.queue_s for result in journal.results] == [0.0, 2.0, 4.0]
    assert {(result.seed, result.attempt, result.run_id) for result in journal.results} == {(7, 2, "second")}
    assert [result.prompt_tokens for result in journal.results] == [3, 3, 3]


def test_the_budget_reaches_the_decoder_and_the_context_bounds_it() -> None:
    budgets: dict[int, int] = {}

    def note(request: Request) -> str:
        budgets[request.key.row] = request.max_tokens
        return "x"

    texts = ["a", "a" * (FakeCodec.context_length - 3)]
    rows = (Prompt(row, text=text, sampling=SAMPLING) for row, text in enumerate(texts))
    make_loop(rows, FakeDecoder(answer=note), MemoryJournal()).run()
    assert budgets == {0: 8, 1: 3}


def test_each_row_bears_its_own_seed_and_none_where_nothing_was_decoded() -> None:
    bad = RowError("missing_prompt", "row 1 has no prompt")
    rows = [
        Prompt(0, text="a", sampling=Sampling(seed=5)),
        Prompt(1, error=bad, sampling=Sampling(seed=6)),
    ]
    journal = MemoryJournal()
    make_loop(iter(rows), FakeDecoder(), journal).run()
    assert {result.key.row: result.seed for result in journal.results} == {0: 5, 1: None}


@given(
    numbers=st.lists(st.integers(1, 9), max_size=12),
    max_rows=st.integers(1, 7),
    done=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 8)).map(lambda key: RowKey(*key))),
    bad=st.sets(st.integers(0, 11)),
)
@settings(max_examples=60, deadline=None)
def test_just_the_samples_that_are_missing_come_out(
    numbers: list[int], max_rows: int, done: set[RowKey], bad: set[int]
) -> None:
    rows = [
        Prompt(row, text=f"<{row}>" + " TOO LONG" * (row in bad), sampling=Sampling(n=number))
        for row, number in enumerate(numbers)
    ]
    journal, decoder = MemoryJournal(done=set(done)), FakeDecoder(max_rows)
    make_loop(iter(rows), decoder, journal).run()
    wanted = [RowKey(row, sample) for row, number in enumerate(numbers) for sample in range(number)]
    assert sorted(result.key for result in journal.results) == [key for key in wanted if key not in done]
    assert all((result.error is not None) == (result.key.row in bad) for result in journal.results)


def test_samples_of_a_prompt_come_together_and_say_how_many_follow() -> None:
    seen: list[tuple[int, int, int]] = []

    class Noting(FakeDecoder):
        def admit(self, requests: Sequence[Request]) -> None:
            seen.extend((*request.key, request.num_following) for request in requests)
            super().admit(requests)

    rows = (Prompt(row, text=f"<{row}>", sampling=Sampling(n=3)) for row in range(3))
    make_loop(rows, Noting(max_rows=2, num_steps=lambda request: 1), MemoryJournal()).run()
    assert seen == [
        *((0, 0, 1), (0, 1, 1), (0, 2, 0)),
        *((1, 0, 2), (1, 1, 0), (1, 2, 0)),
        *((2, 0, 1), (2, 1, 1), (2, 2, 0)),
    ]


def test_a_prompt_of_many_samples_waits_for_no_more_reading() -> None:
    read: list[int] = []

    def lazily() -> Iterator[Prompt]:
        for row in range(5):
            read.append(row)
            yield Prompt(row, text="a", sampling=Sampling(n=100))

    first_read: list[int] = []
    decoder = FakeDecoder(max_rows=4, on_step=lambda number: first_read.append(len(read)))
    make_loop(lazily(), decoder, MemoryJournal()).run()
    assert first_read[0] == 1


def test_rows_wait_where_they_do_not_fit_and_one_that_never_will_is_an_error_row() -> None:
    lengths = [5, 9, 5, 30, 4, 9, 2]
    rows = (Prompt(row, text="x" * length) for row, length in enumerate(lengths))
    decoder, journal = FakeDecoder(max_rows=4, room=12), MemoryJournal()
    make_loop(rows, decoder, journal).run()
    assert journal.rows == list(range(len(lengths)))
    errors = {result.key.row: result.error for result in journal.results if result.error is not None}
    assert sorted(errors) == [3]
    assert errors[3].kind == "too_large"
    assert "30 tokens of prompt" in errors[3].message
    assert decoder.peak_rows == 2
