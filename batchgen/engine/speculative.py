"""One decoding round for all rows: draft, verify, accept, commit. Arrays only; what it means for a row is Row's.

Without a drafter the same round runs with a block of one token: plain decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array, read_int_rows, read_ints
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.target.model import Target
from batchgen.engine.target.state import TargetState


@dataclass(slots=True)
class Slots:
    """The device side of the rows that decode: their caches, and the last token of each, which no cache holds yet."""

    state: TargetState
    context: DraftContext | None
    anchors: mx.array  # [R] int32

    def caches(self) -> list[TargetState | DraftContext]:
        """The target's, and the drafter's where there is one."""
        return [self.state] if self.context is None else [self.state, self.context]

    def arrays(self) -> list[mx.array]:
        return [self.anchors, *(array for rows in self.caches() for array in rows.arrays())]

    def take(self, indices: Sequence[int]) -> None:
        for rows in self.caches():
            rows.take(indices)
        self.anchors = self.anchors[int_array(indices)]

    def resize(self, num_rows: int) -> None:
        missing = num_rows - self.anchors.shape[0]
        for rows in self.caches():
            rows.resize(num_rows)
        self.anchors = mx.concatenate([self.anchors, mx.zeros((missing,), mx.int32)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round decided, on the host: per row the target's choice at each position of its block, and how many
    drafts matched it."""

    choices: list[list[int]]
    num_accepted: list[int]


def count_accepted(drafts: mx.array, choices: mx.array, block_lengths: mx.array) -> mx.array:
    """How many drafts [R, L - 1] equal the target's choices [R, L] from the start, within each row's block; [R]."""
    inside = mx.arange(drafts.shape[1]) < (block_lengths - 1)[:, None]
    agree = (drafts == choices[:, :-1]) & inside
    return mx.cumprod(agree.astype(mx.int32), axis=1).sum(axis=1)


def decode_round(target: Target, drafter: Drafter | None, slots: Slots, block_lengths: Sequence[int]) -> Verdict:
    """Runs one round over all slots; a slot with block length 0 is empty and stays so.

    The one host synchronisation is at its end.
    """
    block = max(block_lengths)
    lengths = int_array(block_lengths)
    tokens = slots.anchors[:, None]
    if drafter is not None and slots.context is not None and block > 1:
        drafts = drafter.propose(slots.context, slots.anchors, block, mx.maximum(lengths, 1))
        tokens = mx.concatenate([tokens, drafts], axis=1)
    logits, features = target.verify(slots.state, tokens)
    choices = mx.argmax(logits, axis=-1).astype(mx.int32)
    num_accepted = count_accepted(tokens[:, 1:], choices, lengths)
    counts = mx.where(lengths > 0, num_accepted + 1, 0)
    slots.state.commit(counts, tokens.shape[1])
    if drafter is not None and slots.context is not None and features is not None:
        drafter.extend(slots.context, features, counts)
    slots.anchors = mx.take_along_axis(choices, num_accepted[:, None], axis=1)[:, 0]
    mx.async_eval(choices, num_accepted, slots.arrays())
    return Verdict(read_int_rows(choices), read_ints(num_accepted))
