"""What `bench --geometry` was asked and what it found: a table for people, and everything as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from batchgen.bench.geometry_floor import Bandwidth
from batchgen.report.table import counted, figure, format_table


@dataclass(frozen=True, slots=True)
class GeometryPlan:
    """What to measure: numbers of rows, wanted tokens per row and round, the block with its anchor, tokens of a prompt,
    tokens to time per row, turns of each side."""

    geometry: str
    batches: tuple[int, ...]
    acceptances: tuple[float, ...]
    block: int
    context: int
    tokens: int
    repeats: int
    dtype: str


@dataclass(frozen=True, slots=True)
class MeasuredSide:
    """One side's medians at one number of rows. `speedup` is in tokens per second, to the faster of mlx-lm's sides;
    `efficiency` is that over the tokens per row and round."""

    side: str
    num_rows: int
    wanted_acceptance: float | None
    speedup: float
    efficiency: float
    tokens_per_row_and_round: float
    ms_per_round: float
    rounds_per_s: float
    tokens_per_s: float
    floor_ms: float
    floor_share: float
    prefill_s: float
    peak_bytes: int
    mean_length: float
    window_ms: tuple[float, ...]

    def cells(self) -> list[str]:
        return [
            self.side,
            figure(self.speedup, 2),
            figure(self.efficiency, 3),
            figure(self.tokens_per_row_and_round, 2),
            figure(self.floor_share, 2),
            figure(self.ms_per_round, 2),
            figure(self.rounds_per_s, 1),
            figure(self.tokens_per_s, 0),
            figure(self.prefill_s, 3),
            figure(self.peak_bytes / 1e9, 2),
        ]


_HEADER = (
    "times as fast",
    "efficiency",
    "tokens/round",
    "of floor",
    "ms/round",
    "rounds/s",
    "tokens/s",
    "prefill s",
    "peak GB",
)


@dataclass(frozen=True, slots=True)
class GeometryBench:
    """All sides of one measurement."""

    plan: GeometryPlan
    target_bytes: int
    drafter_bytes: int
    bandwidth: Bandwidth
    machine: Mapping[str, str | int]
    measured: tuple[MeasuredSide, ...]

    def lines(self) -> list[str]:
        """A table for each number of rows, ratios first, and what they were measured on."""
        found: list[str] = []
        for num_rows in self.plan.batches:
            header = [counted(num_rows, "row"), *_HEADER]
            rows = [one.cells() for one in self.measured if one.num_rows == num_rows]
            found += [format_table(header, rows), ""]
        return [*found, *facts(self.plan, self.target_bytes, self.drafter_bytes, self.bandwidth, self.machine)]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def facts(
    plan: GeometryPlan, target_bytes: int, drafter_bytes: int, bandwidth: Bandwidth, machine: Mapping[str, str | int]
) -> list[str]:
    """What a table was measured on, and what its columns are."""
    return [
        f"{plan.geometry} with random weights in {plan.dtype}: target {target_bytes / 1e9:.2f} GB, drafter "
        f"{drafter_bytes / 1e9:.2f} GB, block {plan.block}; the number of accepted drafts is drawn.",
        f"Prompts of {counted(plan.context, 'token')}; the faster of mlx-lm's sides is 1; efficiency is times as fast "
        "over tokens/round; of floor is what memory traffic alone would take, over ms/round.",
        f"bandwidth {bandwidth.bytes_per_s / 1e9:,.0f} GB/s, {bandwidth.source}",
        ", ".join(f"{name} {value}" for name, value in machine.items()),
    ]
