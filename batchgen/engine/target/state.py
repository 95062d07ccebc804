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


class TargetState:
    """Rows' caches; `layers` are blank ones of no row, one per layer of the model."""

    def __init__(self, layers: Sequence[RowStates], num_rows: int) -> None:
        self._layers = layers
        self._capacity = 0
        self._bound = 0
        self.lengths = mx.zeros((num_rows,), mx.int32)
        for rows in layers:
            rows.resize(num_rows)

    @property
    def num_rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        """Entries in each attention buffer."""
        return self._capacity

    def begin(self, length: int) -> None:
        """Makes room for `length` more tokens in every row; call it before a pass."""
        needed = self._bound + length
        if needed > self._capacity:
            self._capacity = round_up(needed, CAPACITY_STEP)
            for rows in self._layers:
                if isinstance(rows, AttentionRows):
                    rows.grow(self._capacity)

    def inputs(self) -> list[tuple[mx.array, ...]]:
        """Each layer's arrays, for a pass."""
        return [rows.pair for rows in self._layers]

    def keep_block(self, after: Sequence[Sequence[mx.array]]) -> None:
        """Takes what a pass over a block gave: written buffers, and records for the commit."""
        for rows, arrays in zip(self._layers, after, strict=True):
            if isinstance(rows, AttentionRows):
                rows.pair = (arrays[0], arrays[1])
            else:
                rows.record = tuple(arrays)

    def keep(self, after: Sequence[Sequence[mx.array]], counts: mx.array, most: int) -> None:
        """Takes what a pass gave that took its tokens in: rows grow by counts[r], none by more than `most`."""
        for rows, arrays in zip(self._layers, after, strict=True):
            rows.pair = (arrays[0], arrays[1])
        self._grow(counts, most)

    def recorded(self) -> tuple[list[tuple[mx.array, ...]], list[tuple[mx.array, ...]]]:
        """States and records of the gated-delta layers. The records are given away."""
        recurrent = [rows for rows in self._layers if isinstance(rows, RecurrentRows)]
        records = [rows.record for rows in recurrent]
        for rows in recurrent:
            rows.record = ()
        return [rows.pair for rows in recurrent], records

    def commit(self, after: Sequence[Sequence[mx.array]], counts: mx.array, most: int) -> None:
        """Takes the gated-delta layers' states with each row's first counts[r] tokens of the block."""
        recurrent = [rows for rows in self._layers if isinstance(rows, RecurrentRows)]
        for rows, (window, state) in zip(recurrent, after, strict=True):
            rows.pair = (window, state)
        self._grow(counts, most)

    def _grow(self, counts: mx.array, most: int) -> None:
        self.lengths = self.lengths + counts
        self._bound += most

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
            mine.put(slots, theirs, rows)
        self.lengths = put_rows(self.lengths, slots, source.lengths, rows)
        self._bound = max(self._bound, source._bound)
        self._capacity = max(self._capacity, source._capacity)

    def resize(self, num_rows: int) -> None:
        for rows in self._layers:
            rows.resize(num_rows)
        self.lengths = resize_rows(self.lengths, num_rows)

    def arrays(self) -> list[mx.array]:
        return [self.lengths, *(array for rows in self._layers for array in rows.pair)]
