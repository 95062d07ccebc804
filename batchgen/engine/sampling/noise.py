"""Noise that is a function of what it is for: a row's key, the token's position, the token id, and a stream.

Nothing is drawn in an order, so no draw depends on what was drawn before it: not on the batch, the block, a drafter or
an interruption. 32-bit integer mixing, equal on every device.
"""

from enum import IntEnum

import mlx.core as mx


class Stream(IntEnum):
    """Separate noise for separate decisions at one position."""

    TOKEN = 0
    """The choice of the token itself: under shared coupling the drafter's too."""
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def key_words(noise_key: int) -> tuple[int, int]:
    """A 64-bit key as two words of 32 bits."""
    return noise_key >> 32 & 0xFFFFFFFF, noise_key & 0xFFFFFFFF


def gumbel(keys: mx.array, positions: mx.array, tokens: mx.array, stream: Stream) -> mx.array:
    """Standard Gumbel noise for keys [R, 2] uint32, positions [R, S] and token ids broadcast to [R, S, N], float32.

    -log(E) with E = -log(1 - u) exponential. u is fine near 0, where the largest noise comes from, and never 0 or 1, so
    that noise is finite: a token that is left as the only one always wins.
    """
    uniforms = _uniforms(_hash(keys, positions, tokens, stream))
    return -mx.log(-mx.log1p(-uniforms))


def uniform(keys: mx.array, positions: mx.array, stream: Stream) -> mx.array:
    """Uniform numbers in (0, 1) for keys [R, 2] uint32 and positions [R, S]: [R, S] float32."""
    return _uniforms(_hash(keys, positions, mx.zeros((1, 1, 1), mx.uint32), stream))[..., 0]


def _uniforms(bits: mx.array) -> mx.array:
    return mx.minimum(bits.astype(mx.float32) * 2.0**-32 + 2.0**-33, 1 - 2.0**-24)


def _hash(keys: mx.array, positions: mx.array, tokens: mx.array, stream: Stream) -> mx.array:
    """[R, S, N] uint32. Two words per position, each made of key, position and stream, enter one round each."""
    high, low = keys[:, :1], keys[:, 1:]
    first = _mix(
        high + _mix(positions.astype(mx.uint32) ^ _mix(low + mx.array(0x9E3779B9 * (stream + 1) % 2**32, mx.uint32)))
    )
    second = _mix(low ^ _mix(first + high))
    return _mix(_mix(tokens.astype(mx.uint32) ^ first[..., None]) + second[..., None])


def _mix(x: mx.array) -> mx.array:
    """A bijection of 32-bit words in which every bit of the input moves every bit of the result.

    Xor-shift and multiply with the constants of Chris Wellons' "lowbias32".
    """
    x = (x ^ (x >> 16)) * mx.array(0x7FEB352D, mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x846CA68B, mx.uint32)
    return x ^ (x >> 16)
