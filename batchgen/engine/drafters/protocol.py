"""What the speculative loop asks of a drafter, whatever kind it is. No drafter's own knowledge stands here."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from batchgen.engine.caches.context import DraftContext
from batchgen.engine.memory import RowBytes
from batchgen.engine.sampling.coupling import Coupling, Proposal
from batchgen.engine.sampling.rules import Rules


class Drafter(Protocol):
    """Proposes tokens for many rows at once. A row's proposal depends on that row alone."""

    @property
    def block_size(self) -> int:
        """The block it was made for: the anchor and block_size - 1 drafts. Any other size works too."""
        ...

    @property
    def target_layer_ids(self) -> Sequence[int]:
        """The target's layers (0-based) whose outputs it reads, in this order."""
        ...

    @property
    def row_bytes(self) -> RowBytes:
        """What a row takes in a context, and while a block of it is drafted."""
        ...

    def make_context(self, num_rows: int) -> DraftContext:
        """A context of rows that have no tokens yet."""
        ...

    def extend(self, context: DraftContext, features: mx.array, counts: mx.array) -> None:
        """Row r takes the first counts[r] of features [R, T, ids * H]; what follows them may be anything."""
        ...

    def propose(
        self, context: DraftContext, anchors: mx.array, block: int, block_lengths: mx.array | None = None
    ) -> mx.array:
        """Drafts [R, block - 1] int32 that follow the anchors [R], each row's last token, not in its context yet.

        With block_lengths [R] (1 to block), row r drafts as it would in a block of that length; its entries from
        block_lengths[r] - 1 on are arbitrary token ids. Leaves the context as it is.
        """
        ...

    def propose_by(
        self,
        context: DraftContext,
        anchors: mx.array,
        block: int,
        block_lengths: mx.array,
        rules: Rules,
        coupling: Coupling,
    ) -> Proposal:
        """The same drafts as the rows' rules would have them: what `propose` gives for rows without any.

        A sampled row's drafts are drawn at its temperature; with shared coupling by the very noise that the target's
        own choice will be made with.
        """
        ...
