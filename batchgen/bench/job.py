"""`bench JOB`: a job's rows with its drafter, without it, and with mlx-lm's own batched decoding, in one process.

The sides take turns, so that a machine that slows down slows them all; figures are medians. Writes nothing but what
it is asked to.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from batchgen import engine
from batchgen.backend import MlxBackend, TextCodec, engine_options
from batchgen.bench.machine import machine_facts
from batchgen.bench.sides import EngineSide, MlxLmSide, Side, Tokens
from batchgen.engine.decoder import BatchDecoder
from batchgen.errors import InputError
from batchgen.job.load import load_job
from batchgen.job.spec import Job
from batchgen.plan import open_models
from batchgen.prompts.read import InputTable
from batchgen.report.table import figure, format_table
from batchgen.types import Request, RowError, RowKey

WITH_DRAFTER, WITHOUT_DRAFTER = "with drafter", "without drafter"


@dataclass(frozen=True, slots=True)
class Measured:
    """One side's figures: seconds of each repeat, tokens it made, and in how many rows its text is another."""

    side: str
    seconds: tuple[float, ...]
    completion_tokens: int
    acceptance_length: float | None
    rows_that_differ: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class JobBench:
    """All sides of one measurement; ratios are to `baseline`, the fastest of mlx-lm's."""

    job: str
    num_rows: int
    prompt_tokens: int
    machine: dict[str, str | int]
    measured: tuple[Measured, ...]
    baseline: str

    def ratio(self, measured: Measured) -> float:
        """How many times as fast as the baseline."""
        (baseline,) = (one for one in self.measured if one.side == self.baseline)
        return baseline.median_s / measured.median_s

    def lines(self) -> list[str]:
        """A table, ratios first, and what it was measured on."""
        header = ["", "times as fast", "seconds (least to most)", "tokens/s", "acceptance length", "rows that differ"]
        table = format_table(header, [self._cells(measured) for measured in self.measured])
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        rows = f"{self.num_rows} rows of {self.job}, {self.prompt_tokens} prompt tokens"
        return [table, "", f"{rows}; as fast as {self.baseline} is 1.", facts]

    def to_json(self) -> dict[str, object]:
        sides = [asdict(one) | {"median_s": one.median_s, "ratio": self.ratio(one)} for one in self.measured]
        return asdict(self) | {"measured": sides}

    def _cells(self, measured: Measured) -> list[str]:
        spread = f"{measured.median_s:.2f} ({min(measured.seconds):.2f} to {max(measured.seconds):.2f})"
        speed = measured.completion_tokens / measured.median_s
        length = figure(measured.acceptance_length, 2)
        ratio = figure(self.ratio(measured), 2)
        return [measured.side, ratio, spread, figure(speed, 0), length, str(measured.rows_that_differ)]


def bench_job(
    job_path: Path, *, max_rows: int | None, repeats: int, batch_sizes: Sequence[int], say: Callable[[str], None]
) -> JobBench:
    """Measures a job on its first `max_rows` rows (None: all); `batch_sizes` are mlx-lm's, empty for the engine's own.

    Raises the errors of a run, and InputError if no row can be decoded.
    """
    job = load_job(job_path)
    decoder, eos_token_ids, requests = _prepare(job, max_rows, say)
    sides = _sides(decoder, eos_token_ids, list(dict.fromkeys(batch_sizes)) or [decoder.max_rows])
    runs = _take_turns(sides, requests, repeats, say)
    expected = next(tokens for name, _, tokens in runs if name == WITHOUT_DRAFTER)
    measured = tuple(_measured(side, runs, expected) for side in sides)
    baselines = [one for one, side in zip(measured, sides, strict=True) if isinstance(side, MlxLmSide)]
    return JobBench(
        job=str(job_path),
        num_rows=len(requests),
        prompt_tokens=sum(len(request.tokens) for request in requests),
        machine=machine_facts(),
        measured=measured,
        baseline=min(baselines, key=lambda one: one.median_s).side,
    )


def _prepare(
    job: Job, max_rows: int | None, say: Callable[[str], None]
) -> tuple[BatchDecoder, frozenset[int], list[Request]]:
    table, models = InputTable.open(job.input, job.sampling), open_models(job, MlxBackend())
    codec = models.codec
    requests = list(islice(_requests(job, table, codec), max_rows))
    if not requests:
        raise InputError("no row of the input can be decoded, so there is nothing to measure; see `batchgen check`")
    say(f"loading {job.model}")
    options = engine_options(job.engine, codec.eos_token_ids, time.monotonic)
    decoder = engine.load(models.model.path, models.drafter_path, options)
    return decoder, codec.eos_token_ids, requests


def _requests(job: Job, table: InputTable, codec: TextCodec) -> Iterator[Request]:
    for prompt in table.prompts():
        tokens = codec.encode(prompt)
        if not isinstance(tokens, RowError):
            budget = codec.completion_budget(len(tokens), job.sampling.defaults().max_tokens)
            yield Request(RowKey(prompt.row, 0), tokens, budget)


def _sides(decoder: BatchDecoder, eos_token_ids: frozenset[int], batch_sizes: Sequence[int]) -> list[Side]:
    target, options = decoder.target, decoder.options
    plain = replace(options, block_size=1)
    sides: list[Side] = []
    if decoder.drafter is not None:
        sides.append(EngineSide(WITH_DRAFTER, target, decoder.drafter, options, eos_token_ids))
    sides.append(EngineSide(WITHOUT_DRAFTER, target, None, plain, eos_token_ids))
    return [*sides, *(MlxLmSide(target.model, size, eos_token_ids) for size in batch_sizes)]


def _take_turns(
    sides: Sequence[Side], requests: Sequence[Request], repeats: int, say: Callable[[str], None]
) -> list[tuple[str, float, Tokens]]:
    """Each side once per repeat, after a run of a few rows that is not counted."""
    for side in sides:
        side.run(requests[:4])
    runs = []
    for repeat in range(repeats):
        for side in sides:
            started = time.perf_counter()
            tokens = side.run(requests)
            seconds = time.perf_counter() - started
            runs.append((side.name, seconds, tokens))
            say(f"repeat {repeat + 1} of {repeats}: {side.name} {seconds:.2f} s")
    return runs


def _measured(side: Side, runs: Sequence[tuple[str, float, Tokens]], expected: Tokens) -> Measured:
    mine = [(seconds, tokens) for name, seconds, tokens in runs if name == side.name]
    texts = mine[-1][1]
    return Measured(
        side=side.name,
        seconds=tuple(seconds for seconds, _ in mine),
        completion_tokens=sum(len(tokens) for tokens in texts.values()),
        acceptance_length=side.acceptance_length,
        rows_that_differ=sum(tokens != expected[row] for row, tokens in texts.items()),
    )
