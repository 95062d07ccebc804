"""Which keys a block's queries may see, as one boolean mask for decoding and training alike.

The only place where the visibility rules stand. Works on positions, never on how the context is stored.
"""

import mlx.core as mx

from batchgen.engine.drafters.config import LayerKind


def visibility(
    kind: LayerKind,
    key_positions: mx.array,
    anchors: mx.array,
    block: int,
    block_lengths: mx.array | None = None,
) -> mx.array:
    """Mask [B, 1, A*block, C + A*block] for A blocks over each of B contexts; keys are context, then all blocks.

    key_positions [B or 1, C]: the absolute position each context entry holds, negative where it holds none.
    anchors [B, A]: the absolute position of each block's anchor, so row l of a block stands at anchor + l.
    block_lengths [B, A]: rows of a block from that one on are seen by nobody (None: all are seen). Row 0 always is,
    so that no query is left without a key.

    A block sees context before its anchor and its own rows, never another block. A window bounds the distance
    to context keys only, not that inside the block.
    """
    num_contexts, num_blocks = anchors.shape
    rows = mx.arange(block)
    queries = (anchors[:, :, None] + rows)[..., None]  # [B, A, block, 1]
    keys = key_positions[:, None, None, :]
    context = (keys >= 0) & (keys < anchors[:, :, None, None])
    context = context & (queries - keys < kind.window) if kind.window is not None else context
    context = mx.broadcast_to(context, (num_contexts, num_blocks, block, key_positions.shape[-1]))

    inside = rows <= rows[:, None] if kind.is_causal else mx.full((block, block), True)
    inside = mx.broadcast_to(inside, (num_contexts, num_blocks, block, block))
    if block_lengths is not None:
        inside = inside & ((rows < block_lengths[:, :, None]) | (rows == 0))[:, :, None, :]
    if num_blocks == 1:
        return mx.concatenate([context, inside], axis=-1)
    own = mx.eye(num_blocks).astype(mx.bool_)[:, None, :, None]
    inside = (inside[:, :, :, None, :] & own).reshape(num_contexts, 1, num_blocks * block, num_blocks * block)
    return mx.concatenate([context.reshape(num_contexts, 1, num_blocks * block, -1), inside], axis=-1)
