"""What the engine refuses from config files alone, each in one sentence that names file, figure and cause."""

import json

import pytest

from batchgen.engine import check_pair
from batchgen.errors import ModelError
from tests.engine.builders import VOCAB, tiny_dense, tiny_drafter, tiny_hybrid


@pytest.fixture
def pair(tmp_path):
    target = tiny_hybrid(tmp_path / "target", 1)
    drafter = tiny_drafter(tmp_path / "drafter", 2, target)
    for folder in (target, drafter):
        (folder / "model.safetensors").unlink()  # nothing below may need a weight
    return target, drafter


def _edit(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config.get("text_config", config) if "model_type" not in changes else config).update(changes)
    path.write_text(json.dumps(config))


def _refusal(target, drafter, vocab_size=None):
    with pytest.raises(ModelError) as caught:
        check_pair(target, drafter, vocab_size)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_fitting_pair_passes_without_weights(pair):
    check_pair(*pair, VOCAB)
    check_pair(pair[0], None, VOCAB)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 100}, ["vocab_size is 96", "100", "another target"]),
        ({"hidden_size": 128}, ["hidden_size is 64", "128", "another target"]),
        ({"num_hidden_layers": 6}, ["num_target_layers is 4", "6", "another target"]),
    ],
)
def test_a_drafter_for_another_target(pair, changes, words):
    target, drafter = pair
    _edit(target, **changes)
    message = _refusal(target, drafter)
    for word in [str(drafter / "config.json"), *words]:
        assert word in message


@pytest.mark.parametrize("model_type", ["gemma4", "mamba2", "qwen3_next", "qwen3_5_moe", None])
def test_an_unsupported_target_type(pair, model_type):
    target, _ = pair
    _edit(target, model_type=model_type)
    message = _refusal(target, None)
    assert str(target / "config.json") in message
    assert repr(model_type) in message
    assert "llama, mistral, qwen2, qwen3, qwen3_5" in message


def test_sliding_window_llama(tmp_path):
    target = tiny_dense(tmp_path, 1, "llama")
    _edit(target, layer_types=["full_attention", "sliding_attention"] * 2)
    assert "sliding-window attention" in _refusal(target, None)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_that_follows_the_longest_row(tmp_path, key):
    target = tiny_dense(tmp_path, 1)
    _edit(target, **{key: {"rope_type": "dynamic", "factor": 2.0}})
    assert f"{key} of type 'dynamic'" in _refusal(target, None)


def test_a_tokenizer_larger_than_the_model(pair):
    assert f"the tokenizer has {VOCAB + 1} tokens" in _refusal(pair[0], None, VOCAB + 1)


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_broken_config(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert str(tmp_path / "config.json") in _refusal(tmp_path, None)


def test_a_folder_without_config(tmp_path):
    assert "config.json" in _refusal(tmp_path, None)
