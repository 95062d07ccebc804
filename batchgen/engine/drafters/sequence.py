"""Drafts at many anchors of known sequences in one forward: what training a drafter needs.

The same modules and the same visibility rules as in decoding; only the context is a whole sequence here, of which
each block sees what stands before its own anchor.
"""

from collections.abc import Callable

import mlx.core as mx

from batchgen.engine.drafters.model import DFlashModel
from batchgen.engine.drafters.visibility import visibility


def hidden_over_sequence(
    model: DFlashModel,
    embed: Callable[[mx.array], mx.array],
    target_hidden: mx.array,
    anchor_positions: mx.array,
    anchor_tokens: mx.array,
    block: int,
) -> mx.array:
    """States [B, A, block-1, H] of a block at each anchor; row j predicts the token at anchor position + 1 + j.

    target_hidden [B, T, ids * H]: the target's states from position 0 on; entries from an anchor's position on are
    not seen by its block, so short sequences may be padded with anything finite at their end.
    anchor_positions, anchor_tokens [B, A] int32. `embed` is the target's embedding, its scale included.
    Differentiable in the model's parameters. Attention costs A*block x (T + A*block) per head.
    """
    num_sequences, num_anchors = anchor_positions.shape
    contexts = model.project_context(model.context_features(target_hidden), 0)
    key_positions = mx.arange(target_hidden.shape[1])[None]
    masks = {kind: visibility(kind, key_positions, anchor_positions, block) for kind in set(model.config.layer_kinds)}
    x = model.embed_blocks(anchor_tokens.reshape(-1), block, embed)
    hidden = model.hidden_states(x, contexts, masks, anchor_positions.reshape(-1))
    return hidden.reshape(num_sequences, num_anchors, block - 1, -1)
