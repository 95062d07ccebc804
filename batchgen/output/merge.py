"""Merges the parts into the final file: input order, kept columns first, one fixed schema, bounded memory.

Parts hold rows as they finished, so neighbours in the input stand in a few neighbouring parts. The log says which part
has a row; parts are read one at a time and a few stay in memory while the input passes. An input row stands once for
each of its samples. Nothing is written in the final file's place before the whole of it is on disk and every row is
accounted for.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchgen.errors import JournalError
from batchgen.journal.disk import Disk
from batchgen.journal.keys import range_keys
from batchgen.journal.log import LogRecord
from batchgen.output.final import METADATA_KEY
from batchgen.schema import part_schema
from batchgen.types import RowKey

# Bytes of decoded parts kept at hand, and of decoded rows gathered into one row group of the final file.
PART_CACHE_BYTES = 128 << 20
ROW_GROUP_BYTES = 64 << 20
# Rows that are joined at once: with many samples a batch of the input makes many.
MAX_JOINED_ROWS = 256

NumSamples = Callable[[int], int]


def merge(
    output: Path,
    *,
    parts: Path,
    records: Sequence[LogRecord],
    kept: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    num_rows: int,
    num_samples: NumSamples,
    metadata: bytes,
    disk: Disk,
    advance: Callable[[int], None] = lambda num_rows: None,
) -> None:
    """Writes the final file with `schema`: the carried columns, then result columns.

    `kept` yields the carried columns and the int64 column `row`, in input order; `num_samples` says how many samples
    an input row has, and `num_rows` how many rows that makes in all. `metadata` goes into the file under `batchgen`.
    `advance` is told of rows written. Raises JournalError if a row is missing, stands twice, or belongs to no input
    row.
    """
    source = _Parts(parts, records, num_samples)
    schema = schema.with_metadata({METADATA_KEY: metadata})

    def write(temporary: Path) -> None:
        num_written = 0
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for group in _row_groups(_joined(kept, source, num_samples, schema)):
                writer.write_table(group)
                num_written += group.num_rows
                advance(group.num_rows)
        _require_all_rows(num_written, num_rows, source.num_rows, parts.parent)

    disk.replace(output, write, "final")


def _joined(
    kept: Iterable[pa.RecordBatch], source: "_Parts", num_samples: NumSamples, schema: pa.Schema
) -> Iterator[pa.Table]:
    """The final file's rows, in tables of at most `MAX_JOINED_ROWS`."""
    for batch in kept:
        carried = batch.drop_columns(["row"])
        keys = [
            (position, RowKey(row, sample))
            for position, row in enumerate(batch.column("row").to_pylist())
            for sample in range(num_samples(row))
        ]
        for start in range(0, len(keys), MAX_JOINED_ROWS):
            chunk = keys[start : start + MAX_JOINED_ROWS]
            results = source.take([key for _, key in chunk])
            columns = _repeated(carried, [position for position, _ in chunk])
            columns += [results.column(field.name) for field in list(schema)[len(columns) :]]
            yield pa.Table.from_arrays(columns, schema=schema)


def _repeated(batch: pa.RecordBatch, positions: Sequence[int]) -> list[pa.Array]:
    """Rows of a batch, ascending, some more than once; for every Arrow type, where `take` lacks some."""
    if batch.num_columns == 0:
        return []
    if len(positions) == positions[-1] + 1 - positions[0] and len(set(positions)) == len(positions):
        return list(batch.slice(positions[0], len(positions)).columns)
    return list(pa.concat_batches([batch.slice(position, 1) for position in positions]).columns)


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

    def __init__(self, folder: Path, records: Sequence[LogRecord], num_samples: NumSamples) -> None:
        self._folder = folder
        self._paths = [folder / record.part for record in records]
        self.num_rows = sum(record.num_rows for record in records)
        self._index = _Index(folder.parent, records, num_samples)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._cache_bytes = 0

    def take(self, keys: Sequence[RowKey]) -> pa.Table:
        """The results with these keys (ascending, all distinct), over `part_schema()`."""
        numbers = {self._index.part_number(key) for key in keys}
        wanted = pa.array(sorted({key.row for key in keys}), pa.int64())
        pieces = [self._rows_of(self._load(number), wanted) for number in sorted(numbers)]
        found = pa.concat_tables(pieces).sort_by([("row", "ascending"), ("sample", "ascending")])
        # Of the first and the last row there may be samples that belong to other chunks.
        held = [RowKey(*key) for key in zip(found["row"].to_pylist(), found["sample"].to_pylist(), strict=True)]
        chosen = set(keys)
        places = [place for place, key in enumerate(held) if key in chosen]
        if [held[place] for place in places] != list(keys):
            raise JournalError(f"{self._folder}: the parts do not hold the rows that the log says they hold")
        return found if len(places) == len(held) else found.take(places)

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


class _Index:
    """Which record holds a key: four bytes for each output row, and eight for each input row."""

    def __init__(self, run_folder: Path, records: Sequence[LogRecord], num_samples: NumSamples) -> None:
        self._run_folder = run_folder
        num_rows = max((key_range.stop for record in records for key_range in record.keys), default=0)
        self._offsets = array("q", accumulate(map(num_samples, range(num_rows)), initial=0))
        self._numbers = array("i", [-1]) * self._offsets[-1]
        for number, record in enumerate(records):
            for row, sample in range_keys(record.keys):
                position = self._position(RowKey(row, sample))
                if position is None or self._numbers[position] >= 0:
                    raise JournalError(f"{run_folder}: input row {row}, sample {sample}, is committed twice or unasked")
                self._numbers[position] = number

    def part_number(self, key: RowKey) -> int:
        """The record's number; raises JournalError if none holds the key."""
        position = self._position(key)
        number = -1 if position is None else self._numbers[position]
        if number < 0:
            raise JournalError(
                f"{self._run_folder}: input row {key.row}, sample {key.sample}, has no result; the final file was not "
                "written"
            )
        return number

    def _position(self, key: RowKey) -> int | None:
        if key.row + 1 >= len(self._offsets):
            return None
        position = self._offsets[key.row] + key.sample
        return position if position < self._offsets[key.row + 1] else None


def _read_part(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read().cast(part_schema())
    except (OSError, pa.ArrowException) as error:
        raise JournalError(f"{path}: cannot be read while merging ({error}); run the same job again") from error
