"""What `bench --geometry` was asked and what it found: a table for people, and everything as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from batchgen.bench.geometry_floor import Bandwidth
from batchgen.bench.geometry_models import PairFacts
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
    models: PairFacts
    bandwidth: Bandwidth
    machine: Mapping[str, str | int]
    measured: tuple[MeasuredSide, ...]

    def lines(self) -> list[str]:
        """A table for each number of rows, ratios first, and what they were measured on."""
        found: list[str] = []
        for num_rows in dict.fromkeys(self.plan.batches):
            header = [counted(num_rows, "row"), *_HEADER]
            rows = [one.cells() for one in self.measured if one.num_rows == num_rows]
            found += [format_table(header, rows), ""]
        return [*found, *self._facts()]

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def _facts(self) -> list[str]:
        """What the tables were measured on, and what their columns are."""
        return [
            f"{self.models.line()} How many drafts are accepted is drawn.",
            f"Prompts of {counted(self.plan.context, 'token')}; the faster of mlx-lm's sides is 1.",
            "efficiency: times as fast over tokens/round; of floor: the time of memory traffic alone over ms/round.",
            f"bandwidth {self.bandwidth.bytes_per_s / 1e9:,.0f} GB/s, {self.bandwidth.source}",
            ", ".join(f"{name} {value}" for name, value in self.machine.items()),
        ]
