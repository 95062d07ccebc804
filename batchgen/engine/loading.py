"""From folders to a decoder: reads weights, settles what the options leave open, and says what was chosen."""

from pathlib import Path

import mlx.core as mx

from batchgen.engine import EngineOptions
from batchgen.engine.compiling import on_gpu
from batchgen.engine.config_file import read_config
from batchgen.engine.decoder import BatchDecoder, DecoderOptions
from batchgen.engine.drafters import load_drafter
from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.dtype import CHECKPOINT_DTYPE, refuse_quantized, resolve_dtype
from batchgen.engine.memory import memory_for_rows
from batchgen.engine.pair import check_folders
from batchgen.engine.target.model import load_target

# A round's cost grows with rows times block on a CPU; on a GPU up to about this many rows are nearly free.
_MAX_ROWS_CPU = 16
_MAX_ROWS_GPU = 32


def load_decoder(model: Path, drafter: Path | None, options: EngineOptions) -> BatchDecoder:
    """Reads model and drafter and returns a decoder without rows. Raises ModelError, before any weight where it can."""
    check_folders(model, drafter, None)
    config = read_config(model)
    if options.weights is not None:
        refuse_quantized(model, config)
    name = resolve_dtype(config, options.dtype, on_gpu())
    dtype: mx.Dtype | None = None if name == CHECKPOINT_DTYPE else getattr(mx, name)
    tap = () if drafter is None else DrafterConfig.from_folder(drafter).target_layer_ids
    target = load_target(model, tap, dtype, options.weights)
    bits = options.drafter_bits
    draft_model = None if drafter is None else load_drafter(drafter, target.embed, target.logits, bits=bits)
    block_size = 1 if draft_model is None else options.block_size or draft_model.block_size
    chosen = DecoderOptions(
        max_rows=options.max_rows or (_MAX_ROWS_GPU if on_gpu() else _MAX_ROWS_CPU),
        block_size=block_size,
        # Under rejection sampled tokens depend on the block, which a measurement must not choose then.
        adaptive=options.block_size is None and options.coupling == "shared",
        prefill_chunk=options.prefill_chunk,
        bucket_slots=on_gpu(),
        memory=memory_for_rows(options.memory),
        ahead=on_gpu(),
        coupling=options.coupling,
        logprobs=options.logprobs,
    )
    return BatchDecoder(target, draft_model, chosen, options.eos_token_ids, options.clock)
