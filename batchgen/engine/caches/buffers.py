"""Row verbs on single arrays: every per-row state in the engine keeps, copies and drops rows through these.

An array's first axis is the row. Nothing here knows what an array means.
"""

from collections.abc import Sequence

import mlx.core as mx

from batchgen.engine.arrays import int_array


def take_rows(array: mx.array, indices: Sequence[int]) -> mx.array:
    """Those rows, in that order."""
    return mx.take(array, int_array(indices), axis=0)


def put_rows(array: mx.array, slots: Sequence[int], source: mx.array, rows: Sequence[int]) -> mx.array:
    """`array` with the source's `rows` copied into `slots`; a shorter source fills the start of its trailing axes."""
    chosen = take_rows(source, rows)
    if chosen.shape[1:] != array.shape[1:]:
        chosen = mx.pad(chosen, [(0, 0)] + [(0, a - b) for a, b in zip(array.shape[1:], chosen.shape[1:], strict=True)])
    array[int_array(slots)] = chosen
    return array


def resize_rows(array: mx.array, num_rows: int) -> mx.array:
    """Cuts rows off the end or appends rows of zeros."""
    if num_rows <= array.shape[0]:
        return array[:num_rows]
    blank = mx.zeros((num_rows - array.shape[0], *array.shape[1:]), array.dtype)
    return mx.concatenate([array, blank], axis=0)


def round_up(size: int, step: int) -> int:
    """The least multiple of `step` that is at least `size`."""
    return -(-size // step) * step


def settled_capacity(capacity: int, longest: int, step: int) -> int:
    """The capacity that rows of at most `longest` entries should have: cut where they need less than half of it.

    A longest row that has left would otherwise be paid for, in every pass and by every row, to the end of the run.
    """
    needed = round_up(longest + step, step)
    return needed if capacity >= 2 * needed else capacity


def grow_axis(array: mx.array, axis: int, size: int) -> mx.array:
    """Appends zeros along an axis until it has `size` entries."""
    missing = size - array.shape[axis]
    if missing <= 0:
        return array
    shape = list(array.shape)
    shape[axis] = missing
    return mx.concatenate([array, mx.zeros(shape, array.dtype)], axis=axis)
