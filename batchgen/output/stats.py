"""The definitions of every figure that progress and reports show; nothing here reads files or prints.

    acceptance length of a group    (sum of accepted_tokens + sum of verify_passes) / sum of verify_passes
    tokens per second of a run      completion tokens / wall seconds

Both are None where they would divide by zero: no work done is no figure, not a 0 or a NaN.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from batchgen.schema import acceptance_length, result_values
from batchgen.types import Result


@dataclass(slots=True)
class Totals:
    """Running sums over rows. The one mutable value here: rows are added as they finish or are read back."""

    num_rows: int = 0
    num_empty: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    verify_passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def num_errors(self) -> int:
        return self.errors.total()

    @property
    def num_ok(self) -> int:
        return self.num_rows - self.num_errors

    @property
    def acceptance_length(self) -> float | None:
        return acceptance_length(self.accepted_tokens, self.verify_passes)

    def add(self, values: Mapping[str, object]) -> None:
        """Adds one row given by its result columns; null counts are none."""
        self.num_rows += 1
        if values["status"] == "error":
            self.errors[str(values["error_kind"])] += 1
        elif values["completion"] == "":
            self.num_empty += 1
        self.prompt_tokens += _count(values["prompt_tokens"])
        self.completion_tokens += _count(values["completion_tokens"])
        self.verify_passes += _count(values["verify_passes"])
        self.drafted_tokens += _count(values["drafted_tokens"])
        self.accepted_tokens += _count(values["accepted_tokens"])

    def add_result(self, result: Result) -> None:
        """Adds one row as it comes from the loop."""
        self.add(result_values(result))


TOTALS_COLUMNS = (
    "status",
    "error_kind",
    "completion",
    "prompt_tokens",
    "completion_tokens",
    "verify_passes",
    "drafted_tokens",
    "accepted_tokens",
)


def tokens_per_s(completion_tokens: int, wall_s: float) -> float | None:
    """Tokens per second of a run; None for a run that took no time."""
    return completion_tokens / wall_s if wall_s > 0 else None


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
