"""Projections of one input as one product: same outputs, no second copy of a weight."""

import mlx.core as mx
import pytest
from mlx import nn

from batchgen.engine.target.projections import Projections


def _linear(size, bias=False, seed=0):
    layer = nn.Linear(64, size, bias=bias)
    layer.weight = mx.random.normal((size, 64), key=mx.random.key(seed + size))
    return layer


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_stacked_layers_give_what_each_gives(bias, quantized):
    layers = [_linear(size, bias) for size in (64, 8, 40)]
    if quantized:
        layers = [layer.to_quantized(group_size=32, bits=4) for layer in layers]
    x = mx.random.normal((3, 5, 64), key=mx.random.key(9))
    expected = [layer(x) for layer in layers]
    mx.eval(expected)
    projections = Projections(layers, stack=True)
    for found, after, before in zip(
        projections.split(projections(x)), [layer(x) for layer in layers], expected, strict=True
    ):
        assert mx.allclose(found, before, atol=1e-5)
        assert mx.allclose(after, before, atol=1e-5)


def test_layers_that_differ_in_kind_are_called_one_by_one():
    layers = [_linear(64), _linear(32).to_quantized(group_size=32, bits=4), _linear(16, bias=True)]
    x = mx.random.normal((2, 64), key=mx.random.key(9))
    expected = [layer(x) for layer in layers]
    projections = Projections(layers, stack=True)
    assert projections.sizes == [64, 32, 16]
    for found, before in zip(projections.split(projections(x)), expected, strict=True):
        assert mx.array_equal(found, before)


def test_stacking_holds_no_weight_twice():
    layers = [_linear(size) for size in (4096, 4096)]
    mx.eval([layer.weight for layer in layers])
    before = mx.get_active_memory()
    projections = Projections(layers, stack=True)
    assert mx.get_active_memory() - before < 4096 * 64 * 4
    assert projections.sizes == [4096, 4096]
