"""Attention of the supported models over rows of many lengths: mlx-lm's modules for the weights, our own buffers.

Knows how mlx-lm's attention classes differ: query and key norms, an output gate, biases. Nothing here keeps state.
"""

from typing import Any, Literal

import mlx.core as mx

from batchgen.engine.compiling import on_gpu
from batchgen.engine.memory import RowBytes
from batchgen.engine.target.projections import Projections

# The largest head for which MLX has fused attention on CUDA; beyond it the plain form is all there is.
_LARGEST_FUSED_HEAD = 128

Mask = mx.array | Literal["causal"]


class AttentionLayer:
    """One attention mixer over [R, T, H], with the weights of an mlx-lm module."""

    def __init__(self, module: Any, *, stack: bool) -> None:
        self._project = Projections([module.q_proj, module.k_proj, module.v_proj], stack=stack)
        self.num_heads = int(getattr(module, "n_heads", None) or module.num_attention_heads)
        self.num_kv_heads = int(getattr(module, "n_kv_heads", None) or module.num_key_value_heads)
        queries, keys, _ = self._project.sizes
        self.head_dim = keys // self.num_kv_heads
        self._is_gated = queries == 2 * self.num_heads * self.head_dim
        self._module = module

    def row_bytes(self, itemsize: int) -> RowBytes:
        """What a row takes in this layer."""
        return RowBytes(per_token=2 * self.num_kv_heads * self.head_dim * itemsize)

    def __call__(
        self, x: mx.array, mask: Mask, offsets: mx.array | int = 0, cache: tuple[mx.array, mx.array] | None = None
    ) -> tuple[mx.array, tuple[mx.array, mx.array]]:
        """x [R, T, H] at positions offsets [R] + 0..T-1 -> [R, T, H], and the keys and values to keep.

        With a cache of buffers [R, Hkv, S, D] these are the buffers with the new tokens written in, and the mask
        [R, 1, T, S] says what each token sees of them; without one they are the tokens' own.
        """
        num_rows, length, _ = x.shape
        queries, keys, values = self._project.split(self._project(x))
        gate = None
        queries = queries.reshape(num_rows, length, self.num_heads, -1)
        if self._is_gated:
            queries, gate = mx.split(queries, 2, axis=-1)
        queries = self._positioned(queries, "q_norm", offsets)
        keys = self._positioned(keys.reshape(num_rows, length, self.num_kv_heads, -1), "k_norm", offsets)
        values = values.reshape(num_rows, length, self.num_kv_heads, -1).transpose(0, 2, 1, 3)
        if cache is not None:
            keys, values = write(cache[0], keys, offsets), write(cache[1], values, offsets)
        out = attend(queries, keys, values, self._module.scale, mask).transpose(0, 2, 1, 3)
        out = out.reshape(num_rows, length, -1)
        if gate is not None:
            out = out * mx.sigmoid(gate.reshape(num_rows, length, -1))
        mixed: mx.array = self._module.o_proj(out)
        return mixed, (keys, values)

    def _positioned(self, heads: mx.array, norm: str, offsets: mx.array | int) -> mx.array:
        """[R, T, heads, D] -> normed where the model does so, and rotated, [R, heads, T, D]."""
        if norm in self._module:
            heads = self._module[norm](heads)
        rotated: mx.array = self._module.rope(heads.transpose(0, 2, 1, 3), offset=offsets)
        return rotated


def attend(queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Mask) -> mx.array:
    """Grouped-query attention: [R, H, T, D] over [R, Hkv, S, D] -> [R, H, T, D]."""
    if isinstance(mask, str) or not on_gpu() or mx.metal.is_available() or queries.shape[-1] <= _LARGEST_FUSED_HEAD:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
    # The heads that share keys side by side, so that these are read once and not once for every head.
    num_rows, num_heads, length, dim = queries.shape
    num_groups, num_keys = keys.shape[1], keys.shape[2]
    grouped = (queries * scale).reshape(num_rows, num_groups, -1, dim)
    scores = (grouped @ keys.swapaxes(-1, -2)).reshape(num_rows, num_groups, -1, length, num_keys)
    weights = mx.softmax(mx.where(mask[:, :, None], scores, -mx.inf), axis=-1, precise=True)
    out = weights.reshape(num_rows, num_groups, -1, num_keys) @ values
    return out.reshape(num_rows, num_heads, length, dim)


def write(buffer: mx.array, new: mx.array, offsets: mx.array | int) -> mx.array:
    """The buffer [R, Hkv, S, D] with new [R, Hkv, T, D] at each row's offset [R]."""
    offsets = mx.array([offsets]) if isinstance(offsets, int) else offsets
    if buffer.shape[0] == 1:
        return mx.slice_update(buffer, new, offsets, axes=(2,))
    columns = (offsets[:, None] + mx.arange(new.shape[2]))[:, None, :, None]
    return mx.put_along_axis(buffer, mx.broadcast_to(columns, new.shape), new, axis=2)
