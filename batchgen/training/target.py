"""The bundled target: its architecture, its loss, and its folder in the Hub's layout (bfloat16).

A stock Qwen3.5-type hybrid of mlx-lm; only its size and its training are ours.
"""

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map_with_path
from mlx_lm.models.qwen3_5 import Model, ModelArgs
from mlx_lm.utils import load_model

from batchgen.engine.target.layers import head, run_layers
from batchgen.training.data import Batch
from batchgen.training.optimiser import named_arrays
from batchgen.training.tokenizer import CONTEXT_LENGTH, END_OF_TEXT, SPECIAL_TOKENS, TURN_END, VOCAB_SIZE

# Weight of a prompt's token in the loss; a response's has 1.
PROMPT_WEIGHT = 0.1


def target_config() -> dict[str, Any]:
    """The target's config.json. Dimensions are multiples of 32, as the Metal kernels of mlx-lm want them."""
    end = SPECIAL_TOKENS.index(TURN_END)
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "eos_token_id": end,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "qwen3_5_text",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 256,
            "intermediate_size": 384,
            "num_hidden_layers": 8,
            "full_attention_interval": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": CONTEXT_LENGTH,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": True,
            "attention_bias": False,
            "eos_token_id": end,
        },
    }


def build_target(config: dict[str, Any]) -> nn.Module:
    """The stock model with unset weights."""
    model: nn.Module = Model(ModelArgs.from_dict(json.loads(json.dumps(config))))
    return model


def initialise(model: nn.Module, config: dict[str, Any], seed: int) -> None:
    """Fresh weights: normal matrices, smaller where they write to the residual stream; slow and fast memory heads.

    The decay's step size is log-uniform from 0.001 to 0.1 and its rate uniform from 1 to 16, as gated-delta layers are
    usually begun: the stock class begins with decays that forget within a token.
    """
    mx.random.seed(seed)
    residual = 0.02 / math.sqrt(2 * config["text_config"]["num_hidden_layers"])

    def fresh(path: str, value: mx.array) -> mx.array:
        if path.endswith("A_log"):
            return mx.log(mx.random.uniform(1.0, 16.0, value.shape))
        if path.endswith("dt_bias"):
            step = mx.exp(mx.random.uniform(math.log(0.001), math.log(0.1), value.shape))
            return step + mx.log(-mx.expm1(-step))
        if path.endswith("conv1d.weight"):
            return mx.random.uniform(-0.5, 0.5, value.shape)
        if value.ndim == 1:
            return mx.ones(value.shape)
        writes = path.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
        return mx.random.normal(value.shape) * (residual if writes else 0.02)

    model.update(tree_map_with_path(fresh, model.parameters()))
    mx.eval(model.parameters())


def token_weights(batch: Batch) -> mx.array:
    """Loss weight of each token but the first, [B, W - 1]: response 1, prompt PROMPT_WEIGHT, padding 0."""
    positions = mx.arange(1, batch.tokens.shape[1])[None]
    starts, lengths = mx.array(batch.starts)[:, None], mx.array(batch.lengths)[:, None]
    weights = mx.where(positions >= starts, 1.0, PROMPT_WEIGHT)
    return mx.where(positions < lengths, weights, 0.0)


def target_loss(model: nn.Module, tokens: mx.array, weights: mx.array) -> mx.array:
    """Weighted mean of the next token's cross-entropy; tokens [B, W], weights [B, W - 1]."""
    hidden = run_layers(model, tokens[:, :-1]).final
    losses = nn.losses.cross_entropy(head(model, hidden).astype(mx.float32), tokens[:, 1:])
    return mx.sum(losses * weights) / mx.sum(weights)


def save_target(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    """config.json, generation_config.json and model.safetensors; the tokenizer's files are not its concern."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), named_arrays(model, mx.bfloat16), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "do_sample": False,
        "eos_token_id": [SPECIAL_TOKENS.index(TURN_END), SPECIAL_TOKENS.index(END_OF_TEXT)],
        "pad_token_id": SPECIAL_TOKENS.index(END_OF_TEXT),
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_target(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """A saved target and its config, as mlx-lm loads it."""
    model, config = load_model(folder)
    return model, config
