"""A tokenizer and a pair of random weights small enough to train and decode with in a test."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_map

from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.training import drafter as drafters
from batchgen.training import target as targets
from batchgen.training.tokenizer import save_tokenizer, train_tokenizer

TARGET_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}
DRAFTER_SIZES = {"num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 32}


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(seed=0, num_samples=3000), folder)
    return folder


@pytest.fixture(scope="session")
def small_target() -> tuple[nn.Module, dict[str, Any]]:
    """A target whose greedy text isn't one token for ever: its matrices are larger than a fresh model's."""
    config = targets.target_config()
    config["text_config"] |= TARGET_SIZES
    model = targets.build_target(config)
    targets.initialise(model, config, seed=0)
    model.update(tree_map(lambda value: value * 4 if value.ndim == 2 else value, model.parameters()))
    return model, config


@pytest.fixture
def small_drafter(
    small_target: tuple[nn.Module, dict[str, Any]], tmp_path: Path
) -> tuple[DFlash2Model, dict[str, Any]]:
    """A drafter for `small_target` with every part at work: convolutions and selector are not as they begin."""
    config = drafters.drafter_config(small_target[1]) | DRAFTER_SIZES
    config["dflash_config"] |= {"target_layer_ids": [0, 2], "selector_rank": 8, "selector_top_k": 64}
    model = drafters.build_drafter(config, tmp_path)
    drafters.initialise(model, seed=1)
    model.update(tree_map(lambda value: value + 0.1 * mx.random.normal(value.shape), model.parameters()))
    mx.eval(model.parameters())
    return model, config
