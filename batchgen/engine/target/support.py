"""Which targets the engine decodes, told from config.json alone: no mlx, no weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchgen.engine.config_file import text_config
from batchgen.errors import ModelError

SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5")

# RoPE whose base follows the sequence length has no form with an offset per row.
_UNSUPPORTED_ROPE = ("dynamic",)


def check_target(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises ModelError, naming the folder, for a model type or a feature that the engine's caches cannot serve."""
    model_type = config.get("model_type")
    if model_type not in SUPPORTED_TYPES:
        raise ModelError(
            f"{folder}/config.json: model_type {model_type!r} is not supported; "
            f"supported are {', '.join(SUPPORTED_TYPES)}"
        )
    text = text_config(config)
    sliding = [kind for kind in text.get("layer_types") or [] if kind == "sliding_attention"]
    if sliding and model_type in ("llama", "mistral"):
        raise ModelError(f"{folder}/config.json: sliding-window attention of {model_type} targets is not supported")
    for key in ("rope_parameters", "rope_scaling"):
        rope = text.get(key) or {}
        kind = rope.get("rope_type") or rope.get("type")
        if kind in _UNSUPPORTED_ROPE:
            raise ModelError(f"{folder}/config.json: {key} of type {kind!r} is not supported")
