"""The beginning that prompts share, such as a system text or a template: read once, copied into every row.

A copy is what the row would have computed itself, so nothing but the time depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.target.model import Target
from batchgen.engine.target.state import TargetState

# A shorter one is read again faster than it is copied.
LEAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that were read, and caches of one row as they were behind them."""

    tokens: Sequence[int]
    state: TargetState
    context: DraftContext | None

    def begins(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt begins with these tokens and goes on."""
        length = len(self.tokens)
        return len(prompt) > length and list(prompt[:length]) == list(self.tokens)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens from the start are the same."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def shared_beginning(prompts: Sequence[Sequence[int]]) -> Sequence[int]:
    """What the first prompt begins with and others do too, each going on after it; empty where there is none that is
    worth keeping."""
    first, *others = prompts
    shared = [(common_length(first, other), len(other)) for other in others]
    # One token at least is left to each prompt.
    lengths = [min(length, whole - 1) for length, whole in shared if length > LEAST_TOKENS]
    return first[: min(*lengths, len(first) - 1)] if lengths else ()


def read_prefix(tokens: Sequence[int], target: Target, drafter: Drafter | None, chunk: int) -> Prefix:
    """Reads the tokens into caches of one row, `chunk` at a time."""
    state = target.make_state(1)
    context = None if drafter is None else drafter.make_context(1)
    for start in range(0, len(tokens), chunk):
        piece = list(tokens[start : start + chunk])
        counts = int_array([len(piece)])
        hidden = target.prefill(state, mx.array([piece], dtype=mx.int32), counts)
        if drafter is not None and context is not None and hidden.features is not None:
            drafter.extend(context, hidden.features, counts)
        mx.eval(state.arrays(), [] if context is None else context.arrays())
    return Prefix(tuple(tokens), state, context)
