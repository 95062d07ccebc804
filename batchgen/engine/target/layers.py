"""Runs a stock mlx-lm model's own modules, layer by layer, over many rows at once.

The loop over layers is ours, so that hidden states are tapped and the gated-delta layers work on our own row states
with no class or instance of mlx-lm patched. What a layer computes is mlx-lm's; a test holds the two equal. This is the
one file that knows how the supported model classes are put together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from mlx import nn

from batchgen.engine.target.gated_delta import BlockRecord, chunked_gated_delta, gated_delta_block, log_decay


class Hidden(NamedTuple):
    """What a pass over the layers gives: the final normed states [R, T, H], and the tapped ones side by side."""

    final: mx.array
    features: mx.array | None


class GatedDeltaRows(Protocol):
    """The per-row state of one gated-delta layer, as the layer uses it."""

    def conv_window(self, num_rows: int, width: int, channels: int, dtype: mx.Dtype) -> mx.array:
        """Last `width` inputs of the convolution, [R, width, channels]."""
        ...

    def recurrent(self, shape: tuple[int, ...]) -> mx.array:
        """Recurrent state in float32, `shape` is [R, Hv, Dv, Dk]."""
        ...

    def record(self, conv_input: mx.array, block: BlockRecord) -> None:
        """Keeps what a later commit replays; the state stays as it is."""
        ...

    def replace(self, conv_input: mx.array, state: mx.array, counts: mx.array) -> None:
        """Takes the state after each row's first counts[r] tokens of `conv_input`'s."""
        ...


class LayerStates(Protocol):
    """Row states of all layers during one pass."""

    def attention(self, layer: int) -> Any:
        """A cache with `offset` and `update_and_fetch`, as mlx-lm's attention modules use it."""
        ...

    def gated_delta(self, layer: int) -> GatedDeltaRows: ...

    def mask(self, length: int) -> mx.array:
        """Which keys each of `length` new tokens may see, [R, 1, T, capacity]."""
        ...


def inner_model(model: nn.Module) -> Any:
    """The part of an mlx-lm model that holds `embed_tokens`, `layers` and `norm`."""
    return model.model


def head(model: nn.Module, hidden: mx.array) -> mx.array:
    """Logits [..., V] of final normed states [..., H]."""
    language_model = getattr(model, "language_model", model)
    lm_head = getattr(language_model, "lm_head", None)
    logits: mx.array = inner_model(model).embed_tokens.as_linear(hidden) if lm_head is None else lm_head(hidden)
    return logits


def is_gated_delta(layer: Any) -> bool:
    """Whether a decoder layer is recurrent rather than attention."""
    return hasattr(layer, "linear_attn")


def _depthwise_conv(weight: mx.array, window: mx.array, length: int) -> mx.array:
    """Causal depthwise convolution as a sum over shifted inputs, in float32.

    weight [C, K, 1], window [R, K - 1 + length, C] -> [R, length, C].
    """
    kernel, inputs = weight[..., 0].astype(mx.float32), window.astype(mx.float32)
    total = inputs[:, :length] * kernel[:, 0]
    for tap in range(1, kernel.shape[1]):
        total = total + inputs[:, tap : tap + length] * kernel[:, tap]
    return total.astype(window.dtype)


def gated_delta_layer(
    module: Any, x: mx.array, rows: GatedDeltaRows | None = None, counts: mx.array | None = None
) -> mx.array:
    """One gated-delta mixer over [R, T, H], with mlx-lm's `GatedDeltaNet` module for its weights.

    Without `rows`, a sequence from its start (differentiable). With `rows` and `counts`, each row takes in its first
    counts[r] tokens. With `rows` alone, a block is read on top of the state and recorded for a later commit.
    """
    num_rows, length, _ = x.shape
    width = module.conv_kernel_size - 1
    qkv = module.in_proj_qkv(x)
    z = module.in_proj_z(x).reshape(num_rows, length, module.num_v_heads, module.head_v_dim)
    beta = mx.sigmoid(module.in_proj_b(x).astype(mx.float32))
    log_g = log_decay(module.A_log, module.in_proj_a(x), module.dt_bias)
    if rows is None:
        past = mx.zeros((num_rows, width, module.conv_dim), x.dtype)
    else:
        past = rows.conv_window(num_rows, width, module.conv_dim, x.dtype)
    conv_input = mx.concatenate([past, qkv], axis=1)
    mixed = nn.silu(_depthwise_conv(module.conv1d.weight, conv_input, length))
    q, k, v = mx.split(mixed, [module.key_dim, 2 * module.key_dim], axis=-1)
    q, k = _normalised(q, module), _normalised(k, module) * module.head_k_dim**0.5
    v = v.reshape(num_rows, length, module.num_v_heads, module.head_v_dim)

    if rows is None:
        y, _ = chunked_gated_delta(q, k, v, log_g, beta)
    else:
        shape = (num_rows, module.num_v_heads, module.head_v_dim, module.head_k_dim)
        state = rows.recurrent(shape)
        if counts is None:
            y, block = gated_delta_block(q, k, v, log_g, beta, state)
            rows.record(conv_input, block)
        else:
            inside = (mx.arange(length) < counts[:, None])[..., None]
            log_g, beta = mx.where(inside, log_g, 0.0), mx.where(inside, beta, 0.0)
            y, state = chunked_gated_delta(q, k, v, log_g, beta, state)
            rows.replace(conv_input, state, counts)
    out = module.norm(y.astype(x.dtype), z)
    mixed_out: mx.array = module.out_proj(out.reshape(num_rows, length, -1))
    return mixed_out


def _normalised(x: mx.array, module: Any) -> mx.array:
    """Queries or keys per head, L2-normalised and scaled by Dk^-1; eps 1e-6 on the sum of squares, as mlx-lm has it."""
    dim = module.head_k_dim
    heads = x.reshape(*x.shape[:2], module.num_k_heads, dim)
    normalised: mx.array = mx.fast.rms_norm(heads, None, 1e-6 / dim) / dim
    return normalised


def run_layers(
    model: nn.Module,
    tokens: mx.array,
    *,
    tap: Sequence[int] = (),
    states: LayerStates | None = None,
    counts: mx.array | None = None,
) -> Hidden:
    """All layers over tokens [R, T].

    `tap` names layers (from 0) whose outputs, before the final norm, come back as features [R, T, len(tap) * H] in that
    order. Without `states`, sequences from their start (differentiable, for training). `counts` as in
    `gated_delta_layer`: given, the tokens are taken in; not given, they are a block to be committed later.
    """
    inner = inner_model(model)
    h = inner.embed_tokens(tokens)
    mask = "causal" if states is None else states.mask(tokens.shape[1])
    outputs: dict[int, mx.array] = {}
    for index, layer in enumerate(inner.layers):
        if is_gated_delta(layer):
            rows = None if states is None else states.gated_delta(index)
            h = h + gated_delta_layer(layer.linear_attn, layer.input_layernorm(h), rows, counts)
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        else:
            h = layer(h, mask, None if states is None else states.attention(index))
        if index in tap:
            outputs[index] = h
    features = mx.concatenate([outputs[index] for index in tap], axis=-1) if tap else None
    return Hidden(inner.norm(h), features)
