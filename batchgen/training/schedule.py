"""How long a training run goes on and how fast it learns: a budget of seconds or steps, and the rate over it.

The clock is an argument; nothing here touches a model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Budget:
    """Ends after `seconds` or after `steps`, whichever is first; None is no limit. One of them has to be given."""

    seconds: float | None
    steps: int | None

    def fraction(self, elapsed_s: float, step: int) -> float:
        """How much is used up, from 0 to 1."""
        by_time = 0.0 if self.seconds is None else elapsed_s / self.seconds if self.seconds > 0 else 1.0
        by_step = 0.0 if self.steps is None else step / self.steps if self.steps > 0 else 1.0
        return min(1.0, max(by_time, by_step))


def learning_rate(peak: float, fraction: float, warmup: float = 0.02, floor: float = 0.01) -> float:
    """A line up to `peak` over the first `warmup` of the budget, then half a cosine down to `floor` of it."""
    if fraction < warmup:
        return peak * max(fraction / warmup, 0.05)
    progress = (fraction - warmup) / (1.0 - warmup)
    return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)))
