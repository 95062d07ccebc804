"""The chunked gated delta rule against a loop over tokens in float64, and against mlx-lm's own."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from batchgen.engine.target.gated_delta import advance, chunked_gated_delta, gated_delta_block, log_decay

SHAPES = [
    (2, 1, 2, 4, 32, 32),
    (2, 7, 4, 4, 32, 16),
    (3, 8, 2, 4, 64, 32),
    (2, 130, 2, 4, 32, 32),
    (1, 64, 1, 1, 32, 32),
]


def _inputs(shape, seed=0, *, similar_keys=False, decay=3.0):
    batch, length, key_heads, value_heads, key_dim, value_dim = shape
    mx.random.seed(seed)
    q, k = (mx.random.normal((batch, length, key_heads, key_dim)) for _ in range(2))
    if similar_keys:
        k = k[:, :1] + 0.01 * k
    q, k = normalize_qk(q, k, inv_scale=key_dim**-0.5, eps=1e-6)
    v = mx.random.normal((batch, length, value_heads, value_dim))
    a, b = (decay * mx.random.normal((batch, length, value_heads)) for _ in range(2))
    a_log, dt_bias = mx.log(mx.random.uniform(1e-3, 16, (value_heads,))), mx.random.normal((value_heads,))
    state = mx.random.normal((batch, value_heads, value_dim, key_dim))
    return q, k, v, a, b, a_log, dt_bias, state


def _loop(q, k, v, log_g, beta, state):
    """One token after the other, in float64."""
    q, k, v, log_g, beta, state = (np.array(x, dtype=np.float64) for x in (q, k, v, log_g, beta, state))
    repeats = v.shape[2] // k.shape[2]
    q, k = np.repeat(q, repeats, axis=2), np.repeat(k, repeats, axis=2)
    outputs = []
    for t in range(q.shape[1]):
        state = state * np.exp(log_g[:, t])[..., None, None]
        delta = (v[:, t] - np.einsum("bhvk,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
        state = state + delta[..., None] * k[:, t, :, None, :]
        outputs.append(np.einsum("bhvk,bhk->bhv", state, q[:, t]))
    return np.stack(outputs, axis=1), state


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("similar_keys", [False, True])
def test_chunks_and_block_equal_the_loop(shape, similar_keys):
    q, k, v, a, b, a_log, dt_bias, state = _inputs(shape, similar_keys=similar_keys)
    log_g, beta = log_decay(a_log, a, dt_bias), mx.sigmoid(b)
    y_loop, state_loop = _loop(q, k, v, log_g, beta, state)

    y, last = chunked_gated_delta(q, k, v, log_g, beta, state)
    np.testing.assert_allclose(np.array(y), y_loop, atol=3e-6)
    np.testing.assert_allclose(np.array(last), state_loop, atol=3e-6)

    y, record = gated_delta_block(q, k, v, log_g, beta, state)
    last = advance(state, record, mx.full((shape[0],), shape[1], mx.int32))
    np.testing.assert_allclose(np.array(y), y_loop, atol=3e-6)
    np.testing.assert_allclose(np.array(last), state_loop, atol=3e-6)


def test_similar_keys_without_decay_stay_stable():
    """Where a series in powers of the triangular system would lose every digit."""
    q, k, v, _, _, _, _, state = _inputs((1, 64, 1, 1, 32, 32), similar_keys=True)
    log_g, beta = mx.zeros((1, 64, 1)), mx.ones((1, 64, 1))
    y_loop, state_loop = _loop(q, k, v, log_g, beta, state)
    y, last = chunked_gated_delta(q, k, v, log_g, beta, state)
    scale = np.abs(y_loop).max()
    np.testing.assert_allclose(np.array(y), y_loop, atol=1e-4 * scale)
    np.testing.assert_allclose(np.array(last), state_loop, atol=1e-4 * np.abs(state_loop).max())


def test_small_decays_behind_large_ones_keep_their_digits():
    q, k, v, _, b, _, _, state = _inputs((1, 48, 1, 1, 32, 32))
    log_g = mx.where(mx.arange(48)[None, :, None] < 40, -200.0, -0.001)
    y_loop, state_loop = _loop(q, k, v, log_g, mx.sigmoid(b), state)
    y, last = chunked_gated_delta(q, k, v, log_g, mx.sigmoid(b), state)
    np.testing.assert_allclose(np.array(y), y_loop, atol=2e-6)
    np.testing.assert_allclose(np.array(last), state_loop, atol=2e-6)


def test_equals_mlx_lm():
    q, k, v, a, b, a_log, dt_bias, state = _inputs((2, 70, 2, 4, 32, 32))
    y_theirs, state_theirs = gated_delta_update(q, k, v, a, b, a_log, dt_bias, state, None)
    y, last = chunked_gated_delta(q, k, v, log_decay(a_log, a, dt_bias), mx.sigmoid(b), state)
    assert mx.abs(y - y_theirs).max().item() < 1e-5
    assert mx.abs(last - state_theirs).max().item() < 1e-5


def test_replay_of_a_prefix_equals_reading_that_prefix():
    q, k, v, a, b, a_log, dt_bias, state = _inputs((5, 8, 2, 4, 32, 32))
    log_g, beta = log_decay(a_log, a, dt_bias), mx.sigmoid(b)
    _, record = gated_delta_block(q, k, v, log_g, beta, state)
    counts = [0, 1, 3, 7, 8]
    replayed = np.array(advance(state, record, mx.array(counts, dtype=mx.int32)))
    for row, count in enumerate(counts):
        _, expected = (
            _loop(*(x[row : row + 1, :count] for x in (q, k, v, log_g, beta)), state[row : row + 1])
            if count
            else (None, np.array(state[row : row + 1]))
        )
        np.testing.assert_allclose(replayed[row : row + 1], expected, atol=2e-6)
    assert np.array_equal(replayed[0], np.array(state[0]))


def test_gradients_equal_the_loop():
    q, k, v, a, b, a_log, dt_bias, state = _inputs((1, 20, 1, 2, 32, 16))
    log_g, beta = log_decay(a_log, a, dt_bias), mx.sigmoid(b)
    weight = mx.random.normal(v.shape)

    def loop(q, k, v, log_g, beta):
        current, total = state, mx.array(0.0)
        q, k = (mx.repeat(x, 2, axis=2) for x in (q, k))
        for t in range(20):
            current = current * mx.exp(log_g[:, t])[..., None, None]
            delta = (v[:, t] - (current * k[:, t, :, None, :]).sum(-1)) * beta[:, t, :, None]
            current = current + delta[..., None] * k[:, t, :, None, :]
            total = total + (weight[:, t] * (current * q[:, t, :, None, :]).sum(-1)).sum()
        return total + current.sum()

    def chunks(*args):
        y, last = chunked_gated_delta(*args, state, chunk=8)
        return (weight * y).sum() + last.sum()

    expected = mx.grad(loop, argnums=range(5))(q, k, v, log_g, beta)
    found = mx.grad(chunks, argnums=range(5))(q, k, v, log_g, beta)
    for theirs, ours in zip(expected, found, strict=True):
        assert mx.abs(theirs - ours).max().item() < 1e-4 * max(1.0, mx.abs(theirs).max().item())


def test_padding_leaves_the_state_alone():
    q, k, v, a, b, a_log, dt_bias, state = _inputs((1, 10, 1, 1, 32, 32))
    log_g, beta = log_decay(a_log, a, dt_bias), mx.sigmoid(b)
    inside = (mx.arange(10) < 6)[None, :, None]
    _, padded = chunked_gated_delta(q, k, v, mx.where(inside, log_g, 0.0), mx.where(inside, beta, 0.0), state)
    _, short = chunked_gated_delta(*(x[:, :6] for x in (q, k, v, log_g, beta)), state)
    assert mx.abs(padded - short).max().item() < 1e-6
