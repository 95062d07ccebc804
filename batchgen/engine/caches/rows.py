"""The row verbs over a pair of arrays that one layer keeps for each row."""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.caches.buffers import put_rows, resize_rows, take_rows


class PairRows:
    """Two arrays [R, ...] of a layer."""

    def __init__(self, first: mx.array, second: mx.array) -> None:
        self.pair = (first, second)

    def take(self, indices: Sequence[int]) -> None:
        """Keeps those rows, in that order."""
        first, second = self.pair
        self.pair = take_rows(first, indices), take_rows(second, indices)

    def put(self, slots: Sequence[int], source: "PairRows", rows: Sequence[int]) -> None:
        """Copies the source's rows into slots."""
        first, second = self.pair
        self.pair = put_rows(first, slots, source.pair[0], rows), put_rows(second, slots, source.pair[1], rows)

    def resize(self, num_rows: int) -> None:
        """Cuts rows off the end or appends blank ones."""
        first, second = self.pair
        self.pair = resize_rows(first, num_rows), resize_rows(second, num_rows)
