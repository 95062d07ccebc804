"""The DFlash drafters, versions 1 and 2, behind the protocol: blocks of many rows against their own contexts.

Holds the network, and borrows the target's embedding and head as plain functions. The proposal is a pure function of
arrays, so that it can be compiled; only `extend` changes a context.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from batchgen.engine import compiling
from batchgen.engine.caches.context import MAX_APPEND, DraftContext, key_positions
from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.drawing import draw_drafts
from batchgen.engine.drafters.model import DFlashModel, KeysValues
from batchgen.engine.drafters.selector import greedy_path, top_candidates
from batchgen.engine.drafters.visibility import visibility
from batchgen.engine.memory import RowBytes
from batchgen.engine.sampling.coupling import Coupling, Proposal
from batchgen.engine.sampling.rules import Rules

ArrayFunction = Callable[[mx.array], mx.array]

# Version 1 has no candidates of its own. Tokens beyond its best few are drawn too rarely to be worth their noise.
_NUM_CANDIDATES = 64


class DFlashDrafter:
    """A drafter for blocks of many rows.

    `embed` maps token ids [...] to the target's embeddings [..., H], its own scale included; `head` maps final states
    [..., H] to logits, without the target's softcap. `compiled` fuses the proposal's small operations; it pays on a
    GPU, where launches count, while on a CPU each new shape would cost a run of the C++ compiler.
    """

    def __init__(self, model: DFlashModel, embed: ArrayFunction, head: ArrayFunction, *, compiled: bool) -> None:
        self.model = model
        self.config = model.config
        self._embed = embed
        self._head = head
        self._draft = compiling.compiled(self._draft_tokens, when=compiled)
        self._forward = compiling.compiled(self.hidden_and_logits, when=compiled)
        self._project = compiling.compiled(self._project_features, when=compiled)

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def target_layer_ids(self) -> Sequence[int]:
        return self.config.target_layer_ids

    @property
    def row_bytes(self) -> RowBytes:
        itemsize = self.model.dtype.size
        entry = 2 * self.config.num_key_value_heads * self.config.head_dim * itemsize
        windows = [kind.window for kind in self.config.layer_kinds]
        kept = sum(window - 1 + MAX_APPEND for window in windows if window is not None)
        return RowBytes(
            fixed=kept * entry,
            # Attention reads context and block side by side, which is a copy of one layer at a time.
            per_token=(windows.count(None) + 1) * entry,
            per_position=self.config.vocab_size * (itemsize + mx.float32.size),
        )

    def make_context(self, num_rows: int) -> DraftContext:
        windows = [kind.window for kind in self.config.layer_kinds]
        sizes = (self.config.num_key_value_heads, self.config.head_dim)
        return DraftContext(num_rows, windows, *sizes, self.model.dtype)

    def extend(self, context: DraftContext, features: mx.array, counts: mx.array) -> None:
        """Projects all T rows and appends each row's first counts[r]; what follows them never reaches the context."""
        for start in range(0, features.shape[1], MAX_APPEND):
            piece = features[:, start : start + MAX_APPEND]
            num_new = mx.clip(counts - start, 0, piece.shape[1])
            context.append(self._project(piece, num_new, context.lengths), num_new)

    def _project_features(self, features: mx.array, counts: mx.array, lengths: mx.array) -> list[KeysValues]:
        states = self.model.context_features(features)
        # A masked key still meets a weight of 0 in attention, and 0 times a stray NaN would be NaN.
        states = mx.where((mx.arange(features.shape[1]) < counts[:, None])[..., None], states, 0)
        return self.model.project_context(states, lengths)

    def propose(
        self, context: DraftContext, anchors: mx.array, block: int, block_lengths: mx.array | None = None
    ) -> mx.array:
        """Greedy drafts [R, block - 1] int32; see `Drafter.propose`."""
        if block_lengths is None:
            block_lengths = mx.full(anchors.shape, block, dtype=mx.int32)
        drafts: mx.array = self._draft(context.keys_values(), context.lengths, anchors, block_lengths, block)
        return drafts

    def propose_by(
        self,
        context: DraftContext,
        anchors: mx.array,
        block: int,
        block_lengths: mx.array,
        rules: Rules,
        coupling: Coupling,
    ) -> Proposal:
        """Drafts under the rows' rules; see `Drafter.propose_by`."""
        arguments = (context.keys_values(), context.lengths, anchors, block_lengths, block)
        if not (rules.is_sampled or rules.adjusts_drafts):
            return Proposal(self._draft(*arguments))
        hidden, logits = self._forward(*arguments)
        if rules.adjusts_drafts:
            logits = rules.adjust_drafts(logits, anchors)
        if isinstance(self.model, DFlash2Model):
            tokens, scores = self.model.candidate_selector.transitions(hidden, logits, anchors)
        else:
            tokens, unary = top_candidates(logits, min(_NUM_CANDIDATES, logits.shape[-1]))
            scores = mx.broadcast_to(unary[:, :, None, :], (*unary.shape, unary.shape[-1]))
        return draw_drafts(rules, coupling, tokens, scores)

    def hidden_and_logits(
        self,
        contexts: Sequence[KeysValues],
        lengths: mx.array,
        anchors: mx.array,
        block_lengths: mx.array,
        block: int,
    ) -> tuple[mx.array, mx.array]:
        """The block's states [R, block - 1, H] and logits [R, block - 1, V] over a context's buffers and lengths."""
        masks = {}
        for kind, (keys, _) in zip(self.config.layer_kinds, contexts, strict=True):
            if kind not in masks:
                positions = key_positions(lengths, keys.shape[2], kind.window)
                masks[kind] = visibility(kind, positions, lengths[:, None], block, block_lengths[:, None])
        x = self.model.embed_blocks(anchors, block, self._embed)
        hidden = self.model.hidden_states(x, contexts, masks, lengths)
        return hidden, self.model.logits(hidden, self._head)

    def _draft_tokens(
        self,
        contexts: Sequence[KeysValues],
        lengths: mx.array,
        anchors: mx.array,
        block_lengths: mx.array,
        block: int,
    ) -> mx.array:
        hidden, logits = self.hidden_and_logits(contexts, lengths, anchors, block_lengths, block)
        if isinstance(self.model, DFlash2Model):
            return greedy_path(*self.model.candidate_selector.transitions(hidden, logits, anchors))
        return mx.argmax(logits, axis=-1).astype(mx.int32)
