"""The run folder `<output>.run/`: opened by one process, it says what is done and makes rows durable.

    job.yaml    the job as resolved, for people
    run.json    fingerprint, input files, starts
    parts/      the committed rows
    log.jsonl   which part holds which rows
    lock        who writes here

A row is done when `commit` has returned, never before. The order inside `commit` is what every crash relies on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from batchgen.errors import JournalError, RunFolderError
from batchgen.journal.disk import Disk
from batchgen.journal.keys import KeySet, range_keys, to_ranges
from batchgen.journal.lock import Holder, Lock, lock_holder
from batchgen.journal.log import LogRecord, encode_record, read_log
from batchgen.journal.parts import digest, part_bytes, part_name
from batchgen.journal.record import InputRecord, RunRecord, Start, read_run_record, require_same_run
from batchgen.journal.recover import recover
from batchgen.types import Result

RUN_FOLDER_SUFFIX = ".run"


def run_folder_path(output: Path) -> Path:
    """Where the run folder of an output file stands."""
    return output.with_name(output.name + RUN_FOLDER_SUFFIX)


class RunFolder:
    """An open run folder, locked until `close`. `done` and `records` grow with every commit."""

    def __init__(self, path: Path, run: RunRecord, lock: Lock, disk: Disk, warn: Callable[[str], None]) -> None:
        self.path = path
        self.run = run
        self._lock = lock
        self._disk = disk
        recovered = recover(path / "log.jsonl", path / "parts", disk, warn)
        self.done: KeySet = recovered.done
        self.records: list[LogRecord] = list(recovered.records)
        self._next_part = recovered.next_part

    @classmethod
    def open(
        cls,
        output: Path,
        *,
        fingerprint: Mapping[str, Any],
        input_files: Sequence[InputRecord],
        count_rows: Callable[[], int],
        new_id: Callable[[], str],
        now: str,
        disk: Disk,
        warn: Callable[[str], None],
    ) -> Self:
        """Goes on with the folder of `output`, or begins it.

        `count_rows` is asked only where the folder holds no rows yet, `new_id` only where it is new. Raises
        RunLockedError if a live process has the folder, FingerprintError if its rows are of another job or input,
        RunFolderError if what stands there can't be gone on with, JournalError if it can't be written.
        """
        path = run_folder_path(output)
        _require_folders(path)
        disk.make_folder(path / "parts")
        lock = Lock(path / "lock", now)
        try:
            run = _read_record(path)
            if run is None or not _holds_rows(path):
                # Nothing rests yet on what an earlier start recorded, so a job that was put right simply begins.
                folder_id, starts = (new_id(), ()) if run is None else (run.folder_id, run.starts)
                run = RunRecord(folder_id, now, dict(fingerprint), tuple(input_files), count_rows(), starts)
                disk.replace_bytes(path / "run.json", run.to_json(), "run")
            require_same_run(path / "run.json", run, fingerprint, input_files)
            return cls(path, run, lock, disk, warn)
        except BaseException:
            lock.release()
            raise

    @property
    def parts_digest(self) -> str:
        """A digest of all committed rows."""
        return digest("".join(record.sha256 for record in self.records).encode())

    @property
    def part_paths(self) -> list[Path]:
        """The committed parts, in the order of their commits."""
        return [self.path / "parts" / record.part for record in self.records]

    @property
    def num_errors(self) -> int:
        """Committed rows that are error rows."""
        return sum(record.num_errors for record in self.records)

    def begin_attempt(self, run_id: str, time: str, job_yaml: str) -> int:
        """Records one more start, and the job it was started with; returns its number, from 1."""
        run = self.run.started(Start(run_id, time))
        self._disk.replace_bytes(self.path / "job.yaml", job_yaml.encode(), "job")
        self._disk.replace_bytes(self.path / "run.json", run.to_json(), "run")
        self.run = run
        return len(run.starts)

    def commit(self, results: Sequence[Result]) -> None:
        """Makes the rows durable: first the part, then the log line that counts it. Only then are they done."""
        if not results:
            return
        repeated = [result.key for result in results if result.key in self.done]
        ranges = to_ranges(result.key for result in results)
        if repeated or len({result.key for result in results}) != len(results):
            raise JournalError(f"{self.path}: a row came twice to be committed, which batchgen should never let happen")
        name, content = part_name(self._next_part), part_bytes(results)
        num_errors = sum(result.error is not None for result in results)
        record = LogRecord(name, digest(content), len(results), num_errors, ranges)
        self._disk.replace_bytes(self.path / "parts" / name, content, "part")
        self._disk.append(self.path / "log.jsonl", encode_record(record), "log")
        self._next_part += 1
        self.records.append(record)
        self.done.update(range_keys(ranges))

    def close(self) -> None:
        """Gives the folder back to other processes."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class RunState:
    """What can be told of a run folder without opening it for writing."""

    path: Path
    input_files: tuple[InputRecord, ...]
    num_rows: int
    num_done: int
    num_errors: int
    num_starts: int
    last_start: str | None
    holder: Holder | None


def read_state(output: Path) -> RunState | None:
    """Where the run of this output stands by its log, or None if it has none. Parts are not checked here."""
    path = run_folder_path(output)
    run = _read_record(path)
    if run is None:
        return None
    records = read_log(path / "log.jsonl").records
    return RunState(
        path=path,
        input_files=run.input_files,
        num_rows=run.num_rows,
        num_done=sum(record.num_rows for record in records),
        num_errors=sum(record.num_errors for record in records),
        num_starts=len(run.starts),
        last_start=run.starts[-1].time if run.starts else None,
        holder=lock_holder(path / "lock"),
    )


def read_folder_id(output: Path) -> str | None:
    """The id of this output's run folder, None if no run was begun there yet."""
    run = _read_record(run_folder_path(output))
    return None if run is None else run.folder_id


def require_startable(output: Path, fingerprint: Mapping[str, Any], input_files: Sequence[InputRecord]) -> None:
    """Raises what `RunFolder.open` would raise because of what stands in the folder; writes nothing."""
    path = run_folder_path(output)
    run = _read_record(path)
    if run is not None and _holds_rows(path):
        require_same_run(path / "run.json", run, fingerprint, input_files)


def _holds_rows(path: Path) -> bool:
    return (path / "log.jsonl").exists() or any((path / "parts").glob("*"))


def _read_record(path: Path) -> RunRecord | None:
    """What a run folder says it belongs to, None if no run was begun there; RunFolderError if that cannot be told."""
    _require_folders(path)
    run = read_run_record(path / "run.json")
    if run is None and _holds_rows(path):
        raise RunFolderError(
            f"{path}: run.json is missing though rows are committed there; restore it, or move the folder away"
        )
    return run


def _require_folders(path: Path) -> None:
    for folder in (path, path / "parts"):
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise RunFolderError(
                f"{folder}: is no folder, and a run keeps its rows there; move it away, or choose another output path"
            )
