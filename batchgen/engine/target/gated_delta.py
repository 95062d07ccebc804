"""The gated delta rule in chunks: few matrix products in place of a loop per token.

One token updates a head's state S [Dv, Dk] by S <- g S + d k^T with d = beta (v - g S k), and reads y = S q (Yang,
Kautz, Hatamizadeh 2024, "Gated Delta Networks"). Over a chunk the deltas d solve a unit lower triangular system, so
that outputs and final state are matrix products (the WY form). Plain MLX operations: differentiable, on any device, in
float32. Knows nothing of models, caches or rows; never imports mlx-lm.
"""

from typing import NamedTuple

import mlx.core as mx

from batchgen.engine.compiling import on_gpu


class BlockRecord(NamedTuple):
    """What replays a block: keys [B, H, L, Dk], deltas [B, H, L, Dv], log decays [B, H, L]."""

    keys: mx.array
    deltas: mx.array
    log_decay: mx.array


def log_decay(a_log: mx.array, a: mx.array, dt_bias: mx.array) -> mx.array:
    """log g = -exp(A_log) softplus(a + dt_bias), kept as a logarithm since g itself underflows. Shape of `a`."""
    rate = mx.exp(a_log.astype(mx.float32))
    return -rate * mx.logaddexp((a + dt_bias).astype(mx.float32), 0.0)


def _segment_sums(log_g: mx.array) -> mx.array:
    """[..., T] -> [..., T, T]: entry (t, i) is the sum of log_g over (i, t], and -inf for i > t.

    Summed per segment: differences of one running sum lose the small decays behind large ones.
    """
    size = log_g.shape[-1]
    steps = mx.arange(size)
    later = steps[:, None] > steps[None, :]
    sums = mx.cumsum(mx.where(later, log_g[..., :, None], 0.0), axis=-2)
    return mx.where(steps[:, None] >= steps[None, :], sums, -mx.inf)


def _unit_lower_inverse(strict: mx.array) -> mx.array:
    """Inverse of I + strict for strictly lower triangular `strict` [..., T, T].

    Joins inverted diagonal blocks in pairs, [[A, 0], [M, B]] -> [[A', 0], [-B' M A', B']], from single entries up.
    Stable as forward substitution is; a series in powers of `strict` is not, its terms grow with repeated keys.
    """
    size, lead = strict.shape[-1], strict.shape[:-2]
    padded = 1 << (size - 1).bit_length()
    if padded > size:
        strict = mx.pad(strict, [(0, 0)] * len(lead) + [(0, padded - size)] * 2)
    inverse = mx.ones((*lead, padded, 1, 1), strict.dtype)
    width = 1
    while width < padded:
        grid = strict.reshape(*lead, padded // (2 * width), 2, width, padded // (2 * width), 2, width)
        below = mx.moveaxis(mx.diagonal(grid[..., :, 1, :, :, 0, :], axis1=-4, axis2=-2), -1, -3)
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        joint = -below if width == 1 else -(lower @ below @ upper)
        rows = [[upper, mx.zeros_like(upper)], [joint, lower]]
        inverse = mx.concatenate([mx.concatenate(row, axis=-1) for row in rows], axis=-2)
        width *= 2
    return inverse[..., 0, :size, :size]


def _block_inverse(strict: mx.array) -> mx.array:
    """`_unit_lower_inverse` where no gradient is needed: on a CPU LAPACK's, one operation in place of some sixty."""
    if on_gpu():
        return _unit_lower_inverse(strict)
    return mx.linalg.tri_inv(strict + mx.eye(strict.shape[-1]), upper=False)


def _heads_first(x: mx.array, num_heads: int) -> mx.array:
    """[B, T, h, D] -> float32 [B, H, T, D], each of the h heads serving H / h value heads in a row."""
    repeats = num_heads // x.shape[2]
    x = mx.repeat(x, repeats, axis=2) if repeats > 1 else x
    return x.astype(mx.float32).swapaxes(1, 2)


def gated_delta_block(
    q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, BlockRecord]:
    """Outputs of one block of tokens read on top of `state`, which stays as it is.

    q, k: [B, L, Hk, Dk], normalised, the readout scale in q; v: [B, L, Hv, Dv]; log_g, beta: [B, L, Hv];
    state: [B, Hv, Dv, Dk]. Returns y [B, L, Hv, Dv] in float32 and the record that `advance` replays.
    """
    num_heads = v.shape[2]
    q, k, v = (_heads_first(x, num_heads) for x in (q, k, v))
    log_g, beta = log_g.astype(mx.float32).swapaxes(1, 2), beta.astype(mx.float32).swapaxes(1, 2)[..., None]
    from_start = mx.exp(mx.cumsum(log_g, axis=-1))[..., None]
    decay = mx.exp(_segment_sums(log_g))
    state_t = state.swapaxes(-1, -2)
    pull = beta * (v - from_start * (k @ state_t))
    deltas = _block_inverse(mx.tril(beta * (k @ k.swapaxes(-1, -2)) * decay, -1)) @ pull
    y = from_start * (q @ state_t) + ((q @ k.swapaxes(-1, -2)) * decay) @ deltas
    return y.swapaxes(1, 2), BlockRecord(k, deltas, log_g)


def advance(state: mx.array, record: BlockRecord, counts: mx.array) -> mx.array:
    """State after each row's first counts[b] tokens of a recorded block: one product, however many that are.

    state: [B, H, Dv, Dk]; counts: [B] int32 from 0 to L; a row with count 0 keeps its state to the bit.
    """
    keys, deltas, log_g = record
    inside = (mx.arange(keys.shape[2]) < counts[:, None])[:, None, :]
    log_g = mx.where(inside, log_g, 0.0)
    after = mx.where(inside, mx.exp(mx.cumsum(log_g, axis=-1, reverse=True, inclusive=False)), 0.0)
    return mx.exp(mx.sum(log_g, axis=-1))[..., None, None] * state + (deltas * after[..., None]).swapaxes(-1, -2) @ keys


def chunked_gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    chunk: int | None = None,
) -> tuple[mx.array, mx.array]:
    """Outputs and final state over a sequence of any length.

    Shapes as in `gated_delta_block` with T in place of L; a missing state is zeros; `chunk` tokens
    are taken at a time. A token with beta 0 and
    log_g 0 leaves the state as it is. Returns y [B, T, Hv, Dv] and the state [B, Hv, Dv, Dk], both float32.
    """
    batch, length, num_heads, value_dim = v.shape
    if state is None:
        state = mx.zeros((batch, num_heads, value_dim, k.shape[-1]))
    if length == 1:
        return _one_token(q, k, v, log_g, beta, state)
    chunk = min(chunk or _default_chunk(), length)
    num_chunks = -(-length // chunk)
    padding = num_chunks * chunk - length
    q, k, v = (_split_chunks(_heads_first(x, num_heads), num_chunks, padding) for x in (q, k, v))
    log_g, beta = (
        _split_chunks(x.astype(mx.float32).swapaxes(1, 2)[..., None], num_chunks, padding) for x in (log_g, beta)
    )
    log_g = log_g[..., 0]
    sums = _segment_sums(log_g)
    decay, from_start = mx.exp(sums), mx.exp(mx.cumsum(log_g, axis=-1))[..., None]
    to_end = mx.exp(sums[..., -1, :])[..., None]
    inverse = _unit_lower_inverse(mx.tril(beta * (k @ k.swapaxes(-1, -2)) * decay, -1))
    own, pulled = inverse @ (beta * v), inverse @ (beta * from_start * k)
    scores, reads, writes = (q @ k.swapaxes(-1, -2)) * decay, from_start * q, to_end * k
    outputs = []
    for n in range(num_chunks):
        state_t = state.swapaxes(-1, -2)
        deltas = own[:, :, n] - pulled[:, :, n] @ state_t
        outputs.append(reads[:, :, n] @ state_t + scores[:, :, n] @ deltas)
        state = from_start[:, :, n, -1:] * state + deltas.swapaxes(-1, -2) @ writes[:, :, n]
    y = mx.concatenate(outputs, axis=2)[:, :, :length]
    return y.swapaxes(1, 2), state


def _one_token(
    q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The rule as it is written, for a sequence of one token: what plain decoding runs."""
    q, k, v = (_heads_first(x, v.shape[2]) for x in (q, k, v))
    g = mx.exp(log_g.astype(mx.float32)).swapaxes(1, 2)[..., None]
    beta = beta.astype(mx.float32).swapaxes(1, 2)[..., None]
    state = g * state
    delta = beta * (v - k @ state.swapaxes(-1, -2))
    state = state + delta.swapaxes(-1, -2) @ k
    return (q @ state.swapaxes(-1, -2)).swapaxes(1, 2), state


def _default_chunk() -> int:
    """Long chunks feed a GPU's matrix units; on a CPU each pair of tokens in a chunk costs a slow exponential."""
    return 64 if on_gpu() else 16


def _split_chunks(x: mx.array, num_chunks: int, padding: int) -> mx.array:
    """[B, H, T, D] -> [B, H, N, C, D], padded with zeros at the end."""
    if padding:
        x = mx.pad(x, [(0, 0), (0, 0), (0, padding), (0, 0)])
    batch, num_heads, length, dim = x.shape
    return x.reshape(batch, num_heads, num_chunks, length // num_chunks, dim)
