"""What a person sees while a job runs: a bar on a terminal, a plain line every few seconds elsewhere.

Shows only what it is told; holds nothing that a result depends on. Figures cover the rows finished in this run, the
count covers all rows done.
"""

import os
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TextIO

from tqdm import tqdm

from batchgen.output.stats import Totals, tokens_per_s
from batchgen.types import Result

LINE_INTERVAL_S = 5.0


class Progress(Protocol):
    """`total` is told once, before the first row; `totals` and `decode_s` are of this run."""

    totals: Totals

    @property
    def decode_s(self) -> float:
        """Seconds from `start` to `close`, or to now; 0 before `start`."""
        ...

    def phase(self, name: str) -> None:
        """Names what goes on now, for the time in which no row can finish."""
        ...

    def start(self, num_done: int, num_errors: int, num_rows: int) -> None:
        """Rows begin to be decoded, with these counts from earlier runs and in all."""
        ...

    def advance(self, results: Sequence[Result]) -> None:
        """These rows finished (maybe none); called at every step, so that time shows."""
        ...

    def close(self) -> None:
        """Shows the last state and ends."""
        ...


class SilentProgress:
    """Keeps the figures and shows nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.totals = Totals()
        self._clock = clock
        self._started: float | None = None
        self._ended: float | None = None
        self._num_before = 0
        self._num_errors_before = 0
        self._num_rows = 0

    @property
    def decode_s(self) -> float:
        if self._started is None:
            return 0.0
        return (self._clock() if self._ended is None else self._ended) - self._started

    def phase(self, name: str) -> None:
        pass

    def start(self, num_done: int, num_errors: int, num_rows: int) -> None:
        self._num_before, self._num_errors_before, self._num_rows = num_done, num_errors, num_rows
        self._started = self._clock()

    def advance(self, results: Sequence[Result]) -> None:
        for result in results:
            self.totals.add_result(result)

    def close(self) -> None:
        self._ended = self._clock()

    def _num_done(self) -> int:
        return self._num_before + self.totals.num_rows

    def _figures(self) -> str:
        speed, acceptance = tokens_per_s(self.totals.completion_tokens, self.decode_s), self.totals.acceptance_length
        return ", ".join(
            [
                "- tok/s" if speed is None else f"{speed:.1f} tok/s",
                "acceptance -" if acceptance is None else f"acceptance {acceptance:.2f}",
                f"errors {self._num_errors_before + self.totals.num_errors}",
            ]
        )

    def _time_left(self) -> str:
        if self._num_done() >= self._num_rows:
            return "0:00:00"
        if self.totals.num_rows == 0:
            return "-"
        return clock_text(self.decode_s / self.totals.num_rows * (self._num_rows - self._num_done()))


class LineProgress(SilentProgress):
    """One whole line to a log at each phase, at the start, at the end, and every few seconds between."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], interval_s: float = LINE_INTERVAL_S) -> None:
        super().__init__(clock)
        self._stream = stream
        self._interval_s = interval_s
        self._last_line = clock()

    def phase(self, name: str) -> None:
        self._write(name)

    def start(self, num_done: int, num_errors: int, num_rows: int) -> None:
        super().start(num_done, num_errors, num_rows)
        self._write_state()

    def advance(self, results: Sequence[Result]) -> None:
        super().advance(results)
        if self._clock() - self._last_line >= self._interval_s:
            self._write_state()

    def close(self) -> None:
        super().close()
        if self._started is not None:
            self._write_state()

    def _write_state(self) -> None:
        done, rows = self._num_done(), self._num_rows
        share = f"{100 * done // rows}%" if rows else "100%"
        self._write(f"{done}/{rows} rows ({share}), {self._figures()}, {self._time_left()} left")

    def _write(self, line: str) -> None:
        self._last_line = self._clock()
        self._stream.write(line + "\n")
        self._stream.flush()


class BarProgress(SilentProgress):
    """A tqdm bar; phases before and after it are plain lines."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._stream = stream
        self._bar: tqdm[NoReturn] | None = None

    def phase(self, name: str) -> None:
        if self._bar is None:
            self._stream.write(name + "\n")
            self._stream.flush()
        else:
            self._bar.set_description_str(name)

    def start(self, num_done: int, num_errors: int, num_rows: int) -> None:
        super().start(num_done, num_errors, num_rows)
        self._bar = tqdm(
            total=num_rows,
            initial=num_done,
            file=self._stream,
            unit=" rows",
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows{postfix}",
        )

    def advance(self, results: Sequence[Result]) -> None:
        super().advance(results)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._figures()}, {self._time_left()} left", refresh=False)
            self._bar.update(len(results))

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def make_progress(stream: TextIO, clock: Callable[[], float], quiet: bool) -> Progress:
    """The form that fits the stream: nothing if quiet, a bar on a terminal, lines elsewhere."""
    if quiet:
        return SilentProgress(clock)
    return BarProgress(stream, clock) if _can_show_bar(stream) else LineProgress(stream, clock)


def _can_show_bar(stream: TextIO) -> bool:
    """Whether it is a terminal with a size; tqdm shows nothing on one of 0 lines, which some recorders give."""
    if not stream.isatty():
        return False
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        return False
    return columns > 1 and lines > 1


def clock_text(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
