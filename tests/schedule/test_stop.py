"""Signals: the first is noted and announced, handlers are put back; the second ends the process."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from batchgen.schedule.stop import StopSignals

HOLD = """
import sys, time
from batchgen.schedule.stop import StopSignals
with StopSignals(lambda: print("announced", flush=True)):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_announced(number: signal.Signals) -> None:
    before = [signal.getsignal(other) for other in (signal.SIGINT, signal.SIGTERM)]
    announced = threading.Event()
    with StopSignals(announced.set) as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert announced.wait(10)
        assert stop.requested
    assert [signal.getsignal(other) for other in (signal.SIGINT, signal.SIGTERM)] == before


def test_no_signal_no_wish() -> None:
    with StopSignals(lambda: pytest.fail("announced")) as stop:
        pass
    assert not stop.requested


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_the_second_signal_ends_the_process(numbers: tuple[signal.Signals, signal.Signals]) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(numbers[0])
        assert process.stdout.readline() == "announced\n"
        process.send_signal(numbers[1])
        assert process.wait(timeout=20) == 130
