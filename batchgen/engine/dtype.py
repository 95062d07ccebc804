"""In which arithmetic a model is decoded: the one place that says what `auto` means. No weights, no mlx."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchgen.engine.config_file import text_config
from batchgen.errors import ModelError

CHECKPOINT_DTYPE = "checkpoint"

_QUANTIZED_KEYS = ("quantization", "quantization_config")


def resolve_dtype(config: Mapping[str, Any], name: str | None, on_gpu: bool) -> str:
    """A dtype's name, or CHECKPOINT_DTYPE for the weights as they are; `name` None is the engine's own choice.

    CPUs compute bf16 and fp16 slower than float32, so there unquantized weights are recast.
    """
    if name is not None:
        return name
    return CHECKPOINT_DTYPE if on_gpu or _is_quantized(config) else "float32"


def refuse_quantized(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises ModelError if the checkpoint's weights are quantized, and so can't be quantized once more."""
    if _is_quantized(config):
        raise ModelError(
            f"engine.weights: the weights of {folder} are quantized already; leave the key out, or give the "
            "unquantized model"
        )


def _is_quantized(config: Mapping[str, Any]) -> bool:
    return any(key in part for part in (config, text_config(config)) for key in _QUANTIZED_KEYS)
