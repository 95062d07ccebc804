"""The lock that keeps a run folder to one process at a time.

It is the system's own file lock, which ends with its owner however the owner ends, so a dead run never has to be
cleared away by hand. The file's text only says who holds it; the file is never removed.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from batchgen.errors import RunFolderError, RunLockedError

# `lock_holder` takes the lock for a moment; a run that starts in that moment tries again.
NUM_TRIES = 5
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock: process id, host name, and when it took it (ISO time)."""

    pid: int
    host: str
    since: str


class Lock:
    """Holds the lock from construction to `release`; raises RunLockedError if another live process has it."""

    def __init__(self, path: Path, since: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._file = _open(path, "ab")
        for number in range(1, NUM_TRIES + 1):
            if _try_lock(self._file, path, fcntl.LOCK_EX):
                break
            if number == NUM_TRIES:
                self._file.close()
                raise RunLockedError(
                    f"{path.parent} is in use by {_describe(_read_holder(path))}; wait for it or stop it"
                )
            sleep(RETRY_S)
        self._file.truncate(0)
        self._file.write(json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), since))).encode())
        self._file.flush()

    def release(self) -> None:
        """Gives the lock back; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_holder(path: Path) -> Holder | None:
    """The live holder of the lock at `path`, or None if nobody holds it."""
    if not path.exists():
        return None
    with _open(path, "rb") as file:
        if _try_lock(file, path, fcntl.LOCK_SH):
            return None
    return _read_holder(path)


def _open(path: Path, mode: Literal["ab", "rb"]) -> IO[bytes]:
    try:
        return open(path, mode, buffering=0)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be opened ({error.strerror}); put that right and run again") from error


def _try_lock(file: IO[bytes], path: Path, mode: int) -> bool:
    try:
        fcntl.flock(file.fileno(), mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be locked ({error.strerror}); put the output on a file system that has file locks"
        ) from error
    return True


def _read_holder(path: Path) -> Holder:
    """What the holder wrote; a holder that has not written yet is unknown."""
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return Holder(0, "", "")


def _describe(holder: Holder) -> str:
    return f"process {holder.pid} on {holder.host} since {holder.since}" if holder.pid else "another process"
