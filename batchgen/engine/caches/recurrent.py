"""Convolution window and recurrent state of one gated-delta layer, per row.

A verify pass leaves them as they are and leaves a record of its block; a commit takes in what of it stands.
"""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.caches.rows import PairRows


class RecurrentRows(PairRows):
    """Window [R, K - 1, C] and state [R, Hv, Dv, Dk] (float32), zeros for a row that has read nothing.

    `record` is of the block that was read and not committed; the next one replaces it.
    """

    def __init__(self, window: Sequence[int], state: Sequence[int], dtype: mx.Dtype) -> None:
        super().__init__(mx.zeros((0, *window), dtype), mx.zeros((0, *state), mx.float32))
        self.record: tuple[mx.array, ...] = ()
