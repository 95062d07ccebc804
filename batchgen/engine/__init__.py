"""How tokens are made: the only room that decodes with mlx.

Importing it loads a fast BLAS first, where one is needed and found, so it comes before any import of mlx; mlx itself
is imported only by `load`. `check_pair` tells from config files alone whether a model and a drafter can be used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from batchgen.engine.blas import Blas, preload

if TYPE_CHECKING:
    from batchgen.engine.decoder import BatchDecoder

__all__ = ["BLAS", "Blas", "EngineOptions", "check_pair", "dtype_of", "load"]

BLAS = preload()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to decode. None leaves a choice to the engine. Only `eos_token_ids`, `dtype` and `weights` change tokens, and
    `coupling` those of sampled rows: under `rejection` they depend on the drafter and on `block_size` too.

    `block_size` counts the anchor and its drafts. Where None each round's is chosen, up to the drafter's own, from what
    rounds cost and drafts bring (under `rejection` it is the drafter's own).
    `dtype` is float32, bfloat16 or float16; None is float32 on a CPU and the checkpoint's own on a GPU. `weights` are
    the bits and the group size that the model is quantized to while it is read, and `drafter_bits` those of the
    drafter; None leaves them. `memory` is how many bytes the whole process may take. `logprobs` asks
    for the log probability of every token.
    """

    eos_token_ids: frozenset[int]
    clock: Callable[[], float]
    max_rows: int | None = None
    block_size: int | None = None
    prefill_chunk: int = 512
    dtype: str | None = None
    coupling: Literal["shared", "rejection"] = "shared"
    logprobs: bool = False
    weights: tuple[int, int] | None = None
    drafter_bits: int | None = None
    memory: int | None = None


def check_pair(model: Path, drafter: Path | None, vocab_size: int | None = None) -> None:
    """Raises ModelError, from config.json files alone, if the engine cannot serve the model or the pair.

    `vocab_size` is the tokenizer's, which the model's must cover.
    """
    from batchgen.engine.pair import check_folders

    check_folders(model, drafter, vocab_size)


def dtype_of(model: Path, dtype: str | None, weights: tuple[int, int] | None = None) -> str:
    """The arithmetic that `load` would choose on this machine: a dtype's name, or `checkpoint`, and what weights are
    quantized to. Reads config.json alone; raises ModelError where the model's weights are quantized already."""
    from batchgen.engine.compiling import on_gpu
    from batchgen.engine.config_file import read_config
    from batchgen.engine.dtype import refuse_quantized, resolve_dtype

    config = read_config(model)
    name = resolve_dtype(config, dtype, on_gpu())
    if weights is None:
        return name
    refuse_quantized(model, config)
    bits, group_size = weights
    return f"{name}, weights of {bits} bits in groups of {group_size}"


def load(model: Path, drafter: Path | None, options: EngineOptions) -> "BatchDecoder":
    """Reads the weights and returns a decoder that holds no rows yet. Raises ModelError."""
    from batchgen.engine.loading import load_decoder

    return load_decoder(model, drafter, options)
