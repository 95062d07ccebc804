"""`bench --geometry`: a model's shape with random weights, this engine's sides beside mlx-lm's, in one process.

The sides take turns, so that a machine that slows down slows them all; figures are medians.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from batchgen.bench.geometry_floor import Bandwidth, Traffic, bandwidth_of, drafted_traffic, target_traffic
from batchgen.bench.geometry_models import RandomPair, make_pair
from batchgen.bench.geometry_report import GeometryBench, GeometryPlan, MeasuredSide
from batchgen.bench.geometry_sides import WINDOW, EngineDecoding, GeometrySide, MlxLmBatch, MlxLmSingle, Prompts, Timed
from batchgen.bench.geometry_specs import GEOMETRIES, Geometry
from batchgen.bench.machine import machine_facts

_LEAST_WINDOWS = 4  # a median of fewer says little

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Turn:
    timed: Timed
    prefill_s: float
    peak_bytes: int


def bench_geometry(plan: GeometryPlan, say: Say) -> GeometryBench:
    """Makes the models and measures all sides at each number of rows."""
    geometry = GEOMETRIES[plan.geometry]
    say(f"making {plan.geometry} in {plan.dtype}")
    pair = make_pair(geometry, plan.block, getattr(mx, plan.dtype))
    machine = machine_facts()
    bandwidth = bandwidth_of(str(machine["device"]))
    measured: list[MeasuredSide] = []
    for num_rows in plan.batches:
        measured += _measure_rows(plan, geometry, pair, bandwidth, num_rows, say)
    return GeometryBench(plan, pair.target_bytes, pair.drafter_bytes, bandwidth, machine, tuple(measured))


def random_prompts(num_rows: int, length: int, vocab_size: int) -> Prompts:
    """Prompts of `length` tokens, the same in every run; the last token id, the drafter's mask, is not among them."""
    tokens: list[list[int]] = np.random.default_rng(0).integers(0, vocab_size - 1, (num_rows, length)).tolist()
    return tokens


def _measure_rows(
    plan: GeometryPlan, geometry: Geometry, pair: RandomPair, bandwidth: Bandwidth, num_rows: int, say: Say
) -> list[MeasuredSide]:
    sides = _sides(plan, pair, num_rows)
    prompts = random_prompts(num_rows, plan.context, geometry.target.vocab_size)
    turns: dict[str, list[_Turn]] = {side.name: [] for side in sides}
    for repeat in range(plan.repeats):
        for side in sides:
            turn = _take_turn(side, prompts, _num_rounds(plan.tokens, side), pair)
            turns[side.name].append(turn)
            milliseconds = 1e3 * statistics.median(turn.timed.round_s)
            say(f"{num_rows} rows, repeat {repeat + 1} of {plan.repeats}: {side.name} {milliseconds:.2f} ms a round")
    rates = {side.name: _tokens_per_s(turns[side.name], num_rows) for side in sides}
    baseline = max((side.name for side in sides if not isinstance(side, EngineDecoding)), key=lambda name: rates[name])
    measured = []
    for side in sides:
        traffic = (target_traffic if side.acceptance is None else drafted_traffic)(geometry, pair)
        speedup = rates[side.name] / rates[baseline]
        measured.append(_measured(side, turns[side.name], num_rows, speedup, traffic, bandwidth))
    return measured


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


def _take_turn(side: GeometrySide, prompts: Prompts, num_rounds: int, pair: RandomPair) -> _Turn:
    """Decoding comes first, so that the prefill that is timed finds everything warm."""
    mx.clear_cache()
    mx.reset_peak_memory()
    timed = side.decode(prompts, num_rounds)
    prefill_s = side.prefill(prompts)
    # The drafter lies in memory beside every side, but is a cost of those that use it only.
    unused = pair.drafter_bytes if side.acceptance is None else 0
    return _Turn(timed, prefill_s, mx.get_peak_memory() - unused)


def _tokens_per_s(turns: Sequence[_Turn], num_rows: int) -> float:
    return num_rows * turns[0].timed.tokens_per_round / _round_s(turns)


def _round_s(turns: Sequence[_Turn]) -> float:
    return statistics.median(seconds for turn in turns for seconds in turn.timed.round_s)


def _measured(
    side: GeometrySide, turns: Sequence[_Turn], num_rows: int, speedup: float, traffic: Traffic, bandwidth: Bandwidth
) -> MeasuredSide:
    timed, round_s = turns[0].timed, _round_s(turns)
    floor_s = traffic.bytes(num_rows, timed.mean_length) / bandwidth.bytes_per_s
    return MeasuredSide(
        side=side.name,
        num_rows=num_rows,
        wanted_acceptance=side.acceptance,
        speedup=speedup,
        efficiency=speedup / timed.tokens_per_round,
        tokens_per_row_and_round=timed.tokens_per_round,
        ms_per_round=1e3 * round_s,
        rounds_per_s=1 / round_s,
        tokens_per_s=num_rows * timed.tokens_per_round / round_s,
        floor_ms=1e3 * floor_s,
        floor_share=floor_s / round_s,
        prefill_s=statistics.median(turn.prefill_s for turn in turns),
        peak_bytes=max(turn.peak_bytes for turn in turns),
        mean_length=timed.mean_length,
        window_ms=tuple(1e3 * seconds for turn in turns for seconds in turn.timed.round_s),
    )
