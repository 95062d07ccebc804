"""The log of a run: one JSON line for each committed part, saying which rows it holds and what its bytes are.

A line carries its own checksum, so that a torn or damaged one is told from a whole one. This file reads and writes
lines; what a record is worth is `recover`'s business.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.errors import RunFolderError
from batchgen.journal.keys import KeyRange, KeyRanges


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A committed part: its file name in `parts/`, the sha256 of its bytes, its rows, and how many are error rows."""

    part: str
    sha256: str
    num_rows: int
    num_errors: int
    keys: KeyRanges


@dataclass(frozen=True, slots=True)
class LogContents:
    """The whole records in their order; the numbers (from 1) of the lines that are damaged; whether the end is torn."""

    records: tuple[LogRecord, ...]
    damaged_lines: tuple[int, ...]
    is_torn: bool


def encode_record(record: LogRecord) -> bytes:
    """The record as one line with its line end."""
    body = {
        "part": record.part,
        "sha256": record.sha256,
        "rows": record.num_rows,
        "errors": record.num_errors,
        "keys": [list(key_range) for key_range in record.keys],
    }
    return json.dumps(body | {"crc32": _checksum(body)}, separators=(",", ":")).encode() + b"\n"


def decode_record(line: bytes) -> LogRecord | None:
    """The record of a line, or None if the line is not what `encode_record` wrote."""
    try:
        body = json.loads(line)
    except ValueError:
        return None
    if not isinstance(body, dict) or body.pop("crc32", None) != _checksum(body):
        return None
    keys = KeyRanges(KeyRange(*key_range) for key_range in body["keys"])
    return LogRecord(body["part"], body["sha256"], body["rows"], body["errors"], keys)


def read_log(path: Path) -> LogContents:
    """Reads a log; a missing one is empty."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); put that right and run again") from error
    *lines, tail = content.split(b"\n")
    decoded = [decode_record(line) for line in lines]
    return LogContents(
        records=tuple(record for record in decoded if record is not None),
        damaged_lines=tuple(number for number, record in enumerate(decoded, start=1) if record is None),
        is_torn=bool(tail),
    )


def _checksum(body: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"
