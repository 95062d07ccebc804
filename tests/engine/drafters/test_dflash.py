"""The drafter over many rows: each row drafts as if it were alone, however its context came to be."""

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.caches.context import MAX_APPEND
from tests.engine.builders import FULL, SLIDING, VOCAB, prompt_tokens

WIDTH = 128
VARIANTS = [
    {"version": version, "layer_types": layers, "is_causal": is_causal}
    for version in (1, 2)
    for layers in ((FULL, FULL), (SLIDING, FULL), (SLIDING, SLIDING))
    for is_causal in (None, True, False)
]
variants = pytest.mark.parametrize(
    "variant", VARIANTS, ids=lambda v: f"v{v['version']}-{v['layer_types']}-{v['is_causal']}"
)


def _features(seed, num_tokens):
    return mx.array(np.random.default_rng(seed).uniform(-1, 1, (num_tokens, WIDTH)).astype(np.float32))


def _feed(drafter, context, row_features, num_new, filler):
    """Every row takes its own features, at most `num_new` at a time; `filler` stands where a row has none left."""
    longest = max(features.shape[0] for features in row_features)
    for start in range(0, longest, num_new):
        pieces = [features[start : start + num_new] for features in row_features]
        padded = [mx.pad(piece, [(0, num_new - piece.shape[0]), (0, 0)], constant_values=filler) for piece in pieces]
        drafter.extend(context, mx.stack(padded), mx.array([piece.shape[0] for piece in pieces], dtype=mx.int32))


def _states(drafter, context, anchors, block, block_lengths=None):
    """Hidden states, logits and drafts."""
    lengths = mx.full(anchors.shape, block, mx.int32) if block_lengths is None else block_lengths
    hidden, logits = drafter.hidden_and_logits(context.keys_values(), context.lengths, anchors, lengths, block)
    return hidden, logits, drafter.propose(context, anchors, block, block_lengths)


def _assert_equal(left, right, num_drafts):
    for a, b in zip(left[:2], right[:2], strict=True):
        np.testing.assert_allclose(np.array(a[:, :num_drafts]), np.array(b[:, :num_drafts]), atol=2e-5)
    assert left[2][:, :num_drafts].tolist() == right[2][:, :num_drafts].tolist()


@variants
def test_a_row_in_a_batch_drafts_as_alone(make_drafter, variant):
    drafter = make_drafter(**variant)
    lengths, block, block_lengths = [0, 1, 7, 23], 6, [6, 2, 4, 6]
    rows = [_features(seed, length) for seed, length in enumerate(lengths)]
    anchors = mx.array(prompt_tokens(1, len(rows)))
    together = drafter.make_context(len(rows))
    _feed(drafter, together, rows, 5, filler=float("nan"))
    batch = _states(drafter, together, anchors, block, mx.array(block_lengths, dtype=mx.int32))
    assert batch[2].shape == (4, block - 1)
    assert mx.all((batch[2] >= 0) & (batch[2] < VOCAB)).item()
    for index, (features, own_block) in enumerate(zip(rows, block_lengths, strict=True)):
        alone = drafter.make_context(1)
        _feed(drafter, alone, [features], max(1, features.shape[0]), filler=0.0)
        expected = _states(drafter, alone, anchors[index : index + 1], own_block)
        _assert_equal([array[index : index + 1] for array in batch], expected, own_block - 1)


@variants
@pytest.mark.parametrize("num_tokens", [20, MAX_APPEND + 30])
def test_arrival_does_not_matter(make_drafter, variant, num_tokens):
    """One token at a time into a full ring, in any pieces, or all at once: the same drafts."""
    drafter = make_drafter(**variant)
    features, anchors = _features(3, num_tokens), mx.array([5])
    results = []
    for pieces in ([num_tokens], [num_tokens - 12, *[1] * 12], [1, 3, num_tokens - 9, 2, 3]):
        context = drafter.make_context(1)
        start = 0
        for count in pieces:
            # Rejected rows follow the accepted ones, as in a verify pass.
            given = mx.concatenate([features[start : start + count], _features(9, 4)])
            drafter.extend(context, given[None], mx.array([count], dtype=mx.int32))
            start += count
        assert context.lengths.tolist() == [num_tokens]
        results.append(_states(drafter, context, anchors, 5))
    _assert_equal(results[0], results[1], 4)
    _assert_equal(results[0], results[2], 4)


def test_a_window_forgets_exactly_what_lies_before_it(make_drafter):
    """Two contexts that differ only beyond the window's last 7 rows draft the same; one row nearer, and they do not."""
    drafter = make_drafter(2, (SLIDING, SLIDING), sliding_window=8)
    recent = _features(1, 7)
    logits = []
    for older, changed in ((_features(2, 40), recent), (_features(3, 40), recent), (_features(2, 40), -recent)):
        context = drafter.make_context(1)
        drafter.extend(context, mx.concatenate([older, changed])[None], mx.array([47]))
        logits.append(np.array(_states(drafter, context, mx.array([5]), 5)[1]))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-6)
    assert np.abs(logits[0] - logits[2]).max() > 1e-2

    context = drafter.make_context(1)
    nearest_forgotten = mx.concatenate([_features(2, 40), -recent[:1], recent[1:]])
    drafter.extend(context, nearest_forgotten[None], mx.array([47]))
    assert np.abs(np.array(_states(drafter, context, mx.array([5]), 5)[1]) - logits[0]).max() > 1e-3


@pytest.mark.parametrize("version", [1, 2])
def test_compiled_equals_eager(make_drafter, version):
    variant = {"version": version, "layer_types": (SLIDING, FULL)}
    drafter, compiled = make_drafter(**variant), make_drafter(**variant, compiled=True)
    rows = [_features(seed, length) for seed, length in enumerate((0, 7, 23))]
    anchors, block_lengths = mx.array([5, 17, 60]), mx.array([4, 2, 3], dtype=mx.int32)
    contexts = [drafter.make_context(3) for _ in range(2)]
    for own_drafter, context in zip((drafter, compiled), contexts, strict=True):
        _feed(own_drafter, context, rows, 30, filler=0.0)
    eager = drafter.propose(contexts[0], anchors, 4, block_lengths).tolist()
    fused = compiled.propose(contexts[1], anchors, 4, block_lengths).tolist()
    for left, right, length in zip(eager, fused, block_lengths.tolist(), strict=True):
        assert left[: length - 1] == right[: length - 1]
    assert drafter.propose(contexts[0], anchors, 6).tolist() == compiled.propose(contexts[1], anchors, 6).tolist()


def test_rows_that_moved_draft_as_before(make_drafter):
    """What the decoder does between rounds: rows are read in a group of their own, join, leave and close ranks."""
    drafter = make_drafter(2, (SLIDING, FULL))
    rows = [_features(seed, length) for seed, length in enumerate((300, 5, 40))]
    anchors = mx.array([5, 17, 60])
    group = drafter.make_context(3)
    _feed(drafter, group, rows, 64, filler=0.0)
    before = drafter.propose(group, anchors, 6)
    moved = drafter.make_context(0)
    moved.resize(4)
    moved.put([3, 1], group, [0, 2])
    moved.take([1, 3])
    after = drafter.propose(moved, anchors[mx.array([2, 0])], 6)
    assert after.tolist() == before[mx.array([2, 0])].tolist()


def test_proposing_leaves_the_context_as_it_is(make_drafter):
    drafter = make_drafter(2, (SLIDING, FULL))
    context = drafter.make_context(1)
    drafter.extend(context, _features(1, 9)[None], mx.array([9]))
    context.keys_values()  # nothing waits any more
    before = [np.array(array) for array in context.arrays()]
    first = drafter.propose(context, mx.array([5]), 6)
    assert drafter.propose(context, mx.array([5]), 6).tolist() == first.tolist()
    for old, array in zip(before, context.arrays(), strict=True):
        np.testing.assert_array_equal(np.array(array), old)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
    ids=lambda scaling: next(value for value in scaling.values() if isinstance(value, str)),
)
def test_scaled_positions_are_each_rows_own(make_drafter, scaling):
    drafter = make_drafter(2, (SLIDING, FULL), top={"rope_scaling": scaling})
    rows = [_features(seed, length) for seed, length in enumerate((90, 3))]
    together = drafter.make_context(2)
    _feed(drafter, together, rows, 32, filler=0.0)
    batch = _states(drafter, together, mx.array([5, 17]), 5)
    for index, features in enumerate(rows):
        alone = drafter.make_context(1)
        drafter.extend(alone, features[None], mx.array([features.shape[0]]))
        expected = _states(drafter, alone, mx.array([[5, 17][index]]), 5)
        _assert_equal([array[index : index + 1] for array in batch], expected, 4)


def test_scales_and_softcap(make_drafter):
    plain = make_drafter(1)
    changed = make_drafter(1, output_multiplier=3.0, final_logit_softcapping=2.0)
    scaled = make_drafter(1, input_embedding_scale=0.5)
    contexts = [drafter.make_context(1) for drafter in (plain, changed, scaled)]
    args = (contexts[0].keys_values(), contexts[0].lengths, mx.array([5]), mx.array([4]), 4)
    logits = np.array(plain.hidden_and_logits(*args)[1])
    np.testing.assert_allclose(
        np.array(changed.hidden_and_logits(*args)[1]), 2 * np.tanh(logits * 3 / 2), rtol=1e-5, atol=1e-6
    )
    embed = plain._embed
    plain._embed = lambda tokens: 0.5 * embed(tokens)
    assert mx.allclose(plain.hidden_and_logits(*args)[1], scaled.hidden_and_logits(*args)[1])
