"""Progress: one unit, whole lines where no terminal is, and a resumed run that begins at its count."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from batchgen.output.progress import BarProgress, LineProgress, SilentProgress, clock_text, make_progress
from tests.fakes import FakeClock, make_error, make_result


def test_lines_say_rows_speed_acceptance_errors_and_time_left() -> None:
    clock, stream = FakeClock(), io.StringIO()
    progress = LineProgress(stream, clock, interval_s=5.0)
    progress.phase("loading model tiny")
    progress.start(15, 1, 20)
    clock.now += 2.0
    progress.advance([make_result(15)])
    clock.now += 4.0
    progress.advance([make_result(16), make_error(17)])
    clock.now += 1.0
    progress.advance([])
    clock.now += 3.0
    progress.advance([make_result(18), make_result(19)])
    progress.close()
    assert stream.getvalue().splitlines() == [
        "loading model tiny",
        "15/20 rows (75%), - tok/s, acceptance -, errors 1, - left",
        "18/20 rows (90%), 1.0 tok/s, acceptance 2.00, errors 2, 0:00:04 left",
        "20/20 rows (100%), 1.2 tok/s, acceptance 2.00, errors 2, 0:00:00 left",
    ]


def test_a_log_gets_no_carriage_returns_and_a_line_even_when_no_row_finishes() -> None:
    clock, stream = FakeClock(), io.StringIO()
    progress = LineProgress(stream, clock, interval_s=5.0)
    progress.start(0, 0, 10)
    for _ in range(12):
        clock.now += 1.0
        progress.advance([])
    assert "\r" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 3


def test_a_bar_starts_at_the_done_count_and_ends_full() -> None:
    clock, stream = FakeClock(), io.StringIO()
    progress = BarProgress(stream, clock)
    progress.phase("loading model tiny")
    progress.start(2, 0, 3)
    assert "2/3 rows" in stream.getvalue()
    clock.now += 1.0
    progress.advance([make_result(2)])
    progress.close()
    last = stream.getvalue().split("\r")[-1]
    assert last.startswith("100%")
    assert "3/3 rows, 3.0 tok/s, acceptance 2.00, errors 0, 0:00:00 left" in last


@pytest.mark.parametrize(
    ("lines", "columns", "form"), [(40, 100, BarProgress), (0, 100, LineProgress), (40, 0, LineProgress)]
)
def test_the_form_fits_the_terminal(lines: int, columns: int, form: type[SilentProgress]) -> None:
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        with open(terminal, "w", closefd=False) as stream:
            assert type(make_progress(stream, FakeClock(), quiet=False)) is form
            assert type(make_progress(stream, FakeClock(), quiet=True)) is SilentProgress
    finally:
        os.close(controller)
        os.close(terminal)


def test_no_terminal_gets_lines() -> None:
    assert type(make_progress(io.StringIO(), FakeClock(), quiet=False)) is LineProgress


def test_quiet_shows_nothing_and_keeps_the_figures() -> None:
    clock = FakeClock()
    progress = SilentProgress(clock)
    progress.phase("loading")
    assert progress.decode_s == 0.0
    progress.start(0, 0, 1)
    clock.now += 2.0
    progress.advance([make_result(0)])
    progress.close()
    assert (progress.totals.completion_tokens, progress.decode_s) == (3, 2.0)


def test_time_as_text() -> None:
    assert [clock_text(seconds) for seconds in (0, 59.6, 3661)] == ["0:00:00", "0:01:00", "1:01:01"]


def test_no_rows_at_all() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream, FakeClock())
    progress.start(0, 0, 0)
    progress.close()
    assert stream.getvalue().splitlines()[-1] == "0/0 rows (100%), - tok/s, acceptance -, errors 0, 0:00:00 left"
