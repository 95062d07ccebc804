"""Keys and values of one attention layer, each row with a length of its own.

An entry past a row's length is garbage that masks hide and later tokens overwrite: dropping rejected tokens costs
nothing. Never looks at lengths itself; the state that owns it says where a pass writes.
"""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.caches.buffers import grow_axis, put_rows, resize_rows, take_rows


class AttentionRows:
    """Keys and values [R, Hkv, capacity, D], made at the first write, when their shapes are known."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def write(self, keys: mx.array, values: mx.array, offset: mx.array, capacity: int) -> tuple[mx.array, mx.array]:
        """Puts [R, Hkv, T, D] at each row's offset [R] and returns the whole buffers."""
        if self.keys is None or self.values is None:
            self.keys, self.values = _blank(keys, capacity), _blank(values, capacity)
        self.keys = _write(grow_axis(self.keys, 2, capacity), keys, offset)
        self.values = _write(grow_axis(self.values, 2, capacity), values, offset)
        return self.keys, self.values

    def take(self, indices: Sequence[int]) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = take_rows(self.keys, indices), take_rows(self.values, indices)

    def put(self, slots: Sequence[int], source: "AttentionRows", rows: Sequence[int], num_rows: int) -> None:
        if source.keys is None or source.values is None:
            return
        if self.keys is None or self.values is None:
            self.keys = resize_rows(source.keys[:0], num_rows)
            self.values = resize_rows(source.values[:0], num_rows)
        capacity = max(self.keys.shape[2], source.keys.shape[2])
        self.keys = put_rows(grow_axis(self.keys, 2, capacity), slots, source.keys, rows)
        self.values = put_rows(grow_axis(self.values, 2, capacity), slots, source.values, rows)

    def resize(self, num_rows: int) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = resize_rows(self.keys, num_rows), resize_rows(self.values, num_rows)

    def cut(self, capacity: int) -> None:
        """Drops the entries from `capacity` on; no row may be longer."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :capacity], self.values[:, :, :capacity]

    def arrays(self) -> list[mx.array]:
        return [array for array in (self.keys, self.values) if array is not None]


def _blank(like: mx.array, capacity: int) -> mx.array:
    num_rows, num_heads, _, dim = like.shape
    return mx.zeros((num_rows, num_heads, capacity, dim), like.dtype)


def _write(buffer: mx.array, new: mx.array, offset: mx.array) -> mx.array:
    if buffer.shape[0] == 1:
        return mx.slice_update(buffer, new, offset, axes=(2,))
    columns = (offset[:, None] + mx.arange(new.shape[2]))[:, None, :, None]
    return mx.put_along_axis(buffer, mx.broadcast_to(columns, new.shape), new, axis=2)
