"""Small jobs on disk for tests: an input of numbered prompts and a job file that reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml


def write_input(folder: Path, num_rows: int, bad: Sequence[int] = (), name: str = "in.parquet") -> Path:
    """Rows with id, task and text; `bad` ones are too long for the model."""
    rows = range(num_rows)
    columns = {
        "id": pa.array([f"id-{row}" for row in rows], pa.string()),
        "task": pa.array(["even" if row % 2 == 0 else "odd" for row in rows], pa.string()),
        "text": pa.array([f"<{row}>" + " TOO LONG" * (row in bad) for row in rows], pa.string()),
    }
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def write_job(folder: Path, **changes: Any) -> Path:
    """A job over `in.parquet`; `changes` are dotted keys with `__` for the dot, or whole sections."""
    (folder / "model").mkdir(exist_ok=True)
    job: dict[str, Any] = {
        "model": str(folder / "model"),
        "input": {"path": str(folder / "in.parquet"), "column": "text"},
        "output": {"path": str(folder / "out" / "done.parquet"), "checkpoint_every": "1ms"},
        "sampling": {"max_tokens": 8},
    }
    for key, value in changes.items():
        *sections, last = key.split("__")
        target = job
        for section in sections:
            target = target.setdefault(section, {})
        target[last] = value
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"
