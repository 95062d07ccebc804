"""Tiny seeded models on disk: hybrid and dense targets, and DFlash or DFlash2 drafters made for them.

The weights are random but arranged so that drafts are often, not always, right. A target mostly repeats its last
token or moves on along a fixed permutation, as its noisy layers decide; a drafter's mask rows mostly copy the anchor.
To that end feature 0 tells mask rows (positive) from all others (negative). Values come from numpy, so that a seed
means the same weights on every machine.
"""

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.drafters.loading import build_model

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 96, 8, 4, 16, 96
MASK_TOKEN = VOCAB - 1
FULL, SLIDING = "full_attention", "sliding_attention"

Array = np.ndarray[Any, np.dtype[np.float32]]
Values = Callable[[str, tuple[int, ...]], Array]


def tiny_hybrid(folder: Path, seed: int, num_layers: int = 4) -> Path:
    """A Qwen3.5-type target: gated-delta layers and, every second one, attention."""
    text = {
        **_target_config(num_layers),
        "model_type": "qwen3_5_text",
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    }
    return _write_target(folder, seed, {"model_type": "qwen3_5", "text_config": text}, effect=1.0)


def tiny_dense(folder: Path, seed: int, model_type: str = "qwen3", num_layers: int = 4) -> Path:
    """A target with attention layers only, of any mlx-lm type with the usual config keys (qwen2, qwen3, llama, ...)."""
    config = {**_target_config(num_layers), "model_type": model_type, "rope_theta": 10000.0}
    return _write_target(folder, seed, config, effect=1.2)


def tiny_drafter(
    folder: Path,
    seed: int,
    target: Path,
    version: int = 2,
    layer_types: Sequence[str] = (FULL, FULL),
    *,
    sliding_window: int = 8,
    is_causal: bool | None = None,
    block_size: int = 8,
    target_layer_ids: Sequence[int] = (1, 3),
    top: dict[str, Any] | None = None,
    **extra: Any,
) -> Path:
    """A drafter for a target made here; `top` keys go to its config, `extra` ones to its `dflash_config`."""
    target_config = json.loads((target / "config.json").read_text())
    text = target_config.get("text_config", target_config)
    config = {
        "architectures": ["DFlash2DraftModel" if version == 2 else "DFlashDraftModel"],
        **_shared_config(len(layer_types)),
        "rope_theta": 10000.0,
        "layer_types": list(layer_types),
        "is_causal": is_causal,
        "num_target_layers": text["num_hidden_layers"],
        "block_size": block_size,
        "dflash_config": {
            "target_layer_ids": list(target_layer_ids),
            "mask_token_id": MASK_TOKEN,
            **({"conv_kernel_size": 3, "conv_group_size": 16} if version == 2 else {}),
            **({"selector_rank": 16, "selector_top_k": 6} if version == 2 else {}),
            **extra,
        },
        **(top or {}),
    }
    if SLIDING in layer_types:
        config["sliding_window"] = sliding_window
    _write_config(folder, config)
    model = build_model(DrafterConfig.from_folder(folder))
    return _write_weights(folder, dict(tree_flatten(model.parameters())), _drafter_values(seed))


def prompt_tokens(seed: int, length: int) -> list[int]:
    """A prompt without the mask token."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, MASK_TOKEN, length)]


def _shared_config(num_layers: int) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
    }


def _target_config(num_layers: int) -> dict[str, Any]:
    return {**_shared_config(num_layers), "tie_word_embeddings": False, "attention_bias": False}


def _write_target(folder: Path, seed: int, config: dict[str, Any], effect: float) -> Path:
    """`effect` is how much the layers have to say beside the last token."""
    _write_config(folder, config)
    model_type = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    module = import_module(f"mlx_lm.models.{model_type}")
    model = module.Model(module.ModelArgs.from_dict(config))
    return _write_weights(folder, dict(tree_flatten(model.parameters())), _target_values(seed, effect))


def _target_values(seed: int, effect: float) -> Values:
    rng = np.random.default_rng(seed)
    embedding = rng.uniform(-1, 1, (VOCAB, HIDDEN))
    embedding[:, 0] = -1.0
    embedding[MASK_TOKEN] = 0.0
    embedding[MASK_TOKEN, 0] = 4.0
    moved = embedding[rng.permutation(VOCAB)]
    head = 0.7 * embedding + 0.7 * moved
    head[:, 0] = head[MASK_TOKEN] = 0.0

    def values(name: str, shape: tuple[int, ...]) -> Array:
        if name.endswith("embed_tokens.weight"):
            return embedding
        if name.endswith("lm_head.weight"):
            return head
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            result = _noise(rng, shape, effect)
            result[0] = 0.0
            return result
        return _default_values(rng, name, shape)

    return values


def _drafter_values(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    heads = np.repeat(np.eye(KV_HEADS), HEADS // KV_HEADS, axis=0).T * KV_HEADS / HEADS  # [KV_HEADS, HEADS]
    copy_out = np.kron(heads, np.eye(HEAD_DIM))
    slow = np.tile(np.arange(HEAD_DIM) % (HEAD_DIM // 2) == HEAD_DIM // 2 - 1, HEADS)  # rotated least by RoPE

    def values(name: str, shape: tuple[int, ...]) -> Array:
        result = _default_values(rng, name, shape) * (1.0 if len(shape) == 1 else 0.3)
        if name == "norm.weight":
            result[0] = 0.0
        elif name == "fc.weight":
            result[0] = 0.0
            result[0, 0] = -4.0
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            result[slow[: shape[0]], 0] += 8.0 if "q_proj" in name else -8.0
        elif name.endswith("v_proj.weight"):
            result += np.eye(HIDDEN)
        elif name.endswith("o_proj.weight"):
            result += 4.0 * copy_out
        elif name.endswith("base_kernel"):
            result *= 0.5
            result[:, 0] += 1.0
        elif name.endswith("codebook"):
            result *= 4.0
        return result

    return values


def _default_values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.5, 8.0, shape))
    if name.endswith("dt_bias"):
        return rng.uniform(-1.0, 1.0, shape)
    if name.endswith("norm.weight"):
        return 1.0 + rng.uniform(-0.1, 0.1, shape)
    if "conv1d" in name or name.endswith(".bias"):
        return rng.uniform(-0.5, 0.5, shape)
    return _noise(rng, shape, 1.0)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    return scale * rng.uniform(-1, 1, shape) * np.sqrt(3 / shape[-1])


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _write_weights(folder: Path, shapes: dict[str, mx.array], values: Values) -> Path:
    """Draws every tensor in the order of the names, so that the values depend on the seed and the shapes alone."""
    weights = {name: mx.array(values(name, shapes[name].shape).astype(np.float32)) for name in sorted(shapes)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder
