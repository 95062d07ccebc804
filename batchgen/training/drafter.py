"""The bundled drafter: its architecture, its loss over many anchors, and its folder in the reference layout (bfloat16).

The network itself is the engine's. The target, its embedding and its head are frozen and belong to nobody here.
"""

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_map_with_path

from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.sequence import hidden_over_sequence
from batchgen.engine.target.layers import head, run_layers
from batchgen.training.data import Batch, Ints
from batchgen.training.optimiser import named_arrays
from batchgen.training.tokenizer import MASK, SPECIAL_TOKENS

BLOCK_SIZE = 8
# How fast the weight of later positions falls: they only count if all before them were right.
DECAY = 4.0


def drafter_config(target: dict[str, Any]) -> dict[str, Any]:
    """The drafter's config.json for a target's. Both read the same vocabulary and hidden size."""
    text = target["text_config"]
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": text["hidden_size"],
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": text["vocab_size"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": text["max_position_embeddings"],
        "num_target_layers": text["num_hidden_layers"],
        "block_size": BLOCK_SIZE,
        "dtype": "bfloat16",
        "dflash_config": {
            "target_layer_ids": [1, 3, 5, 6],
            "mask_token_id": SPECIAL_TOKENS.index(MASK),
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 64,
            "selector_top_k": 8,
        },
    }


def build_drafter(config: dict[str, Any], folder: Path) -> DFlash2Model:
    """Writes config.json into `folder` and makes the network with unset weights from it, so that both agree."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return DFlash2Model(DrafterConfig.from_folder(folder))


def initialise(model: DFlash2Model, seed: int) -> None:
    """Fresh weights. The convolutions begin as the identity (base 1 for the row itself, no dynamic part).

    The codebooks must not begin at zero, where their product has no gradient.
    """
    mx.random.seed(seed)
    residual = 0.02 / math.sqrt(2 * len(model.layers))

    def fresh(path: str, value: mx.array) -> mx.array:
        if path.endswith("base_kernel"):
            own_row = mx.arange(value.shape[1])[None, :, None] == 0
            return mx.broadcast_to(own_row, value.shape).astype(mx.float32)
        if path.endswith("kernel_projection.weight"):
            return mx.zeros(value.shape)
        if path.endswith("codebook"):
            return mx.random.normal(value.shape) * 0.1
        if value.ndim == 1:
            return mx.ones(value.shape)
        return mx.random.normal(value.shape) * (
            residual if path.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
        )

    model.update(tree_map_with_path(fresh, model.parameters()))
    mx.eval(model.parameters())


def sample_anchors(rng: np.random.Generator, batch: Batch, num_anchors: int) -> Ints:
    """Random anchor positions [B, A]: response tokens that have at least one token after them."""
    span = batch.lengths - 1 - batch.starts
    offsets = rng.random((len(span), num_anchors)) * span[:, None]
    return (batch.starts[:, None] + offsets).astype(np.int32)


def block_targets(tokens: mx.array, anchors: mx.array, lengths: mx.array) -> tuple[mx.array, mx.array]:
    """True tokens of each block, anchor first, [B, A, BLOCK_SIZE], and which of them stand in the sequence."""
    num_sequences, num_anchors = anchors.shape
    positions = anchors[..., None] + mx.arange(BLOCK_SIZE)
    inside = positions < lengths[:, None, None]
    flat = mx.minimum(positions, tokens.shape[1] - 1).reshape(num_sequences, -1)
    return mx.take_along_axis(tokens, flat, axis=1).reshape(num_sequences, num_anchors, BLOCK_SIZE), inside


def features_of(target: nn.Module, config: dict[str, Any], tokens: mx.array) -> mx.array:
    """The frozen target's states at the drafter's layers [B, W, ids * H]; no gradient flows into the target."""
    features = run_layers(target, tokens, tap=config["dflash_config"]["target_layer_ids"]).features
    assert features is not None
    return mx.stop_gradient(features)


def draft_states(
    model: DFlash2Model, target: nn.Module, features: mx.array, anchors: mx.array, first: mx.array
) -> mx.array:
    """States [B, A, BLOCK_SIZE - 1, H] of blocks at anchors [B, A] whose own tokens are `first` [B, A]."""
    return hidden_over_sequence(model, target.model.embed_tokens, features, anchors, first, BLOCK_SIZE)


def drafter_loss(
    model: DFlash2Model, target: nn.Module, tokens: mx.array, features: mx.array, anchors: mx.array, lengths: mx.array
) -> mx.array:
    """Cross-entropy of the head plus that of the selector over its candidates, both weighted by position.

    Each candidate is scored against the true predecessor; positions whose true token is no candidate are left out of
    the selector's part. tokens [B, W]; features [B, W, ids * H]; anchors [B, A]; lengths [B].
    """
    truth, inside = block_targets(tokens, anchors, lengths)
    hidden = draft_states(model, target, features, anchors, truth[..., 0])
    logits = model.logits(hidden, lambda states: head(target, states)).astype(mx.float32)
    weights = inside[..., 1:] * mx.exp(-mx.arange(BLOCK_SIZE - 1) / DECAY)
    base = nn.losses.cross_entropy(logits, truth[..., 1:])

    candidates, _ = model.candidate_selector.candidates(mx.stop_gradient(logits))
    unary = mx.take_along_axis(logits, candidates, axis=-1)
    scores = model.candidate_selector.scores(hidden, truth[..., :-1, None], candidates, unary)[..., 0, :]
    is_true = candidates == truth[..., 1:, None]
    recalled = mx.any(is_true, axis=-1)
    choice = mx.logsumexp(scores, axis=-1) - mx.sum(mx.where(is_true, scores, 0.0), axis=-1)
    total = mx.sum(weights)
    return (mx.sum(base * weights) + mx.sum(mx.where(recalled, choice, 0.0) * weights)) / total


def save_drafter(model: DFlash2Model, folder: Path) -> None:
    """model.safetensors in bfloat16, with the reference's tensor names; config.json is `build_drafter`'s."""
    mx.save_safetensors(str(folder / "model.safetensors"), named_arrays(model, mx.bfloat16), {"format": "mlx"})
