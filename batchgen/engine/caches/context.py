"""A drafter's context: per layer the keys and values of all accepted tokens, each row with a length of its own.

What a row holds does not depend on the steps in which it arrived. An entry past a row's length is garbage that masks
hide and later entries overwrite. Knows nothing of drafter networks, and never holds a block's own keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array
from batchgen.engine.caches.buffers import grow_axis, put_rows, resize_rows, round_up, settled_capacity, take_rows

CAPACITY_STEP = 256
# The most entries a row takes at once. A ring has this many spare ones, so that what is written past a row's count
# wraps onto entries that have left the window already.
MAX_APPEND = 256


@dataclass(slots=True)
class _LayerBuffers:
    """Keys and values [R, Hkv, capacity, d]; a row's entry `p` stands in slot `p`, or in a ring in `p % capacity`."""

    window: int | None
    keys: mx.array
    values: mx.array

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def write(self, keys: mx.array, values: mx.array, offsets: mx.array) -> None:
        slots = (offsets[:, None] + mx.arange(keys.shape[2])) % self.capacity
        slots = mx.broadcast_to(slots[:, None, :, None], keys.shape)
        self.keys = mx.put_along_axis(self.keys, slots, keys.astype(self.keys.dtype), axis=2)
        self.values = mx.put_along_axis(self.values, slots, values.astype(self.values.dtype), axis=2)

    def grow(self, capacity: int) -> None:
        self.keys = grow_axis(self.keys, 2, capacity)
        self.values = grow_axis(self.values, 2, capacity)


class DraftContext:
    """Rows' context for layers with the given `windows`: None keeps everything, a number the last `window - 1` entries.

    `lengths` [R] int32 counts all entries a row was ever given, so it is also its next absolute position.
    The newest entries wait beside the buffers until something needs them there: a write in the same graph as a read of
    the old buffer copies the whole buffer, one in a later graph updates it in place.
    """

    def __init__(
        self, num_rows: int, windows: Sequence[int | None], num_kv_heads: int, head_dim: int, dtype: mx.Dtype
    ) -> None:
        def blank(window: int | None) -> mx.array:
            capacity = CAPACITY_STEP if window is None else window - 1 + MAX_APPEND
            return mx.zeros((num_rows, num_kv_heads, capacity, head_dim), dtype)

        self.lengths = mx.zeros((num_rows,), mx.int32)
        self._layers = [_LayerBuffers(window, blank(window), blank(window)) for window in windows]
        self._waiting: tuple[Sequence[tuple[mx.array, mx.array]], mx.array] | None = None
        # No row is longer than this. It runs ahead of the true lengths until `settle` says what was accepted.
        self._bound = 0

    @property
    def num_rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    def keys_values(self) -> list[tuple[mx.array, mx.array]]:
        """Each layer's whole buffers [R, Hkv, capacity, d]; `positions` tells what their slots hold."""
        self._write_waiting()
        return [(layer.keys, layer.values) for layer in self._layers]

    def append(self, keys_values: Sequence[tuple[mx.array, mx.array]], counts: mx.array) -> None:
        """Every row r takes the first counts[r] of T <= MAX_APPEND entries, [R, Hkv, T, d] per layer."""
        num_new = keys_values[0][0].shape[2]
        assert num_new <= MAX_APPEND
        self._write_waiting()
        self._reserve(num_new)
        self._waiting = keys_values, self.lengths
        self.lengths = self.lengths + counts
        self._bound += num_new

    def take(self, indices: Sequence[int]) -> None:
        """Keeps those rows, in that order."""
        self._write_waiting()
        for layer in self._layers:
            layer.keys, layer.values = take_rows(layer.keys, indices), take_rows(layer.values, indices)
        self.lengths = take_rows(self.lengths, indices)

    def put(self, slots: Sequence[int], source: "DraftContext", rows: Sequence[int]) -> None:
        """Copies `rows` of another context of the same drafter into `slots`."""
        self._write_waiting()
        source._write_waiting()
        for mine, theirs in zip(self._layers, source._layers, strict=True):
            mine.grow(theirs.capacity)
            mine.keys = put_rows(mine.keys, slots, theirs.keys, rows)
            mine.values = put_rows(mine.values, slots, theirs.values, rows)
        self.lengths = put_rows(self.lengths, slots, source.lengths, rows)
        self._bound = max(self._bound, source._bound)

    def release(self, slots: Sequence[int]) -> None:
        """Empties slots; what they held is garbage from then on."""
        self.lengths[int_array(slots)] = 0

    def settle(self, longest: int) -> None:
        """Tells the host's bound what the longest row really has, and gives back a capacity far beyond it."""
        self._bound = longest
        for layer in self._layers:
            capacity = settled_capacity(layer.capacity, longest, CAPACITY_STEP)
            if layer.window is None and capacity < layer.capacity:
                self._write_waiting()
                layer.keys, layer.values = layer.keys[:, :, :capacity], layer.values[:, :, :capacity]

    def resize(self, num_rows: int) -> None:
        """Cuts rows off the end or appends rows without entries."""
        self._write_waiting()
        for layer in self._layers:
            layer.keys, layer.values = resize_rows(layer.keys, num_rows), resize_rows(layer.values, num_rows)
        self.lengths = resize_rows(self.lengths, num_rows)

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate, and all that takes memory."""
        waiting = [] if self._waiting is None else [array for pair in self._waiting[0] for array in pair]
        return [self.lengths, *waiting, *(array for layer in self._layers for array in (layer.keys, layer.values))]

    def _write_waiting(self) -> None:
        if self._waiting is None:
            return
        keys_values, offsets = self._waiting
        self._waiting = None
        for layer, (keys, values) in zip(self._layers, keys_values, strict=True):
            layer.write(keys, values, offsets)

    def _reserve(self, num_new: int) -> None:
        """Makes room in the layers that keep everything."""
        for layer in self._layers:
            if layer.window is None and self._bound + num_new > layer.capacity:
                layer.grow(round_up(self._bound + num_new, CAPACITY_STEP))


def key_positions(lengths: mx.array, capacity: int, window: int | None) -> mx.array:
    """The absolute position in each slot of rows with `lengths` [R], negative where a ring holds none yet.

    [1, capacity] for a layer that keeps everything (slots past a row's length hold garbage), else [R, capacity].
    """
    slots = mx.arange(capacity, dtype=mx.int32)[None]
    if window is None:
        return slots
    last = lengths[:, None] - 1
    return last - (last - slots) % capacity
