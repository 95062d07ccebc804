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
from batchgen.bench.mlx_lm_side import MlxLmSide, left_out
from batchgen.bench.reference_side import ReferenceSide, is_installed, is_served
from batchgen.bench.sides import EngineSide, Side, Tokens
from batchgen.engine.decoder import BatchDecoder
from batchgen.errors import InputError
from batchgen.job.load import load_job
from batchgen.job.spec import Job
from batchgen.plan import Models, open_models
from batchgen.prompts.read import InputTable
from batchgen.report.table import counted, figure, format_table
from batchgen.types import Prompt, Request, RowError

WITH_DRAFTER, WITHOUT_DRAFTER = "with drafter", "without drafter"

_NUM_WARM_UP_ROWS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One side's figures: seconds of each repeat, tokens it made, and in how many output rows its text is another.

    Only `comparable_rows` count for that: None where there is none.
    """

    side: str
    seconds: tuple[float, ...]
    completion_tokens: int
    acceptance_length: float | None
    comparable_rows: int
    rows_that_differ: int | None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_s(self) -> float:
        return self.completion_tokens / self.median_s


@dataclass(frozen=True, slots=True)
class JobBench:
    """All sides of one measurement; ratios are to `baseline`, the fastest of mlx-lm's."""

    job: str
    num_rows: int
    num_output_rows: int
    prompt_tokens: int
    machine: dict[str, str | int]
    measured: tuple[Measured, ...]
    baseline: str
    left_out: tuple[str, ...]

    def ratio(self, measured: Measured) -> float | None:
        """How many times as fast as the baseline: by the clock, or in tokens per second if their tokens differ in
        number; None if the baseline then made none."""
        (baseline,) = (one for one in self.measured if one.side == self.baseline)
        if measured.completion_tokens == baseline.completion_tokens:
            return baseline.median_s / measured.median_s
        return measured.tokens_per_s / baseline.tokens_per_s if baseline.completion_tokens else None

    def lines(self) -> list[str]:
        """A table, ratios first, and what it was measured on."""
        header = ["", "times as fast", "seconds (least to most)", "tokens/s", "acceptance length", "rows that differ"]
        table = format_table(header, [self._cells(measured) for measured in self.measured])
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        rows = counted(self.num_rows, "row")
        if self.num_output_rows != self.num_rows:
            rows += f" ({counted(self.num_output_rows, 'output row')})"
        rows += f" of {self.job}, {self.prompt_tokens} prompt tokens"
        return [table, "", f"{rows}; as fast as {self.baseline} is 1.", *self.notices(), facts]

    def notices(self) -> list[str]:
        """What keeps the sides from being alike, a line each."""
        found = []
        if self.left_out:
            keys = ", ".join(self.left_out)
            found.append(
                f"mlx-lm's side leaves out {keys}, which it does not have, and so may make more or fewer tokens."
            )
        if len({one.completion_tokens for one in self.measured}) > 1:
            found.append("The sides made different numbers of tokens: times as fast compares tokens per second.")
        if any(one.comparable_rows < self.num_output_rows for one in self.measured):
            found.append("Rows that differ counts no rows that a side draws with noise of its own or under other keys.")
        return found

    def to_json(self) -> dict[str, object]:
        sides = [
            asdict(one) | {"median_s": one.median_s, "tokens_per_s": one.tokens_per_s, "ratio": self.ratio(one)}
            for one in self.measured
        ]
        return asdict(self) | {"measured": sides, "notices": self.notices()}

    def _cells(self, measured: Measured) -> list[str]:
        spread = f"{measured.median_s:.2f} ({min(measured.seconds):.2f} to {max(measured.seconds):.2f})"
        speed, length = figure(measured.tokens_per_s, 0), figure(measured.acceptance_length, 2)
        return [measured.side, figure(self.ratio(measured), 2), spread, speed, length, self._difference(measured)]

    def _difference(self, measured: Measured) -> str:
        if measured.rows_that_differ is None:
            return "-"
        is_whole = measured.comparable_rows == self.num_output_rows
        return str(measured.rows_that_differ) + ("" if is_whole else f" of {measured.comparable_rows}")


@dataclass(frozen=True, slots=True)
class _Rows:
    """The input rows to decode. Each run takes requests of its own, since their matchers move."""

    prompts: Sequence[Prompt]
    codec: TextCodec

    def requests(self) -> list[Request]:
        return list(self._requests())

    def warm_up_requests(self) -> list[Request]:
        return list(islice(self._requests(), _NUM_WARM_UP_ROWS))

    def _requests(self) -> Iterator[Request]:
        for prompt in self.prompts:
            requests = self.codec.requests(prompt, range(prompt.sampling.n))
            assert not isinstance(requests, RowError)
            yield from requests


def bench_job(
    job_path: Path, *, max_rows: int | None, repeats: int, batch_sizes: Sequence[int], say: Callable[[str], None]
) -> JobBench:
    """Measures a job on its first `max_rows` input rows that can be decoded (None: all), with all their samples.

    `batch_sizes` are mlx-lm's, empty for the engine's own. Raises the errors of a run, and InputError if no row can be
    decoded.
    """
    job = load_job(job_path)
    models = open_models(job, MlxBackend())
    decoder, rows = _prepare(job, models, max_rows, say)
    sides = _sides(decoder, rows.codec, list(dict.fromkeys(batch_sizes)) or [decoder.max_rows])
    # A model that is quantized while it is read is left to the sides that share it.
    if is_installed() and job.engine.weights is None and all(map(is_served, rows.requests())):
        sides += _reference_sides(decoder, models, rows.codec)
    runs = _take_turns(sides, rows, repeats, say)
    requests = rows.requests()
    expected = next(tokens for name, _, tokens in runs if name == WITHOUT_DRAFTER)
    measured = tuple(_measured(side, runs, requests, expected) for side in sides)
    baselines = [one for one, side in zip(measured, sides, strict=True) if isinstance(side, MlxLmSide)]
    return JobBench(
        job=str(job_path),
        num_rows=len(rows.prompts),
        num_output_rows=len(requests),
        prompt_tokens=sum(len(request.tokens) for request in requests if request.key.sample == 0),
        machine=machine_facts(),
        measured=measured,
        baseline=max(baselines, key=lambda one: (one.tokens_per_s, -one.median_s)).side,
        left_out=tuple(dict.fromkeys(key for request in requests for key in left_out(request))),
    )


def _prepare(job: Job, models: Models, max_rows: int | None, say: Callable[[str], None]) -> tuple[BatchDecoder, _Rows]:
    table = InputTable.open(job.input, job.sampling)
    codec = models.codec
    good = (prompt for prompt in table.prompts() if not isinstance(codec.requests(prompt, [0]), RowError))
    rows = _Rows(list(islice(good, max_rows)), codec)
    if not rows.prompts:
        raise InputError("no row of the input can be decoded, so there is nothing to measure; see `batchgen check`")
    say(f"loading {job.model}")
    options = engine_options(job, codec.eos_token_ids, time.monotonic)
    return engine.load(models.model.path, models.drafter_path, options), rows


def _sides(decoder: BatchDecoder, codec: TextCodec, batch_sizes: Sequence[int]) -> list[Side]:
    target, options, ends = decoder.target, decoder.options, codec.eos_token_ids
    sides: list[Side] = []
    if decoder.drafter is not None:
        sides.append(EngineSide(WITH_DRAFTER, target, decoder.drafter, options, ends))
    sides.append(EngineSide(WITHOUT_DRAFTER, target, None, replace(options, block_size=1), ends))
    sides += [MlxLmSide(target.model, size, ends, codec.vocab_size, options.logprobs) for size in batch_sizes]
    return sides


def _reference_sides(decoder: BatchDecoder, models: Models, codec: TextCodec) -> list[Side]:
    """The reference's own decoding, where the job has a drafter."""
    if models.drafter_path is None:
        return []
    block = decoder.options.block_size
    return [ReferenceSide(models.model.path, models.drafter_path, decoder.target.dtype, block, codec.eos_token_ids)]


def _take_turns(
    sides: Sequence[Side], rows: _Rows, repeats: int, say: Callable[[str], None]
) -> list[tuple[str, float, Tokens]]:
    """Each side once per repeat, after a run of a few rows that is not counted."""
    for side in sides:
        side.run(rows.warm_up_requests())
    runs = []
    for repeat in range(repeats):
        for side in sides:
            requests = rows.requests()
            started = time.perf_counter()
            tokens = side.run(requests)
            seconds = time.perf_counter() - started
            runs.append((side.name, seconds, tokens))
            say(f"repeat {repeat + 1} of {repeats}: {side.name} {seconds:.2f} s")
    return runs


def _measured(
    side: Side, runs: Sequence[tuple[str, float, Tokens]], requests: Sequence[Request], expected: Tokens
) -> Measured:
    mine = [(seconds, tokens) for name, seconds, tokens in runs if name == side.name]
    tokens = mine[-1][1]
    comparable = [request.key for request in requests if side.is_comparable(request)]
    return Measured(
        side=side.name,
        seconds=tuple(seconds for seconds, _ in mine),
        completion_tokens=sum(len(row) for row in tokens.values()),
        acceptance_length=side.acceptance_length,
        comparable_rows=len(comparable),
        rows_that_differ=sum(tokens[key] != expected[key] for key in comparable) if comparable else None,
    )
