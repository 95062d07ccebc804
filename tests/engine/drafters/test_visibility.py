"""The mask against the rules spelled out key by key."""

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.caches.context import key_positions
from batchgen.engine.drafters.config import LayerKind
from batchgen.engine.drafters.visibility import visibility

KINDS = [LayerKind(window, causal) for window in (None, 2, 4, 9) for causal in (False, True)]


def _sees_context(kind, position, anchor, row):
    inside = kind.window is None or anchor + row - position < kind.window
    return 0 <= position < anchor and inside


def _sees_block(kind, key_row, row, block_length):
    return (key_row == 0 or key_row < block_length) and (not kind.is_causal or key_row <= row)


@pytest.mark.parametrize("kind", KINDS)
def test_one_block_per_context(kind):
    block, block_lengths, capacity = 5, [5, 0, 1, 3], 12
    lengths = [0, 1, 6, 11] if kind.window is None else [0, 7, 12, 31]
    lengths_array = mx.array(lengths)
    mask = np.array(
        visibility(
            kind,
            key_positions(lengths_array, capacity, kind.window),
            lengths_array[:, None],
            block,
            mx.array(block_lengths)[:, None],
        )
    )
    assert mask.shape == (4, 1, block, capacity + block)
    for r, row, slot in np.ndindex(4, block, capacity):
        # A row's newest `capacity` positions, each in the slot it was written to.
        held = max((p for p in range(lengths[r]) if p % capacity == slot), default=-1)
        assert mask[r, 0, row, slot] == _sees_context(kind, held, lengths[r], row)
    for r, row, key_row in np.ndindex(4, block, block):
        assert mask[r, 0, row, capacity + key_row] == _sees_block(kind, key_row, row, block_lengths[r])


@pytest.mark.parametrize("kind", KINDS)
def test_many_blocks_per_context(kind):
    block, num_keys, anchors = 3, 10, [[0, 4, 4], [10, 1, 7]]
    mask = np.array(visibility(kind, mx.arange(num_keys)[None], mx.array(anchors), block))
    assert mask.shape == (2, 1, 9, num_keys + 9)
    for b, a, row, position in np.ndindex(2, 3, block, num_keys):
        assert mask[b, 0, a * block + row, position] == _sees_context(kind, position, anchors[b][a], row)
    for b, a, row, other, key_row in np.ndindex(2, 3, block, 3, block):
        expected = a == other and _sees_block(kind, key_row, row, block)
        assert mask[b, 0, a * block + row, num_keys + other * block + key_row] == expected
