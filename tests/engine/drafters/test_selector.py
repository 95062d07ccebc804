"""The selector against a walk written out step by step."""

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.drafters.config import DrafterConfig
from batchgen.engine.drafters.selector import CandidateSelector, greedy_path
from tests.engine import builders

NUM_ROWS, NUM_STEPS = 3, 5


@pytest.fixture
def selector(tmp_path):
    target = builders.tiny_dense(tmp_path / "target", 1)
    config = DrafterConfig.from_folder(builders.tiny_drafter(tmp_path / "drafter", 2, target))
    selector = CandidateSelector(config)
    mx.random.seed(5)
    for name in ("predecessor_codebook", "successor_codebook"):
        setattr(selector, name, mx.random.normal((builders.VOCAB, config.selector_rank)))
    return selector


@pytest.fixture
def states():
    mx.random.seed(6)
    hidden = mx.random.normal((NUM_ROWS, NUM_STEPS, builders.HIDDEN))
    logits = mx.random.normal((NUM_ROWS, NUM_STEPS, builders.VOCAB))
    return hidden, logits, mx.array([4, 90, 17])


def _walk(selector, hidden, logits, anchors):
    """Tokens, and the scores of each step's candidates in order of their ids."""
    gates = np.array(hidden @ selector.hidden_projection.weight.T)
    before, after = np.array(selector.predecessor_codebook), np.array(selector.successor_codebook)
    tokens, scores = [], []
    for row, anchor in enumerate(anchors.tolist()):
        for step in range(hidden.shape[1]):
            unary = np.array(logits[row, step])
            candidates = np.sort(np.argsort(-unary)[: selector.top_k])
            step_scores = unary[candidates] + after[candidates] @ (before[anchor] * gates[row, step])
            anchor = int(candidates[np.argmax(step_scores)])
            tokens.append(anchor)
            scores.append(step_scores)
    return np.reshape(tokens, (len(anchors.tolist()), -1)), np.array(scores)


def test_the_greedy_path_is_the_walk(selector, states):
    tokens, scores = selector.transitions(*states)
    expected, expected_scores = _walk(selector, *states)
    path = greedy_path(tokens, scores)
    assert path.dtype == mx.int32
    assert path.tolist() == expected.tolist()
    plain = mx.argmax(states[1], axis=-1)
    assert path.tolist() != plain.tolist(), "the bigram term must decide something here"
    assert scores.shape == (NUM_ROWS, NUM_STEPS, selector.top_k, selector.top_k)
    # The first step's scores, whatever its predecessor's index.
    for index in range(selector.top_k):
        np.testing.assert_allclose(np.array(scores[:, 0, index]), expected_scores[::NUM_STEPS], rtol=1e-5, atol=1e-5)


def test_scores_after_a_known_predecessor(selector, states):
    """What training asks for: one true predecessor per position."""
    hidden, logits, _ = states
    predecessors = mx.array(np.random.default_rng(0).integers(0, builders.VOCAB, (NUM_ROWS, NUM_STEPS)))
    tokens, unary = selector.candidates(logits)
    scores = np.array(selector.scores(hidden, predecessors[..., None], tokens, unary))[:, :, 0]
    for row, step in np.ndindex(NUM_ROWS, NUM_STEPS):
        one = hidden[row : row + 1, step : step + 1], logits[row : row + 1, step : step + 1]
        _, expected = _walk(selector, *one, predecessors[row, step][None])
        np.testing.assert_allclose(scores[row, step], expected[0], rtol=1e-5, atol=1e-5)


def test_equal_scores_give_the_lowest_id(selector):
    selector.predecessor_codebook = mx.zeros_like(selector.predecessor_codebook)
    logits = mx.zeros((2, 3, builders.VOCAB))
    best = mx.array([70, 8, 33, 21])
    logits[:, :, best] = 1.0
    hidden = mx.zeros((2, 3, builders.HIDDEN))
    tokens, scores = selector.transitions(hidden, logits, mx.array([1, 2]))
    assert mx.array_equal(tokens, mx.sort(tokens, axis=-1))
    assert greedy_path(tokens, scores).tolist() == [[8, 8, 8], [8, 8, 8]]


@pytest.mark.parametrize("top_k", [1, builders.VOCAB])
def test_the_smallest_and_the_largest_number_of_candidates(selector, states, top_k):
    selector.top_k = top_k
    expected, _ = _walk(selector, *states)
    assert greedy_path(*selector.transitions(*states)).tolist() == expected.tolist()
