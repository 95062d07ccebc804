"""One decoding round for all rows: draft, verify, accept, commit. Arrays only; what it means for a row is Row's.

Without a drafter the same round runs with a block of one token: plain decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array, read_float_rows, read_int_rows, read_ints
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
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
    """What a round decided, on the host: per row the tokens of its block, how many of them are drafts that stand (the
    next is the target's own), and the tokens' log probabilities, empty where nobody asks for them."""

    tokens: list[list[int]]
    num_accepted: list[int]
    logprobs: list[list[float]]


def decode_round(
    target: Target,
    drafter: Drafter | None,
    slots: Slots,
    block_lengths: Sequence[int],
    rules: Rules,
    coupling: Coupling,
    judge: Judge = decide,
) -> Verdict:
    """Runs one round over all slots; a slot with block length 0 is empty and stays so.

    The one host synchronisation is at its end; with a grammar there is another, for the drafts, while the target works.
    """
    block = max(block_lengths)
    lengths = int_array(block_lengths)
    tokens, proposal = slots.anchors[:, None], None
    if drafter is not None and slots.context is not None and block > 1:
        least = mx.maximum(lengths, 1)
        proposal = drafter.propose_by(slots.context, slots.anchors, block, least, rules, coupling)
        tokens = mx.concatenate([tokens, proposal.drafts], axis=1)
    logits, features = target.verify(slots.state, tokens)
    allowed = _grammar_masks(rules, tokens, logits)
    decision = judge(rules, coupling, logits, slots.anchors, proposal, lengths, allowed)
    counts = mx.where(lengths > 0, decision.num_accepted + 1, 0)
    target.commit(slots.state, counts, tokens.shape[1])
    if drafter is not None and slots.context is not None and features is not None:
        drafter.extend(slots.context, features, counts)
    rules.advance(tokens, counts)
    slots.anchors = mx.take_along_axis(decision.tokens, decision.num_accepted[:, None], axis=1)[:, 0]
    logprobs = [] if decision.logprobs is None else [decision.logprobs]
    mx.async_eval(decision.tokens, decision.num_accepted, logprobs, slots.arrays(), rules.arrays())
    return Verdict(
        tokens=read_int_rows(decision.tokens),
        num_accepted=read_ints(decision.num_accepted),
        logprobs=read_float_rows(logprobs[0]) if logprobs else [[] for _ in block_lengths],
    )


def _grammar_masks(rules: Rules, tokens: mx.array, logits: mx.array) -> mx.array | None:
    """What the rows' grammars allow behind each of tokens [R, L]; found on the host while the target works."""
    if not rules.has_grammar:
        return None
    mx.async_eval(tokens)
    mx.async_eval(logits)
    drafts = [row[1:] for row in read_int_rows(tokens)]
    return rules.grammar_masks(drafts, logits.shape[-1])
