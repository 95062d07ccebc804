"""In which arithmetic a model is decoded: the one place that says what `auto` means. No weights, no mlx."""

from collections.abc import Mapping
from typing import Any

from batchgen.engine.config_file import text_config

CHECKPOINT_DTYPE = "checkpoint"

_QUANTIZED_KEYS = ("quantization", "quantization_config")


def resolve_dtype(config: Mapping[str, Any], name: str | None, on_gpu: bool) -> str:
    """A dtype's name, or CHECKPOINT_DTYPE for the weights as they are; `name` None is the engine's own choice.

    CPUs compute bf16 and fp16 slower than float32, so there unquantized weights are recast.
    """
    if name is not None:
        return name
    is_quantized = any(key in part for part in (config, text_config(config)) for key in _QUANTIZED_KEYS)
    return CHECKPOINT_DTYPE if on_gpu or is_quantized else "float32"
