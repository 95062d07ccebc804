"""`bench --geometry`: a model's shape with random weights, this engine's sides beside mlx-lm's, in one process.

The sides take turns, so that a machine that slows down slows them all; figures are medians.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from batchgen.bench.geometry_floor import Bandwidth, bandwidth_of, drafted_traffic, target_traffic
from batchgen.bench.geometry_models import RandomPair, make_pair
from batchgen.bench.geometry_report import GeometryBench, GeometryPlan, MeasuredSide
from batchgen.bench.geometry_sides import (
    WINDOW,
    EngineDecoding,
    GeometrySide,
    MlxLmBatch,
    MlxLmSingle,
    Prompts,
    Timed,
    measure_peak,
    random_prompts,
)
from batchgen.bench.machine import machine_facts
from batchgen.report.table import counted

_LEAST_WINDOWS = 4  # a median of fewer says little

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Turns:
    """One side's turns: what was timed in each, seconds of prefill, and the most bytes in use."""

    side: GeometrySide
    num_rows: int
    timed: list[Timed] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)

    @property
    def round_s(self) -> float:
        return statistics.median(seconds for timed in self.timed for seconds in timed.round_s)

    @property
    def tokens_per_round(self) -> float:
        return statistics.fmean(timed.tokens_per_round for timed in self.timed)

    @property
    def tokens_per_s(self) -> float:
        return self.num_rows * self.tokens_per_round / self.round_s

    def take(self, prompts: Prompts, num_rounds: int, pair: RandomPair) -> None:
        """Decoding comes first, so that the prefill that is timed finds everything warm."""

        def work() -> tuple[Timed, float]:
            return self.side.decode(prompts, num_rounds), self.side.prefill(prompts)

        (timed, prefill_s), peak = measure_peak(self.side, pair, work)
        self.timed.append(timed)
        self.prefill_s.append(prefill_s)
        self.peak_bytes.append(peak)


def bench_geometry(plan: GeometryPlan, say: Say) -> GeometryBench:
    """Makes the models and measures all sides at each number of rows."""
    pair = make_pair(plan.geometry, plan.block, plan.dtype, say)
    machine = machine_facts()
    bandwidth = bandwidth_of(str(machine["device"]))
    measured: list[MeasuredSide] = []
    for num_rows in dict.fromkeys(plan.batches):
        measured += _measure(plan, pair, bandwidth, num_rows, say)
    return GeometryBench(plan, pair.facts(), bandwidth, machine, tuple(measured))


def _measure(plan: GeometryPlan, pair: RandomPair, bandwidth: Bandwidth, num_rows: int, say: Say) -> list[MeasuredSide]:
    """All sides at one number of rows."""
    prompts = random_prompts(num_rows, plan.context, pair.vocab_size)
    turns = [_Turns(side, num_rows) for side in _sides(plan, pair, num_rows)]
    for repeat in range(plan.repeats):
        for one in turns:
            one.take(prompts, _num_rounds(plan.tokens, one.side), pair)
            what = f"{counted(num_rows, 'row')}, repeat {repeat + 1} of {plan.repeats}"
            say(f"{what}: {one.side.name} {1e3 * statistics.median(one.timed[-1].round_s):.2f} ms a round")
    baseline = max(one.tokens_per_s for one in turns if not isinstance(one.side, EngineDecoding))
    return [_measured(one, baseline, pair, bandwidth) for one in turns]


def _sides(plan: GeometryPlan, pair: RandomPair, num_rows: int) -> list[GeometrySide]:
    sides: list[GeometrySide] = [EngineDecoding(pair, plan.block, acceptance) for acceptance in plan.acceptances]
    sides.append(EngineDecoding(pair, plan.block, None))
    if num_rows == 1:
        sides.append(MlxLmSingle(pair.target.model))
    sides.append(MlxLmBatch(pair.target.model))
    return sides


def _num_rounds(tokens: int, side: GeometrySide) -> int:
    """Whole windows of rounds that make at least about `tokens` tokens a row."""
    return WINDOW * max(_LEAST_WINDOWS, math.ceil(tokens / (side.acceptance or 1.0) / WINDOW))


def _measured(turns: _Turns, baseline: float, pair: RandomPair, bandwidth: Bandwidth) -> MeasuredSide:
    """Medians, compared with `baseline` tokens per second."""
    traffic = (target_traffic if turns.side.acceptance is None else drafted_traffic)(pair)
    mean_length = statistics.fmean(timed.mean_length for timed in turns.timed)
    floor_s = traffic.bytes(turns.num_rows, mean_length) / bandwidth.bytes_per_s
    speedup = turns.tokens_per_s / baseline
    return MeasuredSide(
        side=turns.side.name,
        num_rows=turns.num_rows,
        wanted_acceptance=turns.side.acceptance,
        speedup=speedup,
        efficiency=speedup / turns.tokens_per_round,
        tokens_per_row_and_round=turns.tokens_per_round,
        ms_per_round=1e3 * turns.round_s,
        rounds_per_s=1 / turns.round_s,
        tokens_per_s=turns.tokens_per_s,
        floor_ms=1e3 * floor_s,
        floor_share=floor_s / turns.round_s,
        prefill_s=statistics.median(turns.prefill_s),
        peak_bytes=max(turns.peak_bytes),
        mean_length=mean_length,
        window_ms=tuple(1e3 * seconds for timed in turns.timed for seconds in timed.round_s),
    )
