"""Log lines: what was written is read back, and any damage is told."""

from pathlib import Path

import pytest

from batchgen.journal.keys import KeyRange, KeyRanges
from batchgen.journal.log import LogRecord, decode_record, encode_record, read_log

RECORDS = [
    LogRecord(
        f"part-{number:06d}.parquet", f"{number:064x}", 4, 1, KeyRanges([KeyRange(0, 4 * number, 4 * number + 4)])
    )
    for number in range(3)
]


def write_log(folder: Path) -> Path:
    path = folder / "log.jsonl"
    path.write_bytes(b"".join(encode_record(record) for record in RECORDS))
    return path


def test_a_record_is_one_line_and_reads_back() -> None:
    line = encode_record(RECORDS[1])
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_record(line) == RECORDS[1]


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    contents = read_log(tmp_path / "log.jsonl")
    assert (contents.records, contents.damaged_lines, contents.is_torn) == ((), (), False)


@pytest.mark.parametrize("num_cut", [1, 2, 40])
def test_a_torn_end_leaves_every_earlier_record(tmp_path: Path, num_cut: int) -> None:
    path = write_log(tmp_path)
    path.write_bytes(path.read_bytes()[:-num_cut])
    contents = read_log(path)
    assert list(contents.records) == RECORDS[:2]
    assert contents.is_torn
    assert contents.damaged_lines == ()


def test_every_single_changed_byte_of_a_line_is_noticed() -> None:
    line = encode_record(RECORDS[2])
    for position in range(len(line) - 1):
        changed = bytearray(line)
        changed[position] ^= 1
        assert decode_record(bytes(changed)) is None, position


def test_a_damaged_middle_line_costs_only_itself(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"rows":4', b'"rows":5')
    path.write_bytes(b"".join(lines))
    contents = read_log(path)
    assert list(contents.records) == [RECORDS[0], RECORDS[2]]
    assert contents.damaged_lines == (2,)


@pytest.mark.parametrize("line", [b"", b"[]", b"3", b'{"part":"a"}', b"\xff\xfe", b"null"])
def test_other_json_is_no_record(line: bytes) -> None:
    assert decode_record(line) is None
