"""The gated delta rule as a layer runs it, in the forms that a machine may have: plain operations, or its own kernels.

A form takes what a layer projected, with convolution window and recurrent state, and keeps none of it. All forms give
the same up to rounding; `plain` is what the others are held to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from mlx import nn
from mlx_lm.models.gated_delta import gated_delta_update

from batchgen.engine.target.gated_delta import (
    BlockRecord,
    advance,
    chunked_gated_delta,
    gated_delta_block,
    log_decay,
)


@dataclass(frozen=True, slots=True)
class GatedDeltaWeights:
    """Sizes and small weights of one layer. `projected` arrays [R, T, P] hold queries, keys and values (the inputs of
    the convolution, C channels together), then the gate z, then b and a."""

    num_k_heads: int
    num_v_heads: int
    k_dim: int
    v_dim: int
    kernel_size: int
    conv: mx.array  # [C, kernel_size, 1]
    a_log: mx.array  # [Hv]
    dt_bias: mx.array  # [Hv]

    @classmethod
    def of(cls, module: Any) -> "GatedDeltaWeights":
        """Those of mlx-lm's `GatedDeltaNet`."""
        return cls(
            num_k_heads=module.num_k_heads,
            num_v_heads=module.num_v_heads,
            k_dim=module.head_k_dim,
            v_dim=module.head_v_dim,
            kernel_size=module.conv_kernel_size,
            conv=module.conv1d.weight,
            a_log=module.A_log,
            dt_bias=module.dt_bias,
        )

    @property
    def num_channels(self) -> int:
        """Of the convolution."""
        return 2 * self.num_k_heads * self.k_dim + self.num_v_heads * self.v_dim

    @property
    def gate_end(self) -> int:
        """Where the gate's columns end and b's begin."""
        return self.num_channels + self.num_v_heads * self.v_dim

    def gate(self, projected: mx.array) -> mx.array:
        """z [R, T, Hv, Dv]."""
        z = projected[..., self.num_channels : self.gate_end]
        return z.reshape(*projected.shape[:2], self.num_v_heads, self.v_dim)

    def b_and_a(self, projected: mx.array) -> tuple[mx.array, mx.array]:
        """[R, T, Hv] each."""
        middle = self.gate_end + self.num_v_heads
        return projected[..., self.gate_end : middle], projected[..., middle:]


class LayerState(NamedTuple):
    """What a layer remembers of each row: the convolution's last inputs [R, K - 1, C], and the recurrent state
    [R, Hv, Dv, Dk] in float32."""

    window: mx.array
    state: mx.array


Record = Sequence[mx.array]
"""What a form needs to take in part of a block later."""


class Form(Protocol):
    """How one layer's rule is computed. Outputs are y [R, T, Hv, Dv], not gated or normed yet."""

    def block(self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState) -> tuple[mx.array, Record]:
        """Reads a block on top of the state, which stays as it is."""
        ...

    def commit(self, weights: GatedDeltaWeights, before: LayerState, record: Record, counts: mx.array) -> LayerState:
        """The state after each row's first counts[r] tokens of a recorded block; 0 leaves a row as it is."""
        ...

    def take_in(
        self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState, counts: mx.array
    ) -> tuple[mx.array, LayerState]:
        """Reads each row's first counts[r] tokens into the state; the outputs of further ones are finite."""
        ...


class PlainForm:
    """Chunks of plain MLX operations, on any device."""

    def block(self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState) -> tuple[mx.array, Record]:
        conv_input, q, k, v = convolved(weights, projected, before.window)
        beta, log_g = _beta_and_log_g(weights, projected)
        y, record = gated_delta_block(q, k, v, log_g, beta, before.state)
        return y, (conv_input, *record)

    def commit(self, weights: GatedDeltaWeights, before: LayerState, record: Record, counts: mx.array) -> LayerState:
        conv_input, keys, deltas, log_g = record
        return LayerState(
            window_after(conv_input, counts, weights.kernel_size - 1),
            advance(before.state, BlockRecord(keys, deltas, log_g), counts),
        )

    def take_in(
        self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState, counts: mx.array
    ) -> tuple[mx.array, LayerState]:
        conv_input, q, k, v = convolved(weights, projected, before.window)
        beta, log_g = _beta_and_log_g(weights, projected)
        inside = (mx.arange(projected.shape[1]) < counts[:, None])[..., None]
        log_g, beta = mx.where(inside, log_g, 0.0), mx.where(inside, beta, 0.0)
        y, state = chunked_gated_delta(q, k, v, log_g, beta, before.state)
        return y, LayerState(window_after(conv_input, counts, weights.kernel_size - 1), state)


class MlxLmForm:
    """mlx-lm's own kernel, which is there on Metal. A commit reads the block again, up to what stands of it."""

    def block(self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState) -> tuple[mx.array, Record]:
        conv_input, q, k, v = convolved(weights, projected, before.window)
        b, a = weights.b_and_a(projected)
        y, _ = gated_delta_update(q, k, v, a, b, weights.a_log, weights.dt_bias, before.state)
        return y, (conv_input, q, k, v, a, b)

    def commit(self, weights: GatedDeltaWeights, before: LayerState, record: Record, counts: mx.array) -> LayerState:
        conv_input, q, k, v, a, b = record
        inside = mx.arange(q.shape[1]) < counts[:, None]
        _, state = gated_delta_update(q, k, v, a, b, weights.a_log, weights.dt_bias, before.state, inside)
        return LayerState(window_after(conv_input, counts, weights.kernel_size - 1), state)

    def take_in(
        self, weights: GatedDeltaWeights, projected: mx.array, before: LayerState, counts: mx.array
    ) -> tuple[mx.array, LayerState]:
        y, record = self.block(weights, projected, before)
        conv_input, q, k, v, a, b = record
        inside = mx.arange(q.shape[1]) < counts[:, None]
        y, state = gated_delta_update(q, k, v, a, b, weights.a_log, weights.dt_bias, before.state, inside)
        return y, LayerState(window_after(conv_input, counts, weights.kernel_size - 1), state)


def over_sequence(weights: GatedDeltaWeights, projected: mx.array) -> mx.array:
    """Outputs of sequences from their start; differentiable."""
    blank = mx.zeros((projected.shape[0], weights.kernel_size - 1, weights.num_channels), projected.dtype)
    _, q, k, v = convolved(weights, projected, blank)
    beta, log_g = _beta_and_log_g(weights, projected)
    y, _ = chunked_gated_delta(q, k, v, log_g, beta)
    return y


def convolved(
    weights: GatedDeltaWeights, projected: mx.array, window: mx.array
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """The convolution's inputs with the window before them [R, K - 1 + T, C], and q, k, v per head, q and k normed."""
    num_rows, length, _ = projected.shape
    conv_input = mx.concatenate([window, projected[..., : weights.num_channels]], axis=1)
    mixed = nn.silu(_depthwise_conv(weights.conv, conv_input, length))
    keys_end = weights.num_k_heads * weights.k_dim
    q, k, v = mx.split(mixed, [keys_end, 2 * keys_end], axis=-1)
    q, k = _normalised(q, weights), _normalised(k, weights) * weights.k_dim**0.5
    return conv_input, q, k, v.reshape(num_rows, length, weights.num_v_heads, weights.v_dim)


def window_after(conv_input: mx.array, counts: mx.array, width: int) -> mx.array:
    """The last `width` inputs up to each row's counts[r] new ones."""
    entries = counts[:, None] + mx.arange(width)
    return mx.take_along_axis(conv_input, entries[..., None], axis=1)


def _beta_and_log_g(weights: GatedDeltaWeights, projected: mx.array) -> tuple[mx.array, mx.array]:
    b, a = weights.b_and_a(projected)
    return mx.sigmoid(b.astype(mx.float32)), log_decay(weights.a_log, a, weights.dt_bias)


def _depthwise_conv(weight: mx.array, window: mx.array, length: int) -> mx.array:
    """Causal depthwise convolution as a sum over shifted inputs, in float32.

    weight [C, K, 1], window [R, K - 1 + length, C] -> [R, length, C].
    """
    kernel, inputs = weight[..., 0].astype(mx.float32), window.astype(mx.float32)
    total = inputs[:, :length] * kernel[:, 0]
    for tap in range(1, kernel.shape[1]):
        total = total + inputs[:, tap : tap + length] * kernel[:, tap]
    return total.astype(window.dtype)


def _normalised(x: mx.array, weights: GatedDeltaWeights) -> mx.array:
    """Queries or keys per head, L2-normalised and scaled by Dk^-1; eps 1e-6 on the sum of squares, as mlx-lm has it."""
    dim = weights.k_dim
    heads = x.reshape(*x.shape[:2], weights.num_k_heads, dim)
    normalised: mx.array = mx.fast.rms_norm(heads, None, 1e-6 / dim) / dim
    return normalised
