"""The rows' ids: never null, never twice.

Answers are matched by row number, so a repeated id would not mix them up here; it would as soon as someone joins the
output by it.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from batchgen.errors import InputError
from batchgen.prompts.columns import Rows, is_text
from batchgen.prompts.files import Batch
from batchgen.prompts.values import as_bytes

_KEY = "input.id"
_MAX_NAMED = 3

Id = int | bytes


def require_id_type(field: pa.Field, source: object) -> None:
    """Raises InputError if a column's values cannot be ids."""
    if not (pat.is_integer(field.type) or is_text(field.type)):
        raise InputError(
            f"{source}: column {field.name}, which {_KEY} names, is {field.type}, and must be whole numbers or text"
        )


class IdCheck:
    """Gathers eight bytes of each id, so that millions of ids are compared in little memory."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hashes = array("q")

    def add(self, batch: Batch, rows: Rows) -> None:
        """Takes the ids of some rows of a batch; raises InputError at a null."""
        for index, value in _ids(batch, self._name, rows):
            if value is None:
                raise InputError(f"{batch.place(index)}: the id (column {self._name}) is null; every row needs one")
            self._hashes.append(hash(value))

    def finish(self, batches: Callable[[], Iterator[tuple[Batch, Rows]]]) -> None:
        """Raises InputError with the first repeated ids, each with the places of both rows.

        `batches` reads the same rows once more; it is called only if two hashes are equal.
        """
        hashes, counts = np.unique(np.frombuffer(self._hashes, dtype=np.int64), return_counts=True)
        suspects = set(hashes[counts > 1].tolist())
        if suspects:
            self._require_different(suspects, batches())

    def _require_different(self, suspects: set[int], batches: Iterator[tuple[Batch, Rows]]) -> None:
        places: dict[Id | None, list[str]] = {}
        num_rows: Counter[Id | None] = Counter()
        for batch, rows in batches:
            for index, value in _ids(batch, self._name, rows):
                if hash(value) in suspects:
                    num_rows[value] += 1
                    if num_rows[value] <= 2:
                        places.setdefault(value, []).append(batch.place(index))
        repeated = [value for value, number in num_rows.items() if number > 1]
        if repeated:
            raise InputError(
                f"{_KEY}: column {self._name} has ids that stand more than once: "
                f"{'; '.join(_described(value, places[value], num_rows[value]) for value in repeated[:_MAX_NAMED])}"
                f"{_and_more(len(repeated) - _MAX_NAMED, '; ')}; "
                "make them different, or leave input.id out to go by row number"
            )


def _ids(batch: Batch, name: str, rows: Rows) -> Iterator[tuple[int, Id | None]]:
    values = as_bytes(batch.data.column(name)).to_pylist()
    return ((index, values[index]) for index in rows.tolist())


def _described(value: Id | None, places: Sequence[str], num_rows: int) -> str:
    return f"{_shown(value)} ({', and '.join(places)}{_and_more(num_rows - len(places), ', ')})"


def _and_more(number: int, separator: str) -> str:
    return f"{separator}and {number} more" if number > 0 else ""


def _shown(value: Id | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
