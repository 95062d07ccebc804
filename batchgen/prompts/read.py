"""The input as the rest of the project sees it: rows numbered over a recorded list of files, prompts, kept columns.

Row numbers count every row of every file, in the order of the list, whether or not `where` lets it in; answers are
matched by them alone. Nothing is held but small batches and, where the job filters, one byte a row; two more where a
column says how many samples a row has.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from batchgen.errors import InputError
from batchgen.job.spec import InputSpec, SamplingSpec
from batchgen.prompts.columns import Rows, conform, require_column, require_unique_names, take_rows, unify
from batchgen.prompts.files import Batch, InputFile, content_digest, find_files, read_batches, record_file
from batchgen.prompts.ids import IdCheck, require_id_type
from batchgen.prompts.render import Renderer, renderer, unreadable
from batchgen.prompts.settings import SamplingReader
from batchgen.prompts.template import Template
from batchgen.prompts.values import as_bytes, python_values
from batchgen.prompts.where import Filter, Mask, mentioned_columns
from batchgen.schema import KEY_COLUMNS, RESULT_NAMES
from batchgen.types import Prompt, RowError, Sampling

ROW_COLUMN = "row"

_SURVEY_BATCH = 512
_PROMPT_BATCH = 64
_KEPT_BATCH = 256

# Samples of each row.
Counts = np.ndarray[tuple[int], np.dtype[np.int16]]
_RESERVED = frozenset(RESULT_NAMES) | {name for name, _ in KEY_COLUMNS}


@dataclass(frozen=True, slots=True)
class InputTable:
    """The input of one job. Frozen: it describes the files as they were when it was opened, and refuses others."""

    files: tuple[InputFile, ...]
    schema: pa.Schema
    """The columns that the job reads or carries, in the first file's order, with their types over all files."""
    kept_schema: pa.Schema
    """The carried columns, in the order of `input.keep` or of the first file."""
    _renderer: Renderer
    _sampling: SamplingReader
    _id_column: str | None
    _identity_columns: tuple[str, ...]
    _survey: "_Survey"

    @classmethod
    def open(cls, spec: InputSpec, sampling: SamplingSpec) -> Self:
        """Finds and records the files, checks every column that the job names, applies `where`, checks the ids.

        Raises InputError for whatever makes the input other than the job says. Reads the columns of `where`, `id` and
        `sampling.n` once through if the job has them, else only the footers.
        """
        recorded = [record_file(path) for path in find_files(spec.paths)]
        files, schemas = tuple(file for file, _ in recorded), tuple(schema for _, schema in recorded)
        for file, schema in recorded:
            require_unique_names(file, schema)
        used, kept = _used_columns(spec, sampling, files[0], schemas[0]), _kept_columns(spec, files, schemas)
        for file, schema in recorded:
            for name, key in (used | dict.fromkeys(spec.keep or (), "input.keep")).items():
                require_column(schema, name, key, file.path)
        unified = unify(files, schemas, [name for name in schemas[0].names if name in used or name in kept])
        if spec.id is not None:
            require_id_type(unified.field(spec.id), files[0].path)
        where = Filter(spec.where, unified, schemas[0].names) if spec.where is not None else None
        render, reader = renderer(spec, unified, files[0].path), SamplingReader(sampling, unified, files[0].path)
        noise_columns = (spec.id,) if spec.id is not None and sampling.is_sampled else ()
        return cls(
            files=files,
            schema=unified,
            kept_schema=pa.schema([unified.field(name) for name in kept]),
            _renderer=render,
            _sampling=reader,
            _id_column=spec.id,
            _identity_columns=(*render.columns, *(where.columns if where else ()), *reader.columns, *noise_columns),
            _survey=_survey(files, where, spec.id, reader),
        )

    @property
    def num_rows(self) -> int:
        """Rows of all files, before `where`."""
        return sum(file.num_rows for file in self.files)

    def count(self) -> int:
        """Rows that `where` lets in."""
        mask = self._survey.mask
        return self.num_rows if mask is None else int(mask.sum())

    def num_samples(self, row: int) -> int:
        """Output rows of an input row: its `n`, 1 where that cannot be read, 0 where `where` leaves the row out."""
        return self._survey.num_samples(row)

    def count_outputs(self) -> int:
        """Output rows of all rows that are in."""
        counts = self._survey.counts
        return self.count() * self._survey.n if counts is None else int(counts.sum(dtype=np.int64))

    def identity(self) -> dict[str, str]:
        """A digest of everything in the input that answers depend on; reads the stored bytes of those columns once."""
        return {"content": content_digest(self.files, self._identity_columns)}

    def require_kept(self, name: str, key: str) -> None:
        """Raises InputError if a column that `key` of the job names is not carried to the output."""
        require_column(self.kept_schema, name, key, self.files[0].path)

    def require_not_kept(self, names: Collection[str]) -> None:
        """Raises InputError if a carried column has the name of a column that the output gets."""
        _require_free(self.files[0].path, [name for name in self.kept_schema.names if name in names])

    def prompts(self, skip: Callable[[int], bool] = lambda row: False) -> Iterator[Prompt]:
        """The prompts of the rows that are in, in order, without those for whose row number `skip` is true."""
        own_id = () if self._id_column is None else (self._id_column,)
        columns = list(dict.fromkeys([*self._renderer.columns, *self._sampling.columns, *own_id]))
        schema = pa.schema([self.schema.field(name) for name in columns])
        for batch in read_batches(self.files, columns, _PROMPT_BATCH):
            rows = [index for index in self._survey.rows(batch).tolist() if not skip(batch.row + index)]
            if rows:
                yield from self._render(batch, take_rows(conform(batch.data, schema), rows), rows)

    def kept(self) -> Iterator[pa.RecordBatch]:
        """The carried columns of the rows that are in, in order, and last the int64 column `row`."""
        schema = self.kept_schema.append(pa.field(ROW_COLUMN, pa.int64(), nullable=False))
        for batch in read_batches(self.files, self.kept_schema.names, _KEPT_BATCH):
            rows = self._survey.rows(batch)
            carried = take_rows(conform(batch.data, self.kept_schema), rows)
            numbers = pa.array(rows + batch.row, pa.int64())
            yield pa.RecordBatch.from_arrays([*carried.columns, numbers], schema=schema)

    def _render(self, batch: Batch, data: pa.RecordBatch, rows: Sequence[int]) -> Iterator[Prompt]:
        names = dict.fromkeys([*self._renderer.columns, *self._sampling.columns])
        columns = {name: python_values(data.column(name), name) for name in names}
        ids = [None] * len(rows) if self._id_column is None else _ids(data.column(self._id_column))
        for position, (index, row_id) in enumerate(zip(rows, ids, strict=True)):
            row, place = batch.row + index, batch.place(index)
            values = {name: column[position] for name, column in columns.items()}
            yield replace(self._prompt(row, place, values), id=row_id)

    def _prompt(self, row: int, place: str, values: Mapping[str, Any]) -> Prompt:
        error = self._survey.invalid.get(row)
        read = {name: values[name] for name in self._renderer.columns}
        if error is not None:
            prompt = Prompt(row, error=error, place=place)
        else:
            prompt = unreadable(row, place, read) or self._renderer.prompt(row, place, read)
        sampling = self._sampling.read(values, place)
        if isinstance(sampling, RowError):
            num_samples = Sampling(n=self.num_samples(row))
            return Prompt(row, error=prompt.error or sampling, place=place, sampling=num_samples)
        return replace(prompt, sampling=sampling, sampling_columns=self._sampling.given(values))


@dataclass(frozen=True, slots=True)
class _Survey:
    """What one pass over the columns of `where`, `id` and `sampling.n` found.

    `mask` says which rows are in, all if None; `invalid` has those that cannot be asked. `counts` are the samples of
    each row, 0 for rows that are out; where it is None, every row that is in has `n`.
    """

    mask: Mask | None
    invalid: Mapping[int, RowError]
    n: int
    counts: Counts | None = None

    def rows(self, batch: Batch) -> Rows:
        """Rows of a batch that are in, as positions in it."""
        if self.mask is None:
            return np.arange(batch.data.num_rows)
        return np.flatnonzero(self.mask[batch.row : batch.row + batch.data.num_rows])

    def num_samples(self, row: int) -> int:
        if self.counts is not None:
            return int(self.counts[row])
        return self.n if self.mask is None or self.mask[row] else 0


def _survey(files: Sequence[InputFile], where: Filter | None, id_column: str | None, reader: SamplingReader) -> _Survey:
    masks: list[Mask] = []
    invalid: dict[int, RowError] = {}
    if where is not None:
        for batch in read_batches(files, where.columns, _SURVEY_BATCH):
            masks.append(where.mask(batch.data, batch.place(0)))
            for index in where.invalid_rows(batch.data):
                message = f"{batch.place(index)}: a column that input.where reads is not UTF-8"
                invalid[batch.row + index] = RowError("invalid_utf8", message)
    mask = np.concatenate([np.zeros(0, np.bool_), *masks]) if where is not None else None
    survey = _Survey(mask, invalid, reader.num_samples(None))
    if id_column is not None:
        _check_ids(files, survey, id_column)
    return survey if reader.n_column is None else replace(survey, counts=_counts(files, survey, reader))


def _counts(files: Sequence[InputFile], survey: _Survey, reader: SamplingReader) -> Counts:
    name = reader.n_column
    assert name is not None
    counts = [np.zeros(0, np.int16)]
    for batch in read_batches(files, [name], _SURVEY_BATCH):
        values = python_values(batch.data.column(name), name)
        rows = survey.rows(batch)
        part = np.zeros(batch.data.num_rows, np.int16)
        part[rows] = [reader.num_samples(values[index]) for index in rows.tolist()]
        counts.append(part)
    return np.concatenate(counts)


def _ids(column: pa.Array) -> list[int | str]:
    """The ids as they are, where text is not UTF-8 with its bytes written out."""
    values = as_bytes(column).to_pylist()
    return [value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in values]


def _check_ids(files: Sequence[InputFile], survey: _Survey, id_column: str) -> None:
    def batches() -> Iterator[tuple[Batch, Rows]]:
        return ((batch, survey.rows(batch)) for batch in read_batches(files, [id_column], _SURVEY_BATCH))

    check = IdCheck(id_column)
    for batch, rows in batches():
        check.add(batch, rows)
    check.finish(batches)


def _used_columns(spec: InputSpec, sampling: SamplingSpec, file: InputFile, schema: pa.Schema) -> dict[str, str]:
    """Columns that prompts, filter, ids and sampling are made of, with the key of the job that names each."""
    used: dict[str, str] = {}
    if spec.prompt is not None:
        used |= dict.fromkeys(Template(spec.prompt).columns(schema.names, file.path), "input.prompt")
    if spec.where is not None:
        used |= dict.fromkeys(mentioned_columns(spec.where, schema.names), "input.where")
    for key in ("column", "messages", "id"):
        name = getattr(spec, key)
        if name is not None:
            used[name] = f"input.{key}"
    return {name: f"sampling.{key}" for key, name in sampling.columns().items()} | used


def _require_free(path: Path, taken: Sequence[str]) -> None:
    if taken:
        raise InputError(
            f"{path}: the output has columns of its own named {', '.join(taken)}; list the columns to carry in "
            "input.keep without these, or rename them in the input"
        )


def _kept_columns(spec: InputSpec, files: Sequence[InputFile], schemas: Sequence[pa.Schema]) -> tuple[str, ...]:
    """The carried columns; raises InputError if a result column has the name of one, or only some files have it."""
    kept = tuple(schemas[0].names if spec.keep is None else spec.keep)
    _require_free(files[0].path, [name for name in kept if name in _RESERVED])
    for file, schema in zip(files, schemas, strict=True):
        extra = [name for name in schema.names if name not in schemas[0].names]
        if spec.keep is None and extra:
            raise InputError(
                f"{file.path}: has the column {extra[0]}, which {files[0].path} does not have; list the columns to "
                "carry in input.keep"
            )
    return kept
