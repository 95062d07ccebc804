"""`bench --geometry --prefill`: reading prompts and nothing else, this engine beside mlx-lm, in one process."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from batchgen.bench.geometry_models import PairFacts, RandomPair, make_pair
from batchgen.bench.geometry_sides import (
    EngineDecoding,
    GeometrySide,
    MlxLmBatch,
    MlxLmSingle,
    Prompts,
    measure_peak,
    random_prompts,
)
from batchgen.bench.machine import machine_facts
from batchgen.report.table import counted, figure, format_table

Say = Callable[[str], None]

# mlx-lm reads gated-delta layers token by token where it has no kernel for them, and then takes minutes for what is
# long.
_MOST_MLX_LM_S = 20.0
_BATCH_LENGTH, _BATCH_ROWS = 256, 8


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What to measure: prompts of these lengths, one at a time, and eight at a time of the length 256."""

    geometry: str
    lengths: tuple[int, ...]
    block: int
    repeats: int
    dtype: str


@dataclass(frozen=True, slots=True)
class MeasuredPrefill:
    """Medians of one side; `seconds` of each repeat are empty where the side was skipped, and `speedup` None where
    mlx-lm's was. `expected_s` is what a skipped side would have taken at the pace of the length before."""

    side: str
    num_rows: int
    length: int
    seconds: tuple[float, ...]
    speedup: float | None
    peak_bytes: int | None
    expected_s: float | None = None

    @property
    def prefill_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.prefill_s is None else self.num_rows * self.length / self.prefill_s

    def cells(self) -> list[str]:
        peak_gb = None if self.peak_bytes is None else self.peak_bytes / 1e9
        figures = [(self.speedup, 2), (self.prefill_s, 3), (self.tokens_per_s, 0), (peak_gb, 2)]
        return [self.side, *(figure(value, digits) for value, digits in figures)]


@dataclass(frozen=True, slots=True)
class PrefillBench:
    """All sides at all lengths."""

    plan: PrefillPlan
    models: PairFacts
    machine: Mapping[str, str | int]
    measured: tuple[MeasuredPrefill, ...]

    def lines(self) -> list[str]:
        """A table for each length, ratios first, and what they were measured on."""
        found: list[str] = []
        for num_rows, length in dict.fromkeys((one.num_rows, one.length) for one in self.measured):
            header = [f"{counted(num_rows, 'row')} of {length:,}", "times as fast", "prefill s", "tokens/s", "peak GB"]
            mine = [one for one in self.measured if (one.num_rows, one.length) == (num_rows, length)]
            found += [format_table(header, [one.cells() for one in mine]), ""]
            found += [_skipped(one, one.expected_s) for one in mine if one.expected_s is not None]
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        return [*found, self.models.line(), "Seconds until every prompt's first token is known; mlx-lm is 1.", facts]

    def to_json(self) -> dict[str, object]:
        sides = [asdict(one) | {"prefill_s": one.prefill_s, "tokens_per_s": one.tokens_per_s} for one in self.measured]
        return asdict(self) | {"measured": sides}


def _skipped(side: MeasuredPrefill, expected_s: float) -> str:
    return f"{side.side} was skipped: it would have taken about {expected_s:,.0f} s.\n"


def bench_prefill(plan: PrefillPlan, say: Say) -> PrefillBench:
    """Makes the models and reads prompts of each length with all sides in turn."""
    pair = make_pair(plan.geometry, plan.block, plan.dtype, say)
    lengths = sorted(set(plan.lengths))
    cases = [(1, length) for length in lengths]
    cases += [(_BATCH_ROWS, length) for length in lengths if length == _BATCH_LENGTH]
    measured: list[MeasuredPrefill] = []
    for num_rows, length in cases:
        measured += _measure(plan, pair, num_rows, length, measured, say)
    return PrefillBench(plan, pair.facts(), machine_facts(), tuple(measured))


def _measure(
    plan: PrefillPlan, pair: RandomPair, num_rows: int, length: int, before: Sequence[MeasuredPrefill], say: Say
) -> list[MeasuredPrefill]:
    """All sides at one length; the last of them is mlx-lm's."""
    prompts = random_prompts(num_rows, length, pair.vocab_size)
    sides = _sides(pair, plan.block, num_rows)
    mlx_lm = list(sides)[-1]
    expected_s = _expected_s(mlx_lm, length, before)
    is_skipped = expected_s is not None and expected_s > _MOST_MLX_LM_S
    chosen = {name: side for name, side in sides.items() if not (is_skipped and name == mlx_lm)}
    turns = _take_turns(chosen, prompts, pair, plan.repeats, say)
    baseline_s = None if is_skipped else statistics.median(seconds for seconds, _ in turns[mlx_lm])
    found = [_measured(name, num_rows, length, turns[name], baseline_s) for name in chosen]
    if is_skipped:
        found.append(MeasuredPrefill(mlx_lm, num_rows, length, (), None, None, expected_s))
    return found


def _sides(pair: RandomPair, block: int, num_rows: int) -> dict[str, GeometrySide]:
    model = pair.target.model
    mlx_lm: GeometrySide = MlxLmSingle(model) if num_rows == 1 else MlxLmBatch(model)
    return {
        "with drafter": EngineDecoding(pair, block, acceptance=1.0),
        "without drafter": EngineDecoding(pair, block, acceptance=None),
        mlx_lm.name: mlx_lm,
    }


def _expected_s(side: str, length: int, before: Sequence[MeasuredPrefill]) -> float | None:
    """Seconds at the side's pace at the last length, None where it has none."""
    known = [(one.length, one.prefill_s or one.expected_s) for one in before if one.side == side]
    if not known or known[-1][1] is None:
        return None
    return known[-1][1] * length / known[-1][0]


def _take_turns(
    sides: Mapping[str, GeometrySide], prompts: Prompts, pair: RandomPair, repeats: int, say: Say
) -> dict[str, list[tuple[float, int]]]:
    """Each side's seconds and peak memory once per repeat, after a pass that is not counted."""
    for side in sides.values():
        side.prefill(prompts)
    turns: dict[str, list[tuple[float, int]]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name, side in sides.items():
            seconds, peak = measure_peak(side, pair, partial(side.prefill, prompts))
            turns[name].append((seconds, peak))
            what = f"{len(prompts)} x {len(prompts[0])} tokens, repeat {repeat + 1} of {repeats}"
            say(f"{what}: {name} {seconds:.3f} s")
    return turns


def _measured(
    name: str, num_rows: int, length: int, turns: Sequence[tuple[float, int]], baseline_s: float | None
) -> MeasuredPrefill:
    seconds = tuple(one for one, _ in turns)
    speedup = None if baseline_s is None else baseline_s / statistics.median(seconds)
    return MeasuredPrefill(name, num_rows, length, seconds, speedup, max(peak for _, peak in turns))
