"""Which Parquet files the input is, in which order, and how they are read: small batches, never a whole row group.

Every read of an input file goes through this room's `open_parquet`, which refuses a file that is not the one recorded.
"""

import glob
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import PUT_BACK, InputError

SUFFIX = ".parquet"

# Bytes of a column chunk held at once while its pages are decoded.
_READ_BUFFER_BYTES = 1 << 20
_FOOTER_TAIL_BYTES = 8


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file as it was when the job first saw it; `footer_digest` is the SHA-256 of its Parquet footer."""

    path: Path
    size: int
    num_rows: int
    footer_digest: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Some neighbouring rows of one file: `file_row` is the first one's number in it, `row` over all files (from 0)."""

    file: InputFile
    file_row: int
    row: int
    data: pa.RecordBatch

    def place(self, index: int) -> str:
        """File and row of one of them, for messages; rows count from 0."""
        return f"{self.file.path}: row {self.file_row + index}"


def find_files(paths: Sequence[str]) -> tuple[Path, ...]:
    """The files that paths, globs and folders stand for; those of one glob or folder in the order of their paths.

    A folder is searched with its subfolders; names that begin with `.` or `_` are no data, as Parquet writers agree.
    Raises InputError for what does not exist, is no Parquet file, or stands for a file twice.
    """
    found = [path for text in paths for path in _expanded(text)]
    seen: dict[Path, Path] = {}
    for path in found:
        first = seen.setdefault(path.resolve(), path)
        if first is not path:
            raise InputError(f"input.path: {path} is read twice (also as {first}); name each file once")
    return tuple(found)


def record_file(path: Path) -> tuple[InputFile, pa.Schema]:
    """What identifies a file, and its Arrow schema. Raises InputError if it is no readable Parquet file."""
    try:
        size = path.stat().st_size
        digest = _footer_digest(path, size)
        with pq.ParquetFile(path) as parquet:
            return InputFile(path, size, parquet.metadata.num_rows, digest), parquet.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {_reason(error)}") from error


def read_batches(files: Sequence[InputFile], columns: Sequence[str], batch_size: int) -> Iterator[Batch]:
    """All rows of the files in order, with these columns. Raises InputError if a file is damaged or has changed."""
    row = 0
    for file in files:
        file_row = 0
        with open_parquet(file) as parquet:
            for data in parquet.iter_batches(batch_size, columns=list(columns)):
                yield Batch(file, file_row, row + file_row, data)
                file_row += data.num_rows
        row += file.num_rows


def content_digest(files: Sequence[InputFile], columns: Sequence[str]) -> str:
    """SHA-256 of the stored bytes of these columns in all files: equal exactly while their values are as they were."""
    digest = hashlib.sha256()
    for file in files:
        with open_parquet(file) as parquet, file.path.open("rb") as stream:
            for start, length in _column_chunks(parquet.metadata, set(columns)):
                stream.seek(start)
                while length > 0:
                    block = stream.read(min(length, _READ_BUFFER_BYTES))
                    if not block:
                        raise InputError(f"{file.path}: ends within a column; the file is damaged")
                    digest.update(block)
                    length -= len(block)
    return digest.hexdigest()


@contextmanager
def open_parquet(file: InputFile) -> Iterator[pq.ParquetFile]:
    """Opens a recorded file, page by page rather than a column chunk at a time."""
    try:
        size = file.path.stat().st_size
        if size != file.size or _footer_digest(file.path, size) != file.footer_digest:
            raise InputError(f"{file.path}: was changed while the job was using it; {PUT_BACK}")
        with pq.ParquetFile(file.path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file.path}: cannot be read: {_reason(error)}") from error


def _expanded(text: str) -> list[Path]:
    try:
        return _expand(text)
    except OSError as error:
        raise InputError(f"input.path: {text}: cannot be looked up: {_reason(error)}") from error


def _expand(text: str) -> list[Path]:
    if "://" in text:
        raise InputError(f"input.path: {text}: only local files can be read; download it first")
    path = Path(text).expanduser()
    if path.is_dir():
        return _files_in(path)
    if path.exists():
        return [_require_parquet(path)]
    if not any(character in text for character in "*?["):
        raise InputError(f"input.path: {text}: no such file or folder (paths are relative to {Path.cwd()})")
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if not matches:
        raise InputError(f"input.path: {text}: matches no file (paths are relative to {Path.cwd()})")
    return [file for match in matches for file in (_files_in(match) if match.is_dir() else [_require_parquet(match)])]


def _files_in(folder: Path) -> list[Path]:
    files = sorted(
        path
        for path in folder.rglob(f"*{SUFFIX}")
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    )
    if not files:
        raise InputError(f"input.path: {folder}: the folder has no {SUFFIX} file in it")
    return files


def _require_parquet(path: Path) -> Path:
    if path.suffix.lower() != SUFFIX:
        raise InputError(f"input.path: {path}: only {SUFFIX} files can be read; convert it, for example with polars")
    return path


def _footer_digest(path: Path, size: int) -> str:
    """SHA-256 of the footer: the metadata before the last eight bytes (its length and the magic number)."""
    with path.open("rb") as stream:
        stream.seek(max(0, size - _FOOTER_TAIL_BYTES))
        tail = stream.read()
        length = min(size, int.from_bytes(tail[:4], "little") + _FOOTER_TAIL_BYTES)
        stream.seek(size - length)
        return hashlib.sha256(stream.read(length)).hexdigest()


def _column_chunks(metadata: pq.FileMetaData, columns: set[str]) -> Iterator[tuple[int, int]]:
    """Offset and length in bytes of the chunks of these columns and of what is nested in them."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            chunk = group.column(index)
            path = chunk.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in columns):
                dictionary = chunk.dictionary_page_offset
                start = chunk.data_page_offset if dictionary is None else min(dictionary, chunk.data_page_offset)
                yield start, chunk.total_compressed_size


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
