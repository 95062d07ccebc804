"""Keys and values of one attention layer, each row with a length of its own.

An entry past a row's length is garbage that masks hide and later tokens overwrite: dropping rejected tokens costs
nothing. Never looks at lengths itself; the state that owns it says where a pass writes.
"""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.caches.buffers import grow_axis
from batchgen.engine.caches.rows import PairRows


class AttentionRows(PairRows):
    """Keys and values [R, Hkv, capacity, D]."""

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: mx.Dtype) -> None:
        super().__init__(*(mx.zeros((0, num_kv_heads, 0, head_dim), dtype) for _ in range(2)))

    def grow(self, capacity: int) -> None:
        """Appends blank entries until there are `capacity`."""
        keys, values = self.pair
        self.pair = grow_axis(keys, 2, capacity), grow_axis(values, 2, capacity)

    def put(self, slots: Sequence[int], source: PairRows, rows: Sequence[int]) -> None:
        self.grow(source.pair[0].shape[2])
        super().put(slots, source, rows)

    def cut(self, capacity: int) -> None:
        """Drops the entries from `capacity` on; no row may be longer."""
        keys, values = self.pair
        self.pair = keys[:, :, :capacity], values[:, :, :capacity]
