"""The drafter in training: what a block may see, what it must say, and that decoding comes to the same."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from batchgen.engine.drafters import load_drafter
from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.loading import load_model
from batchgen.engine.target.layers import head
from batchgen.training import drafter as drafters
from batchgen.training.data import Batch
from batchgen.training.drafter import BLOCK_SIZE, DECAY, block_targets, draft_states, features_of, sample_anchors
from batchgen.training.optimiser import in_dtype, named_arrays

Target = tuple[nn.Module, dict[str, Any]]
Drafter = tuple[DFlash2Model, dict[str, Any]]


def random_tokens(rows: int, width: int) -> mx.array:
    return mx.array(np.random.default_rng(0).integers(4, 1000, (rows, width)), dtype=mx.int32)


def test_anchors_stand_in_the_response_with_a_token_after_them() -> None:
    batch = Batch(np.zeros((2, 16), np.int32), np.array([5, 1], np.int32), np.array([9, 3], np.int32))
    anchors = sample_anchors(np.random.default_rng(0), batch, 500)
    assert [sorted({*row.tolist()}) for row in anchors] == [[5, 6, 7], [1]]


def test_targets_are_the_anchor_and_the_tokens_after_it() -> None:
    tokens = mx.arange(12)[None]
    truth, inside = block_targets(tokens, mx.array([[1, 8]]), mx.array([10]))
    assert truth[0, 0].tolist() == list(range(1, 9))
    assert truth[0, 1, :2].tolist() == [8, 9]
    assert inside[0].tolist() == [[True] * 8, [True] * 2 + [False] * 6]


@pytest.mark.parametrize("anchor", [3, 9])
def test_block_sees_tokens_before_its_anchor_alone(small_target: Target, small_drafter: Drafter, anchor: int) -> None:
    (target, _), (model, config) = small_target, small_drafter
    tokens = random_tokens(1, 14)
    positions = mx.array([[anchor, 11]])

    def states(changed_at: int | None) -> np.ndarray[Any, Any]:
        changed = tokens if changed_at is None else mx.where(mx.arange(14) == changed_at, tokens + 1, tokens)
        features = features_of(target, config, changed)
        first = mx.take_along_axis(tokens, positions, axis=1)
        return np.array(draft_states(model, target, features, positions, first)[0, 0])

    unchanged = states(None)
    for position in range(anchor, 14):
        assert np.array_equal(states(position), unchanged)
    for position in range(anchor):
        assert not np.allclose(states(position), unchanged, atol=1e-6)


def test_training_drafts_are_decoding_drafts(small_target: Target, small_drafter: Drafter, tmp_path: Path) -> None:
    """All anchors of a sequence in one pass, against the engine's drafter with a context grown token by token."""
    (target, _), (model, config) = small_target, small_drafter
    drafters.save_drafter(model, tmp_path)
    engine = load_drafter(tmp_path, target.model.embed_tokens, lambda states: head(target, states), mx.float32)
    model = load_model(tmp_path, mx.float32)
    tokens = random_tokens(1, 12)
    features = features_of(target, config, tokens)
    positions = mx.arange(1, 12)[None]
    hidden = draft_states(model, target, features, positions, tokens[:, 1:])[0]
    logits = model.logits(hidden, lambda states: head(target, states))

    context = engine.make_context(1)
    for index, position in enumerate(range(1, 12)):
        engine.extend(context, features[:, position - 1 : position], mx.array([1]))
        args = (tokens[:, position], mx.array([BLOCK_SIZE]), BLOCK_SIZE)
        states, scores = engine.hidden_and_logits(context.keys_values(), context.lengths, *args)
        assert np.allclose(np.array(states[0]), np.array(hidden[index]), atol=1e-4)
        assert np.allclose(np.array(scores[0]), np.array(logits[index]), atol=1e-4)


def test_loss_equals_a_loop_over_blocks_and_positions(small_target: Target, small_drafter: Drafter) -> None:
    (target, _), (model, config) = small_target, small_drafter
    tokens, lengths, anchors = random_tokens(2, 20), [20, 9], [[2, 13], [3, 6]]
    features = features_of(target, config, tokens)
    found = drafters.drafter_loss(model, target, tokens, features, mx.array(anchors), mx.array(lengths)).item()

    selector = model.candidate_selector
    weighted, total, recalled = 0.0, 0.0, 0
    for row, positions in enumerate(anchors):
        for anchor in positions:
            block = (features[row : row + 1], mx.array([[anchor]]), tokens[row : row + 1, anchor : anchor + 1])
            hidden = draft_states(model, target, *block)[0, 0]
            logits = np.array(model.logits(hidden, lambda states: head(target, states)), dtype=np.float64)
            for step in range(min(BLOCK_SIZE - 1, lengths[row] - 1 - anchor)):
                before, true = (int(tokens[row, anchor + step + offset].item()) for offset in (0, 1))
                loss = np.log(np.exp(logits[step]).sum()) - logits[step, true]
                candidates = np.argsort(logits[step])[-selector.top_k :]
                gate = np.array(selector.hidden_projection(hidden[step]))
                pairs = np.array(selector.successor_codebook)[candidates] @ (
                    np.array(selector.predecessor_codebook)[before] * gate
                )
                scores = logits[step, candidates] + pairs
                if true in candidates:
                    loss += np.log(np.exp(scores).sum()) - scores[list(candidates).index(true)]
                    recalled += 1
                weight = np.exp(-step / DECAY)
                weighted, total = weighted + weight * loss, total + weight
    assert recalled > 0
    assert found == pytest.approx(weighted / total, rel=1e-4)


def test_fresh_convolutions_are_the_identity(small_drafter: Drafter) -> None:
    model, _ = small_drafter
    drafters.initialise(model, seed=5)
    x = mx.random.normal((2, BLOCK_SIZE, 64))
    convolved, kernel = model.layers[0].attention_conv.prepare(x)
    assert np.array_equal(np.array(convolved), np.array(x))
    assert np.array_equal(np.array(model.layers[0].attention_conv.finish(x, kernel)), np.array(x))


def test_checkpoint_is_bfloat16_and_loads_strictly(small_drafter: Drafter, tmp_path: Path) -> None:
    model, _ = small_drafter
    drafters.save_drafter(model, tmp_path)
    loaded = load_model(tmp_path)
    expected = {name: array.astype(mx.bfloat16) for name, array in named_arrays(model, mx.float32).items()}
    found = dict(named_arrays(loaded, mx.bfloat16))
    assert sorted(found) == sorted(expected)
    assert all(mx.array_equal(found[name], array) for name, array in expected.items())
    assert {array.dtype for array in named_arrays(loaded, mx.bfloat16).values()} == {mx.bfloat16}
    assert in_dtype(loaded.parameters(), mx.float32)["fc"]["weight"].shape == model.fc.weight.shape
