"""The file of held-out prompts that the bundled jobs read: rows that no training stream can yield.

Columns id, task, text, reference. Reads and writes Parquet; knows nothing of models.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.training.tasks import Sample, task_stream
from batchgen.training.tasks.openings import OPENINGS
from batchgen.training.tasks.prose import REQUEST
from batchgen.training.tasks.summary import summary_prompt

NUM_ROWS: Mapping[str, int] = {"summary": 160, "math": 160, "code": 60, "prose": len(OPENINGS)}

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("reference", pa.string()),
    ]
)


def held_out_samples(task: str, seed: int, num_samples: int) -> list[Sample]:
    """Held-out samples of one task, no text and no key twice."""
    found: dict[str, Sample] = {}
    texts: set[str] = set()
    stream = task_stream(task, "held_out", seed)
    while len(found) < num_samples:
        sample = next(stream)
        if sample.key not in found and sample.text not in texts:
            found[sample.key] = sample
            texts.add(sample.text)
    return list(found.values())


def _rows(seed: int) -> Iterator[dict[str, str | None]]:
    for task, num_rows in NUM_ROWS.items():
        for number, (text, reference) in enumerate(_texts(task, seed, num_rows), start=1):
            yield {"id": f"{task}-{number:04}", "task": task, "text": text, "reference": reference}


def _texts(task: str, seed: int, num_rows: int) -> Iterator[tuple[str, str | None]]:
    """Texts with the right answers; prose opens as people write it, and has none."""
    if task == "prose":
        yield from ((opening, None) for opening in OPENINGS)
    else:
        yield from ((sample.text, sample.response) for sample in held_out_samples(task, seed, num_rows))


def write_prompts(path: Path, seed: int) -> int:
    """Writes the file, tasks mixed; returns the number of rows."""
    rows = list(_rows(seed))
    Random(seed).shuffle(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd")
    return len(rows)


def read_prompts(path: Path) -> list[Sample]:
    """The rows as samples, with the prompt that jobs/eval.yaml renders; prose has an empty response."""
    prompts = {"summary": summary_prompt, "prose": lambda text: REQUEST + text}
    return [
        Sample(
            task=row["task"],
            text=row["text"],
            prompt=prompts.get(row["task"], str)(row["text"]),
            response=row["reference"] or "",
            key=row["text"],
        )
        for row in pq.read_table(path).to_pylist()
    ]
