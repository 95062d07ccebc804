"""The draft context on its own: what a row holds depends on its entries alone, not on how they came or moved."""

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.caches.context import CAPACITY_STEP, MAX_APPEND, DraftContext, key_positions

WINDOWS = (None, 4)
HEADS, DIM = 2, 3


def _entry(row, position, layer):
    """What entry `position` of a row holds: a vector that names row, position and layer."""
    return np.arange(HEADS * DIM).reshape(HEADS, 1, DIM) + 10.0 * position + 1e5 * row + 1e4 * layer


def _entries(rows, starts, num_new, layer):
    return np.stack(
        [
            np.concatenate([_entry(row, start + t, layer) for t in range(num_new)], axis=1)
            for row, start in zip(rows, starts, strict=True)
        ]
    )


def _context(num_rows):
    return DraftContext(num_rows, WINDOWS, HEADS, DIM, mx.float32)


def _append(context, rows, counts, num_new=None):
    """Gives each row its next entries; what stands past a row's count belongs to no row."""
    num_new = num_new or max(counts)
    starts = context.lengths.tolist()
    pairs = []
    for layer in range(len(WINDOWS)):
        keys = _entries(rows, starts, num_new, layer)
        for index, count in enumerate(counts):
            keys[index, :, count:] = -1e9
        pairs.append((mx.array(keys.astype(np.float32)), mx.array(-keys.astype(np.float32))))
    context.append(pairs, mx.array(counts, dtype=mx.int32))


def _assert_holds(context, rows, lengths):
    """Every entry that a layer must still have is where its position says, in keys and values."""
    assert context.lengths.tolist() == lengths
    for layer, (window, (keys, values)) in enumerate(zip(WINDOWS, context.keys_values(), strict=True)):
        positions = np.array(key_positions(context.lengths, keys.shape[2], window))
        positions = np.broadcast_to(positions, (len(rows), keys.shape[2]))
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            first = 0 if window is None else max(0, length - (window - 1))
            for position in range(first, length):
                (slot,) = np.flatnonzero(positions[index] == position)
                expected = _entry(row, position, layer)[:, 0]
                np.testing.assert_array_equal(np.array(keys[index, :, slot]), expected)
                np.testing.assert_array_equal(np.array(values[index, :, slot]), -expected)


def test_rows_take_their_own_counts():
    context = _context(3)
    _append(context, [0, 1, 2], [5, 0, 2], num_new=6)
    _append(context, [0, 1, 2], [1, 4, 0], num_new=5)
    _assert_holds(context, [0, 1, 2], [6, 4, 2])


@pytest.mark.parametrize("steps", [[5], [1, 1, 3], [0, 4, 0, 1], [2, 3]])
def test_arrival_does_not_matter(steps):
    once, stepwise = _context(1), _context(1)
    _append(once, [0], [5])
    for count in steps:
        _append(stepwise, [0], [count], num_new=8)
    _assert_holds(stepwise, [0], [5])
    for expected, (keys, values) in zip(once.keys_values(), stepwise.keys_values(), strict=True):
        assert mx.array_equal(keys[:, :, :5], expected[0][:, :, :5])
        assert mx.array_equal(values[:, :, :5], expected[1][:, :, :5])


def test_what_is_rejected_never_reaches_into_the_window():
    """Passes that accept nothing write past the end of a ring that is full."""
    context = _context(2)
    _append(context, [0, 1], [MAX_APPEND, MAX_APPEND - 3], num_new=MAX_APPEND)
    for _ in range(5):
        _append(context, [0, 1], [0, 1], num_new=MAX_APPEND)
    _assert_holds(context, [0, 1], [MAX_APPEND, MAX_APPEND + 2])


def test_full_layers_grow_in_large_steps_and_rings_not_at_all():
    context = _context(2)
    ring = context.keys_values()[1][0].shape[2]
    capacities = []
    for _ in range(6):
        _append(context, [0, 1], [120, 60])
        capacities.append(context.keys_values()[0][0].shape[2])
    assert capacities == [CAPACITY_STEP] * 2 + [2 * CAPACITY_STEP] * 2 + [3 * CAPACITY_STEP] * 2
    assert context.keys_values()[1][0].shape[2] == ring == WINDOWS[1] - 1 + MAX_APPEND
    _assert_holds(context, [0, 1], [720, 360])


def test_rejected_entries_do_not_make_it_grow():
    """The host's bound runs ahead by every drafted token, until it is told what was accepted."""
    context = _context(1)
    for length in range(1, 101):
        _append(context, [0], [1], num_new=8)
        context.settle(length)
    assert context.keys_values()[0][0].shape[2] == CAPACITY_STEP
    _assert_holds(context, [0], [100])


def test_take_keeps_rows_in_that_order():
    context = _context(4)
    _append(context, [0, 1, 2, 3], [1, 2, 3, 4])
    context.take([3, 1])
    _assert_holds(context, [3, 1], [4, 2])
    _append(context, [3, 1], [1, 2])
    _assert_holds(context, [3, 1], [5, 4])
    context.take([])
    assert context.num_rows == 0


@pytest.mark.parametrize("source_length", [3, 300])
def test_put_copies_rows_of_another_context(source_length):
    context, source = _context(3), _context(2)
    _append(context, [0, 1, 2], [9, 9, 9])
    for start in range(0, source_length, 100):
        count = min(100, source_length - start)
        _append(source, [7, 8], [count, count])
    context.put([2, 0], source, [0, 1])
    _assert_holds(context, [8, 1, 7], [source_length, 9, source_length])
    _append(context, [8, 1, 7], [1, 2, 3])
    _assert_holds(context, [8, 1, 7], [source_length + 1, 11, source_length + 3])
    _assert_holds(source, [7, 8], [source_length, source_length])


def test_a_shorter_context_takes_and_gives_rows_of_a_longer_one():
    long, short = _context(2), _context(1)
    for _ in range(3):
        _append(long, [0, 1], [150, 1])
    _append(short, [5], [2])
    long.put([0], short, [0])
    _assert_holds(long, [5, 1], [2, 3])


def test_resize_appends_blank_rows_and_cuts_the_last():
    context = _context(0)
    context.resize(2)
    _append(context, [0, 1], [3, 1])
    context.resize(3)
    _assert_holds(context, [0, 1, 9], [3, 1, 0])
    _append(context, [0, 1, 9], [1, 1, 2])
    context.resize(1)
    _assert_holds(context, [0], [4])


def test_nbytes_counts_every_array():
    context = _context(3)
    entries = CAPACITY_STEP + (WINDOWS[1] - 1 + MAX_APPEND)
    assert context.nbytes == 3 * 4 + 2 * 4 * 3 * HEADS * DIM * entries
    _append(context, [0, 1, 2], [1, 5, 2])
    waiting = 2 * 4 * len(WINDOWS) * 3 * HEADS * DIM * 5
    assert context.nbytes == 3 * 4 + 2 * 4 * 3 * HEADS * DIM * entries + waiting
    context.keys_values()
    assert context.nbytes == 3 * 4 + 2 * 4 * 3 * HEADS * DIM * entries


def test_a_round_updates_the_buffers_in_place():
    """Reads of one round and the write that follows them must not cost a copy of the whole context."""
    context = DraftContext(4, (None,), 4, 64, mx.float32)
    ((keys, _),) = context.keys_values()
    buffer_bytes = keys.nbytes
    del keys
    mx.eval(context.arrays())
    for _ in range(3):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        read = sum(mx.sum(keys[:, :, :4]) + mx.sum(values[:, :, :4]) for keys, values in context.keys_values())
        new = mx.zeros((4, 4, 2, 64)) + 0 * read
        context.append([(new, new)], mx.full((4,), 1, mx.int32))
        mx.async_eval(context.arrays())
        mx.synchronize()
        assert mx.get_peak_memory() - before < buffer_bytes // 4


def test_capacity_comes_back_when_the_longest_row_left():
    context = _context(3)
    for _ in range(9):
        _append(context, [0, 1, 2], [250, 1, 2])
    _append(context, [0, 1, 2], [250, 1, 2])
    assert context.keys_values()[0][0].shape[2] >= 2500
    context.release([0])
    context.settle(20)
    assert context.keys_values()[0][0].shape[2] == 2 * CAPACITY_STEP
    _assert_holds(context, [0, 1, 2], [0, 10, 20])
    _append(context, [9, 1, 2], [1, 3, 2])
    _assert_holds(context, [9, 1, 2], [1, 13, 22])


def test_a_capacity_that_is_in_use_stays():
    context = _context(1)
    for _ in range(3):
        _append(context, [0], [200])
    before = context.keys_values()[0][0].shape[2]
    context.settle(600)
    assert context.keys_values()[0][0].shape[2] == before
    _assert_holds(context, [0], [600])
