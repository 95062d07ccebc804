"""Reading prompts: rows of similar length together, a chunk at a time, each row to its own end.

A group owns its caches until a row has read its whole prompt; the decoder then copies that row into a slot.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from batchgen.engine.arrays import int_array, read_ints
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.row import Row
from batchgen.engine.target.model import Target

# A group's chunk holds at most this many tokens over all its rows, padding counted: bounds memory and the wait of
# rows that decode in between.
GROUP_TOKENS = 4096
_SIMILAR = 1.25
_SIMILAR_TOKENS = 32


def choose_group(lengths: Sequence[int], chunk: int) -> list[int]:
    """Which waiting prompts to read together: the first, and those of similar length behind it, as far as they fit."""
    if not lengths:
        return []
    first = lengths[0]
    low, high = first / _SIMILAR - _SIMILAR_TOKENS, first * _SIMILAR + _SIMILAR_TOKENS
    group: list[int] = []
    longest = 0
    for index, length in enumerate(lengths):
        widest = max(longest, length)
        if low <= length <= high and (not group or (len(group) + 1) * min(widest, chunk) <= GROUP_TOKENS):
            group.append(index)
            longest = widest
    return group


class PrefillGroup:
    """Rows whose prompts are being read, with caches of their own."""

    def __init__(self, rows: Sequence[Row], target: Target, drafter: Drafter | None, chunk: int) -> None:
        self.rows: list[Row | None] = list(rows)
        self.state = target.make_state(len(rows))
        self.context: DraftContext | None = None if drafter is None else drafter.make_context(len(rows))
        self._target, self._drafter, self._chunk = target, drafter, chunk

    @property
    def num_rows(self) -> int:
        return sum(row is not None for row in self.rows)

    def turn(self, clock: Callable[[], float]) -> list[int]:
        """Reads one chunk; gives the rows that reached their end their first token, and returns their indices."""
        left = [0 if row is None else len(row.request.tokens) - row.num_prefilled for row in self.rows]
        width = min(self._chunk, max(left))
        counts = [min(width, tokens) for tokens in left]
        tokens = mx.array([self._next_tokens(row, width) for row in self.rows], dtype=mx.int32)
        device_counts = int_array(counts)
        hidden = self._target.prefill(self.state, tokens, device_counts)
        arrays = self.state.arrays()
        if self._drafter is not None and self.context is not None and hidden.features is not None:
            self._drafter.extend(self.context, hidden.features, device_counts)
            arrays += self.context.arrays()
        done = [index for index, row in enumerate(self.rows) if row is not None and counts[index] == left[index]]
        firsts = self._first_tokens(hidden.final, done, counts)
        mx.eval(firsts, arrays)
        now_s = clock()
        for row, count in zip(self.rows, counts, strict=True):
            if row is not None:
                row.num_prefilled += count
        for index, token in zip(done, read_ints(firsts), strict=True):
            row = self.rows[index]
            assert row is not None
            row.begin(token, now_s)
        return done

    def _next_tokens(self, row: Row | None, width: int) -> list[int]:
        tokens = [] if row is None else list(row.request.tokens[row.num_prefilled : row.num_prefilled + width])
        return tokens + [0] * (width - len(tokens))

    def _first_tokens(self, final: mx.array, done: Sequence[int], counts: Sequence[int]) -> mx.array:
        if not done:
            return mx.zeros((0,), mx.int32)
        rows = int_array(done)
        last = int_array([counts[index] - 1 for index in done])
        return mx.argmax(self._target.logits(final[rows, last]), axis=-1)
