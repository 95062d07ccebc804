"""Measures how many drafts stand when the bundled pair samples: per task and temperature, under either coupling.

    python tools/sampling_figures.py --rows 12 --samples 4 --markdown

Prompts and their template are those of jobs/eval.yaml. What is counted does not depend on the machine's speed; no time
is taken. At temperature 0 nothing is drawn, so both couplings are one and are measured once.

The couplings write different texts, and one row that drifts into text nobody can guess weighs as much as many others.
So every row is sampled several times, and beside each figure stands the least and the most that one sample of all rows
gave: figures whose ranges overlap tell no difference.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import polars as pl

from batchgen import engine
from batchgen.engine.decoder import BatchDecoder
from batchgen.engine.sampling.coupling import Coupling
from batchgen.job.load import load_job
from batchgen.prompts.encode import Codec
from batchgen.report.table import figure, format_table
from batchgen.schema import acceptance_length
from batchgen.types import Generation, Prompt, Request, RowError, RowKey, Sampling

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "eval.yaml"
COUPLINGS: tuple[Coupling, ...] = ("shared", "rejection")
HEADER = [
    "task",
    "temperature",
    "acceptance length, shared",
    "acceptance length, rejection",
    "% accepted, shared",
    "% accepted, rejection",
]


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt, tokenized; `id` is what its chance is made of."""

    id: str
    task: str
    tokens: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Figure:
    """Passes and drafts of some rows."""

    passes: int
    drafted: int
    accepted: int

    @classmethod
    def of(cls, generations: Iterable[Generation]) -> "Figure":
        rows = list(generations)
        return cls(
            sum(row.verify_passes for row in rows),
            sum(row.drafted_tokens for row in rows),
            sum(row.accepted_tokens for row in rows),
        )

    @property
    def length(self) -> float | None:
        """Tokens per verify pass."""
        return acceptance_length(self.accepted, self.passes)

    @property
    def share(self) -> float | None:
        """Of the drafts, those that stood, in per cent."""
        return 100 * self.accepted / self.drafted if self.drafted else None


Figures = dict[tuple[str, float, Coupling], list[Figure]]


def read_rows(num_rows: int) -> list[Row]:
    """The first num_rows rows of each task."""
    job = load_job(JOB)
    assert job.input.prompt is not None
    template = jinja2.Environment().from_string(job.input.prompt)
    codec = Codec.load(ROOT / job.model, system=None, chat=job.input.chat)
    table = pl.read_parquet(ROOT / "data" / "prompts.parquet").group_by("task", maintain_order=True).head(num_rows)
    rows = []
    for number, values in enumerate(table.iter_rows(named=True)):
        tokens = codec.encode(Prompt(number, text=template.render(values)))
        assert not isinstance(tokens, RowError), tokens.message
        budget = codec.completion_budget(len(tokens), int(job.sampling.defaults().max_tokens))
        rows.append(Row(values["id"], values["task"], tuple(tokens), budget))
    return rows


def open_decoder(coupling: Coupling) -> BatchDecoder:
    """The job's pair, in float32."""
    job = load_job(JOB)
    assert job.drafter is not None
    codec = Codec.load(ROOT / job.model, system=None, chat=job.input.chat)
    options = engine.EngineOptions(codec.eos_token_ids, lambda: 0.0, dtype="float32", coupling=coupling)
    return engine.load(ROOT / job.model, ROOT / job.drafter, options)


def decode(decoder: BatchDecoder, rows: Sequence[Row], temperature: float, num_samples: int) -> list[Generation]:
    """All samples of all rows at one temperature; generations in no order."""
    sampling = Sampling(temperature=temperature)
    waiting = [
        Request(RowKey(n, sample), row.tokens, row.max_tokens, sampling, noise_key(row.id, sample))
        for n, row in enumerate(rows)
        for sample in range(num_samples)
    ]
    done: list[Generation] = []
    while waiting or decoder.num_rows:
        free = decoder.max_rows - decoder.num_rows
        decoder.admit(waiting[:free])
        waiting = waiting[free:]
        done += decoder.step()
    return done


def noise_key(row_id: str, sample: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{sample} {row_id}".encode(), digest_size=8).digest(), "big")


def measure(rows: Sequence[Row], temperatures: Sequence[float], num_samples: int) -> Figures:
    """Figures by task (`all` is every task), temperature and coupling: of all samples, then of each."""
    figures: Figures = {}
    for coupling in COUPLINGS:
        decoder = open_decoder(coupling)
        for temperature in temperatures:
            if temperature == 0 and coupling != "shared":
                continue
            print(f"{coupling} coupling, temperature {temperature}", file=sys.stderr)
            samples = num_samples if temperature else 1
            done = decode(decoder, rows, temperature, samples)
            for task in (*tasks_of(rows), "all"):
                mine = [one for one in done if task in ("all", rows[one.key.row].task)]
                each = [Figure.of(one for one in mine if one.key.sample == sample) for sample in range(samples)]
                figures[task, temperature, coupling] = [Figure.of(mine), *each]
    return figures


def tasks_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def table_of(figures: Figures, tasks: Sequence[str], temperatures: Sequence[float]) -> list[list[str]]:
    """A line for each task and temperature, under HEADER."""
    lines = []
    for task in (*tasks, "all"):
        for temperature in temperatures:
            shared = figures[task, temperature, "shared"]
            sides = (shared, figures.get((task, temperature, "rejection"), shared))
            lengths = [spread([one.length for one in side], 2) for side in sides]
            shares = [spread([one.share for one in side], 1) for side in sides]
            lines.append([task, str(temperature), *lengths, *shares])
    return lines


def spread(values: Sequence[float | None], digits: int) -> str:
    """The first value, and the least and most of the others where there are several."""
    whole, *each = values
    known = [value for value in each if value is not None]
    if len(known) < 2:
        return figure(whole, digits)
    return f"{figure(whole, digits)} ({figure(min(known), digits)} to {figure(max(known), digits)})"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Acceptance of the bundled pair's drafts under sampling.")
    parser.add_argument("--rows", type=int, default=12, help="rows of each task (default: 12)")
    parser.add_argument("--samples", type=int, default=4, help="samples of each row (default: 4)")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.4, 0.7, 1.0, 1.3])
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    options = parser.parse_args()
    if min(options.rows, options.samples) < 1 or min(options.temperatures) < 0:
        parser.error("--rows and --samples must be at least 1, and temperatures at least 0")
    temperatures = list(dict.fromkeys(options.temperatures))
    rows = read_rows(options.rows)
    lines = table_of(measure(rows, temperatures, options.samples), tasks_of(rows), temperatures)
    print(markdown(HEADER, lines) if options.markdown else format_table(HEADER, lines))


if __name__ == "__main__":
    main()
