"""Parts: Parquet files of committed rows in the order they finished, under one fixed schema.

Makes the bytes of a part and checks a part against its digest; never decides what counts as done.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import RunFolderError
from batchgen.schema import part_schema, result_values
from batchgen.types import Result


def part_name(number: int) -> str:
    """File name of the part with this number, from 1."""
    return f"part-{number:06d}.parquet"


def part_number(file_name: str) -> int:
    """Number of a part from its file name, also where the part was set aside; 0 if the name is of another kind."""
    digits = file_name.removeprefix("part-").partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def part_bytes(results: Sequence[Result]) -> bytes:
    """The results as a Parquet file, made in memory so that its digest tells what was meant, not what was stored."""
    table = pa.Table.from_pylist([result_values(result) for result in results], schema=part_schema())
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def digest(content: bytes) -> str:
    """The sha256 of these bytes, in hexadecimal, as the log records it of a part."""
    return hashlib.sha256(content).hexdigest()


def part_fault(path: Path, sha256: str) -> str | None:
    """What is wrong with the part at `path` (missing, other bytes than recorded), or None.

    Raises RunFolderError if that cannot be told: a part that cannot be read now may be whole.
    """
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); put that right and run again") from error
    return None if found == sha256 else "is damaged (its bytes are not those that were written)"
