"""All that the target remembers of its rows: one state per layer, one length per row.

The host knows an upper bound of every length, so that capacity is settled without asking the device.
"""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.arrays import int_array
from batchgen.engine.caches.attention import AttentionRows
from batchgen.engine.caches.buffers import put_rows, resize_rows, round_up, settled_capacity, take_rows
from batchgen.engine.caches.recurrent import RecurrentRows

CAPACITY_STEP = 256


RowStates = AttentionRows | RecurrentRows


class _AttentionPass:
    """One attention layer during one pass, in the form that mlx-lm's attention modules use."""

    def __init__(self, rows: AttentionRows, offset: mx.array, capacity: int) -> None:
        self._rows, self.offset, self._capacity = rows, offset, capacity

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self._rows.write(keys, values, self.offset, self._capacity)


class TargetState:
    """Rows' caches for a model whose layers are `recurrent` (true) or attention (false)."""

    def __init__(self, recurrent: Sequence[bool], num_rows: int) -> None:
        self._layers: list[RowStates] = [
            RecurrentRows() if is_recurrent else AttentionRows() for is_recurrent in recurrent
        ]
        self._capacity = 0
        self._bound = 0
        self.lengths = mx.zeros((num_rows,), mx.int32)

    @property
    def num_rows(self) -> int:
        return self.lengths.shape[0]

    def begin(self, length: int) -> None:
        """Makes room for `length` more tokens in every row; call it before a pass."""
        needed = self._bound + length
        if needed > self._capacity:
            self._capacity = round_up(needed, CAPACITY_STEP)

    def attention(self, layer: int) -> _AttentionPass:
        rows = self._layers[layer]
        assert isinstance(rows, AttentionRows)
        return _AttentionPass(rows, self.lengths, self._capacity)

    def gated_delta(self, layer: int) -> RecurrentRows:
        rows = self._layers[layer]
        assert isinstance(rows, RecurrentRows)
        return rows

    def mask(self, length: int) -> mx.array:
        """Key j is seen by new token t of row r if j <= lengths[r] + t; [R, 1, T, capacity]."""
        positions = self.lengths[:, None] + mx.arange(length)
        return (mx.arange(self._capacity) <= positions[..., None])[:, None]

    def take_in(self, counts: mx.array, most: int) -> None:
        """After a pass that took its tokens in: rows grow by counts[r], none by more than `most`."""
        self.lengths = self.lengths + counts
        self._bound += most

    def commit(self, counts: mx.array, most: int) -> None:
        """After a verify pass: each row keeps its first counts[r] tokens of the block."""
        for rows in self._layers:
            if isinstance(rows, RecurrentRows):
                rows.commit(counts)
        self.take_in(counts, most)

    def settle(self, longest: int) -> None:
        """Tells the host's bound what the longest row really has, and gives back a capacity far beyond it."""
        self._bound = longest
        capacity = settled_capacity(self._capacity, longest, CAPACITY_STEP)
        if capacity < self._capacity:
            self._capacity = capacity
            for rows in self._layers:
                if isinstance(rows, AttentionRows):
                    rows.cut(capacity)

    def release(self, slots: Sequence[int]) -> None:
        """Empties slots, so that what still runs there writes within the capacity."""
        self.lengths[int_array(slots)] = 0

    def take(self, indices: Sequence[int]) -> None:
        for rows in self._layers:
            rows.take(indices)
        self.lengths = take_rows(self.lengths, indices)

    def put(self, slots: Sequence[int], source: "TargetState", rows: Sequence[int]) -> None:
        """Copies the source's rows into slots."""
        for mine, theirs in zip(self._layers, source._layers, strict=True):
            if isinstance(mine, AttentionRows):
                assert isinstance(theirs, AttentionRows)
                mine.put(slots, theirs, rows, self.num_rows)
            else:
                assert isinstance(theirs, RecurrentRows)
                mine.put(slots, theirs, rows, self.num_rows)
        self.lengths = put_rows(self.lengths, slots, source.lengths, rows)
        self._bound = max(self._bound, source._bound)
        self._capacity = max(self._capacity, source._capacity)

    def resize(self, num_rows: int) -> None:
        for rows in self._layers:
            rows.resize(num_rows)
        self.lengths = resize_rows(self.lengths, num_rows)

    def arrays(self) -> list[mx.array]:
        return [self.lengths, *(array for rows in self._layers for array in rows.arrays())]
