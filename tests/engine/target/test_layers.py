"""Our loop over a stock model's layers equals the model's own call, for every supported type."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from batchgen.engine.target.layers import head, run_layers
from tests.engine.builders import prompt_tokens, tiny_dense, tiny_hybrid

KINDS = ("hybrid", "qwen3", "qwen2", "llama", "mistral")


def _model(folder: Path, kind: str) -> nn.Module:
    made = tiny_hybrid(folder, 1) if kind == "hybrid" else tiny_dense(folder, 1, kind)
    model, _ = load_model(made)
    return model


def _assert_same_up_to_rounding(found: mx.array, expected: mx.array) -> None:
    """Logits of size 10; the model's own call differs from itself as much when it reads token by token."""
    difference = mx.abs(found - expected)
    assert difference.mean().item() < 1e-5
    assert difference.max().item() < 5e-4


def _tokens(length: int) -> mx.array:
    return mx.array([prompt_tokens(seed, length) for seed in range(3)])


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_models_own_call(tmp_path, kind):
    model = _model(tmp_path, kind)
    tokens = _tokens(75)
    _assert_same_up_to_rounding(head(model, run_layers(model, tokens).final), model(tokens))


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_a_quantized_model_equals_its_own_call(tmp_path, kind):
    model = _model(tmp_path, kind)

    def fits(_: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

    nn.quantize(model, group_size=32, bits=4, class_predicate=fits)
    tokens = _tokens(20)
    _assert_same_up_to_rounding(head(model, run_layers(model, tokens).final), model(tokens))


def test_tapped_features_are_the_layers_outputs_before_the_final_norm(tmp_path):
    model = _model(tmp_path, "qwen3")
    tokens = _tokens(9)
    hidden = run_layers(model, tokens, tap=(3, 0))
    h, outputs = model.model.embed_tokens(tokens), []
    for layer in model.model.layers:
        h = layer(h, "causal", None)
        outputs.append(h)
    assert hidden.features is not None
    assert mx.array_equal(hidden.features, mx.concatenate([outputs[3], outputs[0]], axis=-1))
    assert mx.array_equal(hidden.final, model.model.norm(outputs[3]))


def test_no_part_of_the_model_is_changed(tmp_path):
    model = _model(tmp_path, "hybrid")
    before = [(name, type(module)) for name, module in model.named_modules()]
    run_layers(model, _tokens(4), tap=(1, 2))
    assert [(name, type(module)) for name, module in model.named_modules()] == before


def test_gradients_reach_every_parameter(tmp_path):
    model = _model(tmp_path, "hybrid")
    tokens = _tokens(12)

    def loss(model: nn.Module) -> mx.array:
        logits = head(model, run_layers(model, tokens[:, :-1]).final)
        return nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")

    _, grads = nn.value_and_grad(model, loss)(model)
    for name, grad in tree_flatten(grads):
        assert mx.all(mx.isfinite(grad)).item(), name
        assert mx.abs(grad).max().item() > 0, name
