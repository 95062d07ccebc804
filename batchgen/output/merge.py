"""Merges the parts into the final file: input order, kept columns first, one fixed schema, bounded memory.

Parts hold rows as they finished, so neighbours in the input stand in a few neighbouring parts. The log says which part
has a row; parts are read one at a time and a few stay in memory while the input passes. Nothing is written in the
final file's place before the whole of it is on disk and every row is accounted for.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchgen.errors import JournalError
from batchgen.journal.disk import Disk
from batchgen.journal.keys import range_keys
from batchgen.journal.log import LogRecord
from batchgen.output.final import METADATA_KEY
from batchgen.schema import RESULT_NAMES, part_schema, result_schema

# Bytes of decoded parts kept at hand, and of decoded rows gathered into one row group of the final file.
PART_CACHE_BYTES = 128 << 20
ROW_GROUP_BYTES = 64 << 20


def final_schema(kept_schema: pa.Schema) -> pa.Schema:
    """Kept columns, then the result columns."""
    return pa.schema([*kept_schema, *result_schema()])


def merge(
    output: Path,
    *,
    parts: Path,
    records: Sequence[LogRecord],
    kept: Iterable[pa.RecordBatch],
    kept_schema: pa.Schema,
    num_rows: int,
    num_samples: int,
    metadata: bytes,
    disk: Disk,
    advance: Callable[[int], None] = lambda num_rows: None,
) -> None:
    """Writes the final file.

    `kept` yields the carried columns and the int64 column `row`, in input order; `num_rows` is how many it must yield.
    `metadata` goes into the file under `batchgen`. `advance` is told of rows written. Raises JournalError if a row is
    missing, stands twice, or belongs to no input row.
    """
    source = _Parts(parts, records, num_samples)
    schema = final_schema(kept_schema).with_metadata({METADATA_KEY: metadata})

    def write(temporary: Path) -> None:
        num_written = 0
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for group in _row_groups(_joined(kept, source, num_samples, schema)):
                writer.write_table(group)
                num_written += group.num_rows
                advance(group.num_rows)
        _require_all_rows(num_written, num_rows * num_samples, source.num_rows, parts.parent)

    disk.replace(output, write, "final")


def _joined(
    kept: Iterable[pa.RecordBatch], source: "_Parts", num_samples: int, schema: pa.Schema
) -> Iterator[pa.Table]:
    """The final file's rows, one table for each batch of the input."""
    for batch in kept:
        if batch.num_rows == 0:
            continue
        rows = batch.column("row")
        results = source.take(rows.to_pylist())
        carried = pa.Table.from_batches([batch.drop_columns(["row"])])
        if num_samples > 1:
            carried = carried.take(pa.array([n for n in range(batch.num_rows) for _ in range(num_samples)]))
        columns = [*carried.columns, *(results.column(name) for name in RESULT_NAMES)]
        yield pa.Table.from_arrays(columns, schema=schema)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Gathers small tables into ones of about `ROW_GROUP_BYTES`."""
    gathered: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        gathered.append(table)
        num_bytes += table.nbytes
        if num_bytes >= ROW_GROUP_BYTES:
            yield pa.concat_tables(gathered)
            gathered, num_bytes = [], 0
    if gathered:
        yield pa.concat_tables(gathered)


def _require_all_rows(num_written: int, num_expected: int, num_committed: int, run_folder: Path) -> None:
    if not num_written == num_expected == num_committed:
        raise JournalError(
            f"{run_folder}: {num_expected} rows should come out, {num_committed} are committed and {num_written} match "
            "the input; the final file was not written"
        )


class _Parts:
    """Finds rows in the parts by key, with the parts used last at hand."""

    def __init__(self, folder: Path, records: Sequence[LogRecord], num_samples: int) -> None:
        self._folder = folder
        self._paths = [folder / record.part for record in records]
        self._num_samples = num_samples
        self.num_rows = sum(record.num_rows for record in records)
        self._part_of_key = _index(folder, records, num_samples)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._cache_bytes = 0

    def take(self, rows: Sequence[int]) -> pa.Table:
        """The results of these input rows (ascending), all samples of a row together; over `part_schema()`."""
        keys = [(row, sample) for row in rows for sample in range(self._num_samples)]
        numbers = {self._part_number(row, sample) for row, sample in keys}
        wanted = pa.array(rows, pa.int64())
        pieces = [self._rows_of(self._load(number), wanted) for number in sorted(numbers)]
        found = pa.concat_tables(pieces).sort_by([("row", "ascending"), ("sample", "ascending")])
        if list(zip(found["row"].to_pylist(), found["sample"].to_pylist(), strict=True)) != keys:
            raise JournalError(f"{self._folder}: the parts do not hold the rows that the log says they hold")
        return found

    def _part_number(self, row: int, sample: int) -> int:
        position = row * self._num_samples + sample
        number = self._part_of_key[position] if position < len(self._part_of_key) else -1
        if number < 0:
            raise JournalError(f"{self._folder.parent}: input row {row} has no result; the final file was not written")
        return number

    def _rows_of(self, part: pa.Table, wanted: pa.Array) -> pa.Table:
        return part.filter(pc.is_in(part["row"], value_set=wanted))

    def _load(self, number: int) -> pa.Table:
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        part = _read_part(self._paths[number])
        self._cache[number] = part
        self._cache_bytes += part.nbytes
        while self._cache_bytes > PART_CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cache_bytes -= dropped.nbytes
        return part


def _index(folder: Path, records: Sequence[LogRecord], num_samples: int) -> "array[int]":
    """Which record holds the key at row * num_samples + sample; -1 where none does. Four bytes a key."""
    num_rows = max((key_range.stop for record in records for key_range in record.keys), default=0)
    part_of_key = array("i", [-1]) * (num_rows * num_samples)
    for number, record in enumerate(records):
        for row, sample in range_keys(record.keys):
            position = row * num_samples + sample
            if sample >= num_samples or part_of_key[position] >= 0:
                raise JournalError(f"{folder.parent}: input row {row}, sample {sample}, is committed twice or unasked")
            part_of_key[position] = number
    return part_of_key


def _read_part(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read().cast(part_schema())
    except (OSError, pa.ArrowException) as error:
        raise JournalError(f"{path}: cannot be read while merging ({error}); run the same job again") from error
