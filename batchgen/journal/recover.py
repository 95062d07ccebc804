"""What a run folder's log and parts say is done, after any crash.

A record counts if its line is whole, its part has the recorded bytes, and none of its rows is in an earlier record.
Whatever does not count is moved aside under a telling name and warned about, never deleted; its rows run again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from batchgen.journal.disk import Disk, free_name
from batchgen.journal.keys import KeySet, range_keys
from batchgen.journal.log import LogContents, LogRecord, encode_record, read_log
from batchgen.journal.parts import part_fault, part_number

CORRUPT_SUFFIX = ".corrupt"
ORPHAN_SUFFIX = ".orphan"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The records that count, the keys they hold, and the number for the next part (no file has had it)."""

    records: tuple[LogRecord, ...]
    done: KeySet
    next_part: int


def recover(log: Path, parts: Path, disk: Disk, warn: Callable[[str], None]) -> Recovered:
    """Reads log and parts, and leaves both clean: every log line counts and every part has one."""
    contents = read_log(log)
    _warn_of_damage(log, contents, warn)
    records, done = _records_that_count(contents.records, parts, disk, warn)
    disk.remove_temporary_files(parts)
    _set_orphans_aside(records, parts, disk, warn)
    if contents.is_torn or contents.damaged_lines or len(records) < len(contents.records):
        _rewrite(log, records, disk)
    numbers = [part_number(path.name) for path in parts.iterdir()]
    numbers += [part_number(record.part) for record in contents.records]
    return Recovered(tuple(records), done, max(numbers, default=0) + 1)


def _warn_of_damage(log: Path, contents: LogContents, warn: Callable[[str], None]) -> None:
    if contents.is_torn:
        warn(f"{log}: the last line is torn and was dropped; its rows run again")
    for number in contents.damaged_lines:
        warn(f"{log}: line {number} is damaged and was dropped; its rows run again")


def _records_that_count(
    records: Iterable[LogRecord], parts: Path, disk: Disk, warn: Callable[[str], None]
) -> tuple[list[LogRecord], KeySet]:
    kept: list[LogRecord] = []
    done = KeySet()
    for record in records:
        path = parts / record.part
        fault = part_fault(path, record.sha256)
        if fault is None and any(key in done for key in range_keys(record.keys)):
            fault = "holds rows that an earlier part holds"
        if fault is None:
            kept.append(record)
            done.update(range_keys(record.keys))
            continue
        place = f" and was moved to {disk.set_aside(path, CORRUPT_SUFFIX).name}" if path.exists() else ""
        warn(f"{path} {fault}{place}; those of its {record.num_rows} rows that no other part holds run again")
    return kept, done


def _set_orphans_aside(records: Iterable[LogRecord], parts: Path, disk: Disk, warn: Callable[[str], None]) -> None:
    recorded = {record.part for record in records}
    for path in sorted(parts.glob("*.parquet")):
        if path.name not in recorded:
            moved = disk.set_aside(path, ORPHAN_SUFFIX)
            warn(f"{path} is in no whole line of the log and was moved to {moved.name}; its rows run again")


def _rewrite(log: Path, records: Iterable[LogRecord], disk: Disk) -> None:
    """Puts a log of just these records in the log's place; what stood there is kept beside it."""
    disk.replace_bytes(free_name(log, CORRUPT_SUFFIX), log.read_bytes(), "log_copy")
    disk.replace_bytes(log, b"".join(encode_record(record) for record in records), "log_rewrite")
