"""Verdicts of a wanted acceptance length: everything is drafted, verified and judged, then the count is replaced.

Random weights agree by chance alone, so how many drafts stand is drawn beforehand from the distribution that a drafter
with the same chance at every position has.
"""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from batchgen.engine.arrays import read_ints
from batchgen.engine.sampling.coupling import Coupling, Decision, Proposal, decide
from batchgen.engine.sampling.rules import Rules

Counts = npt.NDArray[np.int32]

_BISECTIONS = 60


def chance_of(acceptance: float, block: int) -> float:
    """The chance of each draft to stand with which a round of `block` tokens yields `acceptance` (1 to block) on
    average: sum of chance^k over k < block."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if sum(middle**k for k in range(block)) < acceptance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def draw_counts(acceptance: float, block: int, num_rounds: int, num_rows: int, seed: int = 0) -> Counts:
    """How many drafts stand, [num_rounds, num_rows]: a truncated geometric distribution.

    Evenly spaced quantiles in a random order, so that few rounds come near the mean too.
    """
    chance = chance_of(acceptance, block)
    reached = np.array([chance ** (k + 1) for k in range(block - 1)])  # the chance of more than k
    num_draws = num_rounds * num_rows
    quantiles = (np.arange(num_draws) + 0.5) / num_draws
    counts = (quantiles[:, None] < reached).sum(axis=-1).astype(np.int32)
    return np.random.default_rng(seed).permutation(counts).reshape(num_rounds, num_rows)


class DrawnVerdicts:
    """A `Judge` that decides as usual, and then lets as many drafts stand as were drawn for the round; without counts
    it leaves the decision alone. Remembers what it gave; reading that waits for the device."""

    def __init__(self, counts: Counts | None) -> None:
        """`counts` [rounds, rows] are gone through again and again; rows are slots."""
        self._counts = None if counts is None else [mx.array(row) for row in counts]
        self._given: list[tuple[mx.array, mx.array]] = []
        mx.eval(self._counts or [])

    def __call__(
        self,
        rules: Rules,
        coupling: Coupling,
        logits: mx.array,
        anchors: mx.array,
        proposal: Proposal | None,
        block_lengths: mx.array,
        allowed: mx.array | None = None,
    ) -> Decision:
        decision = decide(rules, coupling, logits, anchors, proposal, block_lengths, allowed)
        if self._counts is not None:
            drawn = self._counts[len(self._given) % len(self._counts)][: anchors.shape[0]]
            most = mx.maximum(block_lengths - 1, 0)
            # Without the dependency the real count would never be computed.
            num_accepted = mx.depends(mx.minimum(drawn, most), decision.num_accepted)
            decision = replace(decision, num_accepted=num_accepted)
        self._given.append((decision.num_accepted, block_lengths))
        return decision

    @property
    def num_rounds(self) -> int:
        return len(self._given)

    @property
    def num_live(self) -> int:
        """Rows that decoded in the last round."""
        return sum(length > 0 for length in read_ints(self._given[-1][1])) if self._given else 0

    def tokens(self, first_round: int = 0) -> int:
        """Tokens that all rows together got in the rounds from that one on."""
        given = [mx.where(lengths > 0, count + 1, 0).sum() for count, lengths in self._given[first_round:]]
        return sum(read_ints(mx.stack(given))) if given else 0
