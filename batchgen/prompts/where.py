"""The job's `where`: an SQL expression over one row's columns, evaluated by polars.

It is a question about a row alone. Whatever looks at other rows (aggregates, windows, subqueries) is refused, since its
answer would depend on how the input is cut into batches.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
import polars as pl
import pyarrow as pa

from batchgen.errors import InputError
from batchgen.prompts.columns import conform, take_rows
from batchgen.prompts.values import invalid_text

_KEY = "input.where"
_RESULT = "batchgen_where"
_LITERALS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_OTHER_ROWS = re.compile(r"\b(over|select)\b", re.IGNORECASE)
_EQUALITY = re.compile(r"<=>|<>|!=|==|(?<![<>!=])=(?![=>])")
_DECIMAL = re.compile(r"(?<![\w.])(\d+)\.\d*")
_NO_COMPARISON = "cannot compare string with numeric"
_MISSING = re.compile(r'unable to find column "(.+?)"')

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


def mentioned_columns(expression: str, names: Sequence[str]) -> tuple[str, ...]:
    """Columns whose names stand in the expression: all that it reads, and perhaps one too many."""
    return tuple(name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", expression))


class Filter:
    """A checked expression over some columns of `schema`.

    `available` are the columns that the input has, for messages. Raises InputError if it cannot be asked of every row.
    """

    def __init__(self, expression: str, schema: pa.Schema, available: Sequence[str]) -> None:
        self._expression = expression
        self._query = f"SELECT ({expression}) AS {_RESULT} FROM rows"
        self.columns = mentioned_columns(expression, schema.names)
        other_rows = _OTHER_ROWS.search(_LITERALS.sub("''", expression))
        if other_rows:
            raise InputError(
                f"{_KEY}: {other_rows[0]} looks at other rows, and where is asked of one row at a time "
                '(a column of that name is written in "quotes")'
            )
        self._schema = pa.schema([schema.field(name) for name in self.columns])
        self._available = tuple(available)
        self._check()

    def invalid_rows(self, batch: pa.RecordBatch) -> list[int]:
        """Rows of which nothing can be asked, for their text is not UTF-8."""
        return sorted({row for name in self.columns for row in invalid_text(batch.column(name))})

    def mask(self, batch: pa.RecordBatch, place: str) -> Mask:
        """True for rows that are in: the expression is true of them (not false, not null), or cannot be asked.

        Raises InputError with `place` (where the batch begins) if the expression fails.
        """
        invalid = self.invalid_rows(batch)
        valid = np.setdiff1d(np.arange(batch.num_rows), invalid)
        mask = np.ones(batch.num_rows, dtype=np.bool_)
        if len(valid):
            mask[valid] = self._answers(conform(take_rows(batch, valid), self._schema), place)
        return mask

    def _answers(self, batch: pa.RecordBatch, place: str) -> Mask:
        frame = _frame(batch)
        answers = self._ask(frame, place)
        half = frame.height // 2
        halves = [self._ask(part, place) for part in (frame[:half], frame[half:]) if part.height]
        if not np.array_equal(answers, np.concatenate(halves)):
            raise InputError(f"{_KEY}: its answer for a row depends on other rows; use columns of the row alone")
        return answers

    def _ask(self, frame: pl.DataFrame, place: str) -> Mask:
        result = self._run(frame, f" (in the rows from {place} on)")
        return result.get_column(_RESULT).fill_null(False).to_numpy().astype(np.bool_)

    def _check(self) -> None:
        result = self._run(_frame(self._schema.empty_table()), "")
        if result.columns != [_RESULT] or result.height != 0:
            raise InputError(f"{_KEY}: must be one expression that is true or false for each row")
        if result.schema[_RESULT] != pl.Boolean:
            raise InputError(f"{_KEY}: gives {result.schema[_RESULT]}, and must give true or false")
        if not self.columns:
            raise InputError(f"{_KEY}: names no column; the columns are {', '.join(self._available)}")
        self._check_comparisons()

    def _check_comparisons(self) -> None:
        """Raises InputError if text is compared with a number for equality: polars calls them different, row by row,
        but refuses to say which is greater."""
        query = f"SELECT ({_outside_literals(_as_order, self._expression)}) AS {_RESULT} FROM rows"
        try:
            with pl.SQLContext(rows=_frame(self._schema.empty_table())) as context:
                context.execute(query, eager=True)
        except pl.exceptions.PolarsError as error:
            if _NO_COMPARISON in str(error):
                raise InputError(
                    f"{_KEY}: compares text with a number, and they are never equal; write what text is compared with "
                    "in 'quotes'"
                ) from error

    def _run(self, frame: pl.DataFrame, where: str) -> pl.DataFrame:
        try:
            with pl.SQLContext(rows=frame) as context:
                result = context.execute(self._query, eager=True)
        except pl.exceptions.ColumnNotFoundError as error:
            raise InputError(f"{_KEY}: {_no_column(str(error), self._available)}") from error
        except pl.exceptions.PolarsError as error:
            raise InputError(f"{_KEY}: {str(error).strip().splitlines()[0]}{where}") from error
        return result


def _outside_literals(change: Callable[[str], str], expression: str) -> str:
    kept = _LITERALS.findall(expression)
    changed = [change(part) for part in _LITERALS.split(expression)]
    return "".join(part + literal for part, literal in zip_longest(changed, kept, fillvalue=""))


def _as_order(part: str) -> str:
    """The same SQL with order in the place of equality, and decimal numbers whole: see `_check_comparisons`."""
    return _EQUALITY.sub(">", _DECIMAL.sub(r"\1", part))


def _frame(data: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _no_column(message: str, columns: Sequence[str]) -> str:
    found = _MISSING.search(message)
    name = found[1] if found else "of that name"
    near = difflib.get_close_matches(name, columns, n=1)
    return f"no column {name}; " + (f"did you mean {near[0]}" if near else f"the columns are {', '.join(columns)}")
