"""Arrow columns as Python values for templates, where one unreadable value spoils its own row alone.

Timestamps become datetime, maps become dict, text must be UTF-8. Nanoseconds are cut to the microseconds that Python
has.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from batchgen.prompts.columns import is_string
from batchgen.types import ErrorKind


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that Python cannot hold, and says why."""

    kind: ErrorKind
    reason: str


def python_values(column: pa.Array, name: str) -> list[Any]:
    """The values of a column, None for null, `Unreadable` for those that are no Python value."""
    column = _without_nanoseconds(column)
    try:
        return list(column.to_pylist(maps_as_pydicts="strict"))
    except (ValueError, KeyError, OverflowError):
        return [_python_value(scalar, name) for scalar in column]


def invalid_text(column: pa.Array) -> list[int]:
    """Which rows of a column hold text that is not UTF-8, at any depth of nesting."""
    column = _decoded(column)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return [row for row in range(len(column)) if not _is_valid(column.slice(row, 1))]
    return []


def as_bytes(column: pa.Array) -> pa.Array:
    """Text as the bytes it is stored as, which no encoding can spoil; other columns as they are."""
    column = _decoded(column)
    return column.cast(pa.large_binary()) if is_string(column.type) else column


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pat.is_dictionary(column.type) else column


def _python_value(scalar: pa.Scalar, name: str) -> Any:
    try:
        return scalar.as_py(maps_as_pydicts="strict")
    except UnicodeDecodeError as error:
        return Unreadable(
            "invalid_utf8", f"{name} is not UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x})"
        )
    except KeyError:
        # Only of maps, whose keys pyarrow may find twice.
        return Unreadable("bad_template", f"{name} has a map in which a key stands twice")
    except (ValueError, OverflowError) as error:
        return Unreadable("bad_template", f"{name} has a value that cannot be read: {error}")


def _without_nanoseconds(column: pa.Array) -> pa.Array:
    kind = column.type
    if pat.is_timestamp(kind) and kind.unit == "ns":
        return pc.cast(column, pa.timestamp("us", kind.tz), safe=False)
    if pat.is_duration(kind) and kind.unit == "ns":
        return pc.cast(column, pa.duration("us"), safe=False)
    return pc.cast(column, pa.time64("us"), safe=False) if kind == pa.time64("ns") else column


def _is_valid(piece: pa.Array) -> bool:
    # A slice still refers to the whole buffers; a copy of one value is checked on its own.
    try:
        pa.concat_arrays([piece, piece.slice(0, 0)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
