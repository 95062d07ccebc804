"""The lock: one live owner; a dead one's lock is free."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.errors import JournalError, RunLockedError
from batchgen.journal.lock import Lock, lock_holder

HOLD = """
import sys, time
from pathlib import Path
from batchgen.journal.lock import Lock
lock = Lock(Path(sys.argv[1]), "2030-01-02T03:04:05+00:00")
print("held", flush=True)
time.sleep(60)
"""


def take(path: Path) -> Lock:
    return Lock(path, "2030-01-01T00:00:00+00:00", sleep=lambda seconds: None)


def test_a_second_owner_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with take(tmp_path / "lock"):
        with pytest.raises(
            RunLockedError, match=rf"is in use by process {os.getpid()} on .+ since 2030-01-01T00:00:00"
        ):
            take(tmp_path / "lock")
        holder = lock_holder(tmp_path / "lock")
        assert holder is not None
        assert holder.pid == os.getpid()
    assert lock_holder(tmp_path / "lock") is None
    take(tmp_path / "lock").release()


def test_asking_who_holds_it_does_not_make_a_starting_run_fail(tmp_path: Path) -> None:
    take(tmp_path / "lock").release()
    waits: list[float] = []
    with open(tmp_path / "lock", "rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)

        def let_go(seconds: float) -> None:
            waits.append(seconds)
            fcntl.flock(asking, fcntl.LOCK_UN)

        Lock(tmp_path / "lock", "now", sleep=let_go).release()
    assert len(waits) == 1


def test_a_killed_owner_leaves_the_lock_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(RunLockedError, match=f"process {owner.pid} on "):
            take(path)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert lock_holder(path) is None
    with take(path):
        holder = lock_holder(path)
        assert holder is not None
        assert holder.pid == os.getpid()


def test_no_lock_file_no_holder(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "lock") is None


def test_a_lock_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        take(tmp_path / "no folder" / "lock")
