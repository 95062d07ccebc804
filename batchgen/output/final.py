"""Whether the final file at a path is the one that a run folder's rows make, an older one of that run, or not ours.

Only reads; a file that some other program or run made is never taken for ours, so that nothing overwrites it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

METADATA_KEY = b"batchgen"

FinalState = Literal["absent", "current", "outdated", "foreign"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What ties a final file to its run: the run folder's id, and a digest of the rows committed there."""

    folder_id: str
    parts_digest: str


def make_metadata(mark: Mark, facts: Mapping[str, Any]) -> bytes:
    """The JSON that stands in the file's key-value metadata under `batchgen`."""
    run = {"folder_id": mark.folder_id, "parts_digest": mark.parts_digest}
    return json.dumps({**facts, "run": run}, ensure_ascii=False).encode()


def read_metadata(path: Path) -> dict[str, Any] | None:
    """What batchgen noted in the Parquet file at `path`; None if it is no Parquet file or none that batchgen made."""
    try:
        noted = (pq.read_metadata(path).metadata or {}).get(METADATA_KEY, b"null")
        content = json.loads(noted)
    except (OSError, ValueError, pa.ArrowException):
        return None
    return content if isinstance(content, dict) else None


def is_foreign(path: Path, folder_id: str | None) -> bool:
    """Whether something stands at `path` that the run with this folder (None: not begun yet) did not make."""
    if not _stands(path):
        return False
    return folder_id is None or _made_by(path).get("folder_id") != folder_id


def final_state(path: Path, mark: Mark, schema: pa.Schema) -> FinalState:
    """What stands at `path`, compared with the file that a merge would write now."""
    if not _stands(path):
        return "absent"
    if is_foreign(path, mark.folder_id):
        return "foreign"
    is_current = _made_by(path).get("parts_digest") == mark.parts_digest and pq.read_schema(path).equals(schema)
    return "current" if is_current else "outdated"


def _stands(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _made_by(path: Path) -> dict[str, Any]:
    """The run that a final file names; empty if it names none."""
    run = (read_metadata(path) or {}).get("run")
    return run if isinstance(run, dict) else {}
