"""One decoding round for all rows: draft, verify, accept, commit. Arrays only; what it means for a row is Row's.

Without a drafter the same round runs with a block of one token: plain decoding. A round is launched and read apart, so
that the next can be launched before this one is read: it needs nothing that only the host knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array, read_float_rows, read_int_rows, read_ints
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.row import Row
from batchgen.engine.sampling.coupling import Coupling, Decision, Proposal, decide
from batchgen.engine.sampling.rules import Rules
from batchgen.engine.target.model import Target
from batchgen.engine.target.state import TargetState

Judge = Callable[
    [Rules, Coupling, mx.array, mx.array, Proposal | None, mx.array, mx.array | None],
    Decision,
]
"""What `decide` does: rules, coupling, logits, anchors, proposal, block lengths, what grammars allow -> a decision."""


@dataclass(slots=True)
class Slots:
    """The device side of the rows that decode: their caches, the last token of each, which no cache holds yet, and how
    many more each may make; none in an empty slot."""

    state: TargetState
    context: DraftContext | None
    anchors: mx.array  # [R] int32
    remaining: mx.array  # [R] int32

    @property
    def num_rows(self) -> int:
        return self.anchors.shape[0]

    def caches(self) -> list[TargetState | DraftContext]:
        """The target's, and the drafter's where there is one."""
        return [self.state] if self.context is None else [self.state, self.context]

    def arrays(self) -> list[mx.array]:
        return [self.anchors, self.remaining, *(array for rows in self.caches() for array in rows.arrays())]

    def take(self, indices: Sequence[int]) -> None:
        for rows in self.caches():
            rows.take(indices)
        self.anchors, self.remaining = self.anchors[int_array(indices)], self.remaining[int_array(indices)]

    def resize(self, num_rows: int) -> None:
        blank = mx.zeros((num_rows - self.num_rows,), mx.int32)
        for rows in self.caches():
            rows.resize(num_rows)
        self.anchors = mx.concatenate([self.anchors, blank])
        self.remaining = mx.concatenate([self.remaining, blank])

    def begin(self, slots: Sequence[int], anchors: Sequence[int], remaining: Sequence[int]) -> None:
        """Sets where rows that were put into slots go on."""
        self.anchors[int_array(slots)] = int_array(anchors)
        self.remaining[int_array(slots)] = int_array(remaining)

    def release(self, slots: Sequence[int]) -> None:
        """Empties slots."""
        for rows in self.caches():
            rows.release(slots)
        self.remaining[int_array(slots)] = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round decided, on the host: per row the tokens of its block, how many of them are drafts that stand (the
    next is the target's own), and the tokens' log probabilities, empty where nobody asks for them."""

    tokens: list[list[int]]
    num_accepted: list[int]
    logprobs: list[list[float]]

    def give(self, row: Row, slot: int, block: int) -> bool:
        """Hands a row what was decided in its slot, in a round of `block`; returns whether that was its end."""
        length = row.block_length(block)
        row.emit(self.tokens[slot], self.num_accepted[slot], length, self.logprobs[slot])
        return row.is_finished


@dataclass(frozen=True, slots=True)
class Flight:
    """A round that was launched: the block's tokens [R, L] and how many of them each row takes in [R] (none in an empty
    slot), and what was decided."""

    block: int
    tokens: mx.array
    counts: mx.array
    decision: Decision

    def read(self) -> Verdict:
        """Waits for the round."""
        decision = self.decision
        num_rows = self.counts.shape[0]
        return Verdict(
            tokens=read_int_rows(decision.tokens),
            num_accepted=read_ints(decision.num_accepted),
            logprobs=[[]] * num_rows if decision.logprobs is None else read_float_rows(decision.logprobs),
        )


def launch_round(
    target: Target,
    drafter: Drafter | None,
    slots: Slots,
    block: int,
    rules: Rules,
    coupling: Coupling,
    judge: Judge = decide,
) -> Flight:
    """Starts a round over all slots with blocks of at most `block` tokens; each row's ends where its budget does.

    Nothing waits for the device, but with a grammar: then the drafts are read while the target works.
    """
    if drafter is None:
        block = 1
    lengths = mx.minimum(slots.remaining, block)
    tokens, proposal = slots.anchors[:, None], None
    if drafter is not None and slots.context is not None and block > 1:
        least = mx.maximum(lengths, 1)
        proposal = drafter.propose_by(slots.context, slots.anchors, block, least, rules, coupling)
        tokens = mx.concatenate([tokens, proposal.drafts], axis=1)
    if proposal is None:
        # Nothing can be rejected, so the anchors are taken in at once.
        logits, features = target.step(slots.state, tokens, lengths)
    else:
        logits, features = target.verify(slots.state, tokens)
    allowed = _grammar_masks(rules, tokens, logits)
    decision = judge(rules, coupling, logits, slots.anchors, proposal, lengths, allowed)
    counts = mx.where(lengths > 0, decision.num_accepted + 1, 0)
    if proposal is not None:
        target.commit(slots.state, counts, tokens.shape[1])
    if drafter is not None and slots.context is not None and features is not None:
        drafter.extend(slots.context, features, counts)
    rules.advance(tokens, counts)
    slots.anchors = mx.take_along_axis(decision.tokens, decision.num_accepted[:, None], axis=1)[:, 0]
    slots.remaining = slots.remaining - counts
    logprobs = [] if decision.logprobs is None else [decision.logprobs]
    mx.async_eval(decision.tokens, decision.num_accepted, logprobs, slots.arrays(), rules.arrays())
    return Flight(block, tokens, counts, decision)


def _grammar_masks(rules: Rules, tokens: mx.array, logits: mx.array) -> mx.array | None:
    """What the rows' grammars allow behind each of tokens [R, L]; found on the host while the target works."""
    if not rules.has_grammar:
        return None
    mx.async_eval(tokens)
    mx.async_eval(logits)
    drafts = [row[1:] for row in read_int_rows(tokens)]
    return rules.grammar_masks(drafts, logits.shape[-1])
