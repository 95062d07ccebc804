"""The shapes of published models and of DFlash2 drafters made for them: figures only, no weights, no mlx.

Whoever wants another shape measured adds a line to the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.engine.drafters.config import DrafterConfig, LayerKind

_RMS_NORM_EPS = 1e-6
_ROPE_PART = 0.25


@dataclass(frozen=True, slots=True)
class GatedDeltaShape:
    """The recurrent layers of a hybrid target; every `attention_interval`-th layer is attention instead."""

    num_value_heads: int
    num_key_heads: int = 16
    head_dim: int = 128
    conv_kernel: int = 4
    attention_interval: int = 4


@dataclass(frozen=True, slots=True)
class TargetShape:
    """A target: Qwen3.5 with `gated_delta`, Qwen3 without."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    is_tied: bool
    gated_delta: GatedDeltaShape | None = None
    max_positions: int = 262144


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """A DFlash2 drafter; hidden size and vocabulary are its target's. Its layers keep the whole context."""

    intermediate_size: int
    num_layers: int = 5
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    num_taps: int = 5
    conv_kernel: int = 4
    conv_group: int = 64
    selector_rank: int = 256
    selector_top_k: int = 8


@dataclass(frozen=True, slots=True)
class Geometry:
    """A target's shape and that of its drafter."""

    target: TargetShape
    drafter: DrafterShape


GEOMETRIES: Mapping[str, Geometry] = {
    "qwen3.5-27b": Geometry(
        TargetShape(5120, 17408, 64, 24, 4, 256, 248320, 1e7, False, GatedDeltaShape(48)), DrafterShape(17408)
    ),
    "qwen3.5-4b": Geometry(
        TargetShape(2560, 9216, 32, 16, 4, 256, 248320, 1e7, True, GatedDeltaShape(32)), DrafterShape(9216)
    ),
    "qwen3-4b": Geometry(TargetShape(2560, 9728, 36, 32, 8, 128, 151936, 1e6, True), DrafterShape(9728)),
    "qwen3-8b": Geometry(TargetShape(4096, 12288, 36, 32, 8, 128, 151936, 1e6, False), DrafterShape(12288)),
    # These two have no published model; they run anywhere in a moment.
    "tiny-hybrid": Geometry(
        TargetShape(64, 96, 8, 4, 2, 16, 256, 1e4, False, GatedDeltaShape(4, 2, 16)),
        DrafterShape(96, 2, 4, 2, 16, 3, 4, 16, 16, 8),
    ),
    "tiny-dense": Geometry(
        TargetShape(64, 96, 4, 4, 2, 16, 256, 1e4, True), DrafterShape(96, 2, 4, 2, 16, 2, 4, 16, 16, 8)
    ),
}


def target_config(shape: TargetShape) -> dict[str, Any]:
    """What the model's config.json would say."""
    config = {
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": _RMS_NORM_EPS,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.is_tied,
        "attention_bias": False,
    }
    if shape.gated_delta is None:
        return config
    text = config | {"model_type": "qwen3_5_text"} | _hybrid_config(shape, shape.gated_delta)
    return {"model_type": "qwen3_5", "text_config": text}


def _hybrid_config(shape: TargetShape, gated_delta: GatedDeltaShape) -> dict[str, Any]:
    return {
        "linear_num_value_heads": gated_delta.num_value_heads,
        "linear_num_key_heads": gated_delta.num_key_heads,
        "linear_key_head_dim": gated_delta.head_dim,
        "linear_value_head_dim": gated_delta.head_dim,
        "linear_conv_kernel_dim": gated_delta.conv_kernel,
        "full_attention_interval": gated_delta.attention_interval,
        "rope_parameters": {
            "type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": _ROPE_PART,
        },
    }


def drafter_config(geometry: Geometry, block: int) -> DrafterConfig:
    """What the drafter's config.json would say, for blocks of `block` tokens."""
    target, drafter = geometry.target, geometry.drafter
    return DrafterConfig(
        path=Path("config.json"),
        version=2,
        hidden_size=target.hidden_size,
        intermediate_size=drafter.intermediate_size,
        num_attention_heads=drafter.num_heads,
        num_key_value_heads=drafter.num_kv_heads,
        head_dim=drafter.head_dim,
        vocab_size=target.vocab_size,
        rms_norm_eps=_RMS_NORM_EPS,
        layer_kinds=(LayerKind(None, False),) * drafter.num_layers,
        rope_theta=target.rope_theta,
        rope_scaling=None,
        max_position_embeddings=target.max_positions,
        block_size=block,
        target_layer_ids=taps(target.num_layers, drafter.num_taps),
        num_target_layers=target.num_layers,
        mask_token_id=target.vocab_size - 1,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=None,
        conv_kernel_size=drafter.conv_kernel,
        conv_group_size=drafter.conv_group,
        selector_rank=drafter.selector_rank,
        selector_top_k=drafter.selector_top_k,
    )


def taps(num_layers: int, num_taps: int) -> tuple[int, ...]:
    """Layers from the second to the third last, evenly spread, as published drafters have them."""
    span = max(num_layers - 4, num_taps - 1)
    return tuple(1 + round(index * span / (num_taps - 1)) for index in range(num_taps))
