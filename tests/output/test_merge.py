"""The merge: every row once, in input order, by key, in one fixed schema, in bounded memory."""

import datetime
import decimal
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.errors import JournalError
from batchgen.journal.disk import Disk
from batchgen.journal.keys import to_ranges
from batchgen.journal.log import LogRecord
from batchgen.journal.parts import digest, part_bytes, part_name
from batchgen.output import merge as merge_module
from batchgen.output.final import read_metadata
from batchgen.output.merge import merge
from batchgen.schema import RESULT_NAMES, result_schema
from batchgen.types import Result
from tests.fakes import make_error, make_result

KEPT = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64())])
SCHEMA = pa.schema([*KEPT, *result_schema()])


def write_parts(folder: Path, parts: Sequence[Sequence[Result]]) -> list[LogRecord]:
    records = []
    (folder / "parts").mkdir()
    for number, results in enumerate(parts, start=1):
        content = part_bytes(results)
        (folder / "parts" / part_name(number)).write_bytes(content)
        ranges = to_ranges(result.key for result in results)
        records.append(LogRecord(part_name(number), digest(content), len(results), 0, ranges))
    return records


def kept_batches(rows: Sequence[int], size: int = 3) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        columns = [pa.array([f"id-{row}" for row in chunk]), pa.array(chunk), pa.array(chunk, pa.int64())]
        yield pa.record_batch(columns, names=["id", "n", "row"])


def merge_rows(tmp_path: Path, parts: Sequence[Sequence[Result]], rows: Sequence[int], **changes: Any) -> pa.Table:
    values: dict[str, Any] = {
        "parts": tmp_path / "parts",
        "kept": kept_batches(rows),
        "schema": SCHEMA,
        "num_rows": len(rows),
        "num_samples": lambda row: 1,
        "metadata": b"{}",
        "disk": Disk(),
    }
    merge(tmp_path / "o.parquet", records=write_parts(tmp_path, parts), **(values | changes))
    return pq.read_table(tmp_path / "o.parquet")


def test_rows_finished_in_any_order_come_out_in_input_order_with_their_own_completion(tmp_path: Path) -> None:
    rows = list(range(40))
    order = random.Random(0).sample(rows, len(rows))
    parts = [[make_result(row) for row in order[start : start + 7]] for start in range(0, 40, 7)]
    table = merge_rows(tmp_path, parts, rows)
    assert table["n"].to_pylist() == rows
    assert table["id"].to_pylist() == [f"id-{row}" for row in rows]
    assert table["completion"].to_pylist() == [f"answer {row}.0" for row in rows]


def test_rows_that_a_filter_left_out_are_gaps_and_no_fault(tmp_path: Path) -> None:
    rows = [2, 3, 5, 7, 11, 13]
    table = merge_rows(tmp_path, [[make_result(row) for row in rows[::-1]]], rows)
    assert table["n"].to_pylist() == rows
    assert table["completion"].to_pylist() == [f"answer {row}.0" for row in rows]


@pytest.mark.parametrize("numbers", [[1, 1, 1, 1], [5, 5, 5, 5], [3, 1, 7, 2]])
@pytest.mark.parametrize("max_joined", [1, 4, 256])
def test_each_row_stands_once_for_each_of_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[int], max_joined: int
) -> None:
    monkeypatch.setattr(merge_module, "MAX_JOINED_ROWS", max_joined)
    keys = [(row, sample) for row in range(4) for sample in range(numbers[row])]
    results = [make_result(row, sample=sample) for row, sample in random.Random(1).sample(keys, len(keys))]
    parts = [results[start : start + 3] for start in range(0, len(results), 3)]
    table = merge_rows(tmp_path, parts, range(4), num_samples=numbers.__getitem__, num_rows=len(keys))
    assert list(zip(table["n"].to_pylist(), table["sample"].to_pylist(), strict=True)) == keys
    assert table["completion"].to_pylist() == [f"answer {row}.{sample}" for row, sample in keys]


def test_kept_columns_come_first_then_the_result_columns(tmp_path: Path) -> None:
    table = merge_rows(tmp_path, [[make_result(0)]], [0])
    assert table.column_names == ["id", "n", *RESULT_NAMES]
    assert pq.read_schema(tmp_path / "o.parquet").equals(SCHEMA)


def test_optional_columns_stand_last_where_the_schema_has_them(tmp_path: Path) -> None:
    schema = pa.schema([*KEPT, *result_schema(["token_ids"])])
    table = merge_rows(tmp_path, [[make_result(0), make_error(1)]], [0, 1], schema=schema)
    assert table.column_names == ["id", "n", *RESULT_NAMES, "token_ids"]
    assert table["token_ids"].to_pylist() == [[1, 2, 0], None]
    assert pq.read_schema(tmp_path / "o.parquet").equals(schema)


def test_no_rows_give_a_file_with_the_schema_and_no_rows(tmp_path: Path) -> None:
    table = merge_rows(tmp_path, [], [])
    assert table.num_rows == 0
    assert pq.read_schema(tmp_path / "o.parquet").equals(SCHEMA)


@pytest.mark.parametrize("errors", ["first", "last", "all"])
def test_columns_that_are_null_in_some_parts_keep_their_type(tmp_path: Path, errors: str) -> None:
    good, bad = [make_result(row) for row in range(4)], [make_error(row) for row in range(4, 8)]
    if errors == "first":
        good, bad = [make_result(row) for row in range(4, 8)], [make_error(row) for row in range(4)]
    parts = [bad, good] if errors == "first" else [good, bad]
    if errors == "all":
        parts = [[make_error(row) for row in range(4)], bad]
    table = merge_rows(tmp_path, parts, range(8))
    assert pq.read_schema(tmp_path / "o.parquet").equals(SCHEMA)
    assert table["status"].to_pylist().count("error") == (8 if errors == "all" else 4)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_kept_columns_keep_type_and_value(tmp_path: Path, num_samples: int) -> None:
    utc = datetime.UTC
    columns: dict[str, pa.Array] = {
        "minus": pa.array([datetime.datetime(2020, 1, 2, tzinfo=utc)], pa.timestamp("us", tz="-03:00")),
        "paris": pa.array([datetime.datetime(2020, 1, 2, tzinfo=utc)], pa.timestamp("ms", tz="Europe/Paris")),
        "nano": pa.array([1], pa.timestamp("ns")),
        "date": pa.array([datetime.date(2020, 1, 2)], pa.date32()),
        "decimal": pa.array([decimal.Decimal("1.5")], pa.decimal128(38, 9)),
        "floats": pa.array([[0.5, None]], pa.list_(pa.float32())),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
        "large": pa.array(["x"], pa.large_string()),
        "view": pa.array(["x"], pa.string_view()),
        "category": pa.array(["a"]).dictionary_encode(),
        "struct": pa.array([{"role": "user"}], pa.struct([("role", pa.string())])),
        "nothing": pa.array([None], pa.null()),
    }
    kept = pa.table(columns)
    batch = pa.record_batch([*columns.values(), pa.array([0], pa.int64())], names=[*columns, "row"])
    schema = pa.schema([*kept.schema, *result_schema()])
    results = [make_result(0, sample=sample) for sample in range(num_samples)]
    kept_rows = {"kept": iter([batch]), "schema": schema, "num_rows": num_samples}
    table = merge_rows(tmp_path, [results], [0], num_samples=lambda row: num_samples, **kept_rows)
    kept = pa.concat_tables([kept] * num_samples)
    assert table.select(list(columns)).equals(kept)
    assert table.select(list(columns)).schema.equals(kept.schema)


def test_metadata_stands_in_the_file(tmp_path: Path) -> None:
    merge_rows(tmp_path, [[make_result(0)]], [0], metadata=b'{"job": 1}')
    assert read_metadata(tmp_path / "o.parquet") == {"job": 1}


@pytest.mark.parametrize(
    ("parts", "rows", "num_rows"),
    [
        ([[make_result(0), make_result(2)]], [0, 1, 2], 3),  # a row has no result
        ([[make_result(0)], [make_result(0)]], [0], 1),  # a row has two
        ([[make_result(0), make_result(1)]], [0], 1),  # a result has no row
        ([[make_result(0)]], [0], 2),  # the input yields less than was counted
        ([[make_result(0, sample=1)]], [0], 1),  # a sample that nobody asked for
        ([], [0], 1),  # nothing is committed
    ],
)
def test_rows_in_and_rows_out_must_agree(
    tmp_path: Path, parts: list[list[Result]], rows: list[int], num_rows: int
) -> None:
    (tmp_path / "o.parquet").write_bytes(b"what stood here")
    with pytest.raises(JournalError):
        merge_rows(tmp_path, parts, rows, num_rows=num_rows)
    assert (tmp_path / "o.parquet").read_bytes() == b"what stood here"


def test_a_part_that_does_not_hold_what_the_log_says_is_noticed(tmp_path: Path) -> None:
    records = write_parts(tmp_path, [[make_result(0), make_result(1)]])
    lying = [LogRecord(records[0].part, records[0].sha256, 2, 0, to_ranges([make_result(1).key, make_result(2).key]))]
    with pytest.raises(JournalError, match="do not hold"):
        merge(
            tmp_path / "o.parquet",
            parts=tmp_path / "parts",
            records=lying,
            kept=kept_batches([1, 2]),
            schema=SCHEMA,
            num_rows=2,
            num_samples=lambda row: 1,
            metadata=b"{}",
            disk=Disk(),
        )


def test_few_parts_stay_in_memory_and_rows_are_still_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_module, "PART_CACHE_BYTES", 1)
    monkeypatch.setattr(merge_module, "ROW_GROUP_BYTES", 2000)
    held: list[int] = []
    real = merge_module._Parts._load

    def load(self: Any, number: int) -> pa.Table:
        table = real(self, number)
        held.append(len(self._cache))
        return table

    monkeypatch.setattr(merge_module._Parts, "_load", load)
    rows = list(range(30))
    parts = [[make_result(row) for row in rows[start::5]] for start in range(5)]
    table = merge_rows(tmp_path, parts, rows)
    assert table["completion"].to_pylist() == [f"answer {row}.0" for row in rows]
    assert max(held) == 1
    assert pq.ParquetFile(tmp_path / "o.parquet").num_row_groups > 1
