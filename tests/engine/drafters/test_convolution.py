"""The dynamic convolution against a loop over its definition."""

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.drafters.convolution import DynamicConvolution, dynamic_convolve


def _loop(x, dynamic, base):
    out = np.zeros_like(x)
    rows, length, channels = x.shape
    num_taps, num_groups = dynamic.shape[2:]
    for n, t, c, tap in np.ndindex(rows, length, channels, num_taps):
        if t - tap >= 0:
            group = c // (channels // num_groups)
            out[n, t, c] += (base[tap, c] + dynamic[n, t, tap, group]) * x[n, t - tap, c]
    return out


@pytest.mark.parametrize("num_taps", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_it_equals_its_definition(num_taps, length):
    rng = np.random.default_rng(num_taps * 10 + length)
    x, base = rng.normal(size=(2, length, 12)), rng.normal(size=(num_taps, 12))
    dynamic = rng.normal(size=(2, length, num_taps, 3))
    arrays = (mx.array(a.astype(np.float32)) for a in (x, dynamic, base))
    np.testing.assert_allclose(np.array(dynamic_convolve(*arrays)), _loop(x, dynamic, base), atol=1e-5)


def test_both_kernels_come_from_the_input_of_prepare():
    mx.random.seed(0)
    conv = DynamicConvolution(12, 2, 4)
    conv.base_kernel = mx.random.normal(conv.base_kernel.shape)
    conv.kernel_projection.weight = mx.random.normal(conv.kernel_projection.weight.shape)
    x, y = mx.random.normal((1, 5, 12)), mx.random.normal((1, 5, 12))
    dynamic = np.array(x @ conv.kernel_projection.weight.T).reshape(1, 5, 2, 2, 3)
    base = np.array(conv.base_kernel)
    prepared, kernel = conv.prepare(x)
    np.testing.assert_allclose(np.array(prepared), _loop(np.array(x), dynamic[:, :, 0], base[0]), atol=1e-5)
    np.testing.assert_allclose(
        np.array(conv.finish(y, kernel)), _loop(np.array(y), dynamic[:, :, 1], base[1]), atol=1e-5
    )


def test_a_fresh_one_is_the_identity():
    x = mx.random.normal((1, 5, 12))
    prepared, kernel = DynamicConvolution(12, 3, 4).prepare(x)
    assert mx.array_equal(prepared, x)
    assert not mx.any(kernel)
