"""Convolution window and recurrent state of one gated-delta layer, per row, with commit by replay.

A verify pass leaves the state as it is and records the block; `commit` then replays each row's own count of its tokens.
A block that was recorded and not committed is forgotten by the next one.
"""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.caches.buffers import put_rows, resize_rows, take_rows
from batchgen.engine.target.gated_delta import BlockRecord, advance


class RecurrentRows:
    """Window [R, K - 1, C] and state [R, Hv, Dv, Dk] (float32), zeros for a row that has read nothing."""

    def __init__(self) -> None:
        self.window: mx.array | None = None
        self.state: mx.array | None = None
        self._block: tuple[mx.array, BlockRecord] | None = None

    def conv_window(self, num_rows: int, width: int, channels: int, dtype: mx.Dtype) -> mx.array:
        if self.window is None:
            self.window = mx.zeros((num_rows, width, channels), dtype)
        return self.window

    def recurrent(self, shape: tuple[int, ...]) -> mx.array:
        if self.state is None:
            self.state = mx.zeros(shape, mx.float32)
        return self.state

    def record(self, conv_input: mx.array, block: BlockRecord) -> None:
        self._block = (conv_input, block)

    def replace(self, conv_input: mx.array, state: mx.array, counts: mx.array) -> None:
        self.state, self.window = state, self._window_after(conv_input, counts)

    def commit(self, counts: mx.array) -> None:
        """Takes in each row's first counts[r] tokens of the recorded block; count 0 leaves a row as it is."""
        assert self._block is not None and self.state is not None
        conv_input, block = self._block
        self._block = None
        self.replace(conv_input, advance(self.state, block, counts), counts)

    def _window_after(self, conv_input: mx.array, counts: mx.array) -> mx.array:
        assert self.window is not None
        entries = counts[:, None] + mx.arange(self.window.shape[1])
        return mx.take_along_axis(conv_input, entries[..., None], axis=1)

    def take(self, indices: Sequence[int]) -> None:
        if self.window is not None and self.state is not None:
            self.window, self.state = take_rows(self.window, indices), take_rows(self.state, indices)

    def put(self, slots: Sequence[int], source: "RecurrentRows", rows: Sequence[int], num_rows: int) -> None:
        if source.window is None or source.state is None:
            return
        if self.window is None or self.state is None:
            self.window = resize_rows(source.window[:0], num_rows)
            self.state = resize_rows(source.state[:0], num_rows)
        self.window = put_rows(self.window, slots, source.window, rows)
        self.state = put_rows(self.state, slots, source.state, rows)

    def resize(self, num_rows: int) -> None:
        if self.window is not None and self.state is not None:
            self.window, self.state = resize_rows(self.window, num_rows), resize_rows(self.state, num_rows)

    def arrays(self) -> list[mx.array]:
        return [array for array in (self.window, self.state) if array is not None]
