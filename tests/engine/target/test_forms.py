"""Forms of the gated delta rule: each is held to the plain one, and one that differs would be found out."""

import mlx.core as mx
import pytest

from batchgen.engine.target.choose_form import choose_form, largest_difference
from batchgen.engine.target.gated_delta_forms import GatedDeltaWeights, LayerState, MlxLmForm, PlainForm


def _weights(num_k_heads=2, num_v_heads=4, dim=32):
    num_channels = (2 * num_k_heads + num_v_heads) * dim
    keys = mx.random.split(mx.random.key(3), 3)
    return GatedDeltaWeights(
        num_k_heads=num_k_heads,
        num_v_heads=num_v_heads,
        k_dim=dim,
        v_dim=dim,
        kernel_size=4,
        conv=mx.random.normal((num_channels, 4, 1), key=keys[0]),
        a_log=mx.log(mx.random.uniform(1, 16, (num_v_heads,), key=keys[1])),
        dt_bias=mx.random.normal((num_v_heads,), key=keys[2]),
    )


def test_mlx_lms_form_equals_the_plain_one():
    assert largest_difference(MlxLmForm(), _weights(), mx.float32) < 1e-5


class _ForgetsTheWindow(PlainForm):
    def commit(self, weights, before, record, counts):
        return LayerState(before.window, super().commit(weights, before, record, counts).state)


class _CountsOneMore(PlainForm):
    def take_in(self, weights, projected, before, counts):
        return super().take_in(weights, projected, before, mx.minimum(counts + 1, projected.shape[1]))


class _GivesNan(PlainForm):
    def block(self, weights, projected, before):
        y, record = super().block(weights, projected, before)
        return y * mx.nan, record


@pytest.mark.parametrize("broken", [_ForgetsTheWindow, _CountsOneMore, _GivesNan])
def test_a_form_that_differs_is_found_out(broken):
    assert largest_difference(broken(), _weights(), mx.float32) > 2e-2


def test_a_cpu_gets_the_plain_form():
    assert isinstance(choose_form([_weights()], mx.float32), PlainForm)
