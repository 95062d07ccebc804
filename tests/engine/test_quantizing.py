"""Weights quantized while they are read: what mlx-lm's own conversion gives, with little memory on the way."""

import gc
import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model, save_model

from batchgen.engine import EngineOptions, dtype_of, load
from batchgen.engine.drafters.loading import load_model as load_drafter_model
from batchgen.engine.target.model import load_target
from batchgen.errors import ModelError
from tests.engine.builders import tiny_dense, tiny_drafter, tiny_hybrid
from tests.engine.sampling.rows import decode, requests


@pytest.fixture(scope="module", params=["hybrid", "qwen3"])
def folder(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    return tiny_hybrid(made, 1) if request.param == "hybrid" else tiny_dense(made, 2)


def _options(**more):
    return EngineOptions(frozenset(), lambda: 0.0, 4, 8, 512, "float32", **more)


def test_equals_the_checkpoint_that_mlx_lm_quantizes(folder, tmp_path, capsys):
    model, config = load_model(folder)
    quantized, config = quantize_model(model, config, 32, 8)
    save_model(tmp_path, quantized)
    (tmp_path / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    expected, _ = load_model(tmp_path)
    target = load_target(folder, weights=(8, 32))
    found = dict(tree_flatten(target.model.parameters()))
    for name, weight in tree_flatten(expected.parameters()):
        assert mx.array_equal(found[name], weight), name


def test_a_quantized_target_decodes_with_a_quantized_drafter(folder, tmp_path):
    drafter = tiny_drafter(tmp_path, 3, folder)
    asked = requests(6)
    plain = decode(load(folder, None, _options(weights=(8, 32))), asked)
    drafted = decode(load(folder, drafter, _options(weights=(8, 32), drafter_bits=8)), asked)
    assert {key: one.tokens for key, one in drafted.items()} == {key: one.tokens for key, one in plain.items()}
    assert sum(one.accepted_tokens for one in drafted.values()) > 10


def test_a_quantized_drafter_keeps_codebooks_and_kernels(folder, tmp_path):
    network = load_drafter_model(tiny_drafter(tmp_path, 3, folder), mx.float32, 4)
    names = dict(tree_flatten(network.parameters()))
    assert "fc.scales" in names
    assert names["candidate_selector.predecessor_codebook"].dtype == mx.float32
    assert names["layers.0.attention_conv.base_kernel"].dtype == mx.float32


def test_the_arithmetic_says_how_weights_are_quantized(folder):
    assert dtype_of(folder, "float32", (4, 64)) == "float32, weights of 4 bits in groups of 64"


def test_a_quantized_model_is_not_quantized_again(folder, tmp_path):
    text = (folder / "config.json").read_text().rstrip().removesuffix("}")
    (tmp_path / "config.json").write_text(text + ', "quantization": {"bits": 4, "group_size": 64}}')
    with pytest.raises(ModelError, match="quantized already"):
        dtype_of(tmp_path, None, (4, 64))


@pytest.mark.parametrize("weights", [None, (4, 64)])
def test_loading_takes_little_more_memory_than_the_model(tmp_path, weights, monkeypatch):
    monkeypatch.setattr("tests.engine.builders.HIDDEN", 256)
    monkeypatch.setattr("tests.engine.builders.INTERMEDIATE", 1024)
    monkeypatch.setattr("tests.engine.builders.HEAD_DIM", 64)
    tiny_dense(tmp_path, 2, num_layers=48)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    target = load_target(tmp_path, dtype=mx.float32, weights=weights)
    peak, size = mx.get_peak_memory() - before, mx.get_active_memory() - before
    assert sum(weight.nbytes for _, weight in tree_flatten(target.model.parameters())) <= size
    assert peak <= 1.15 * size
