"""Every durable write of a run: replace a file whole, append to a file, move a file out of the way.

Nothing returns before the bytes and the folder entry are synced to the drive. A write that fails is a `JournalError`
naming the file, and is never tried again: after a failed fsync the system may have dropped the data.
Steps are announced to `reached`, so that a test can end the process at any of them.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from batchgen.errors import JournalError

TEMPORARY_SUFFIX = ".tmp"


class Disk:
    """Durable file operations. `reached` is called with `<file kind>.<step>` after each step of each of them."""

    def __init__(self, reached: Callable[[str], None] = lambda step: None) -> None:
        self._reached = reached

    def make_folder(self, path: Path) -> None:
        """Makes the folder and those above it that are missing."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        with _write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                _sync_folder(folder.parent)

    def replace(self, path: Path, write: Callable[[Path], None], kind: str) -> None:
        """Lets `write` fill a temporary file beside `path`, then puts it in `path`'s place in one step."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        with _write_errors(path):
            self._reached(f"{kind}.begin")
            write(temporary)
            self._reached(f"{kind}.written")
            with open(temporary, "rb+") as file:
                _sync(file.fileno())
            self._reached(f"{kind}.synced")
            os.replace(temporary, path)
            self._reached(f"{kind}.renamed")
            _sync_folder(path.parent)
            self._reached(f"{kind}.done")

    def replace_bytes(self, path: Path, content: bytes, kind: str) -> None:
        """`replace` for content that is at hand."""

        def write(temporary: Path) -> None:
            temporary.write_bytes(content)

        self.replace(path, write, kind)

    def append(self, path: Path, content: bytes, kind: str) -> None:
        """Appends to `path`, making it if need be. A crash may leave a leading piece of `content` there."""
        with _write_errors(path):
            is_new = not path.exists()
            self._reached(f"{kind}.begin")
            with open(path, "ab") as file:
                file.write(content)
                file.flush()
                self._reached(f"{kind}.written")
                _sync(file.fileno())
            if is_new:
                _sync_folder(path.parent)
            self._reached(f"{kind}.done")

    def set_aside(self, path: Path, suffix: str) -> Path:
        """Renames `path` to a free name that begins with its own and `suffix`; returns the new path."""
        target = free_name(path, suffix)
        with _write_errors(path):
            os.replace(path, target)
            _sync_folder(path.parent)
        return target

    def remove_temporary_files(self, folder: Path) -> None:
        """Removes what interrupted `replace` calls left: nothing ever refers to a temporary file."""
        for path in folder.glob("*" + TEMPORARY_SUFFIX):
            with _write_errors(path):
                path.unlink()


def free_name(path: Path, suffix: str) -> Path:
    """A path beside `path` that nothing has: its name with `suffix`, then with `suffix-2` and so on."""
    target, number = path.with_name(path.name + suffix), 2
    while target.exists():
        target, number = path.with_name(f"{path.name}{suffix}-{number}"), number + 1
    return target


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise JournalError(
            f"{path}: cannot be written ({reason}); put that right and run the same job again, "
            "what was committed before is kept"
        ) from error


def _sync(descriptor: int) -> None:
    # On macOS fsync stops at the drive's cache; F_FULLFSYNC goes through it.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full_sync)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
