"""Drafting at many anchors at once equals decoding at each of them."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from batchgen.engine.drafters.sequence import hidden_over_sequence
from tests.engine.builders import FULL, SLIDING

WIDTH, BLOCK = 128, 5
ANCHORS = [[0, 3, 17, 29], [1, 9, 10, 10]]
TOKENS = [[4, 70, 3, 9], [11, 12, 13, 80]]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_causal", [None, True, False])
def test_every_block_is_what_decoding_makes_of_it(make_drafter, version, is_causal):
    drafter = make_drafter(version, (SLIDING, FULL), is_causal=is_causal)
    features = mx.array(np.random.default_rng(1).uniform(-1, 1, (2, 30, WIDTH)).astype(np.float32))
    args = (features, mx.array(ANCHORS), mx.array(TOKENS), BLOCK)
    hidden = hidden_over_sequence(drafter.model, drafter._embed, *args)
    assert hidden.shape == (2, 4, BLOCK - 1, 64)
    for b, a in np.ndindex(2, 4):
        context = drafter.make_context(1)
        drafter.extend(context, features[b : b + 1], mx.array([ANCHORS[b][a]]))
        anchor = mx.array([TOKENS[b][a]])
        decoded = drafter.hidden_and_logits(context.keys_values(), context.lengths, anchor, mx.array([BLOCK]), BLOCK)[0]
        np.testing.assert_allclose(np.array(hidden[b, a]), np.array(decoded[0]), atol=2e-5)


def test_gradients_reach_every_weight_but_the_selectors(make_drafter):
    model = make_drafter(2, (SLIDING, FULL)).model
    embedding = mx.random.normal((96, 64))
    features = mx.random.normal((2, 30, WIDTH))

    def loss(parameters):
        model.update(parameters)
        hidden = hidden_over_sequence(
            model, lambda tokens: embedding[tokens], features, mx.array(ANCHORS), mx.array(TOKENS), BLOCK
        )
        return mx.sum(mx.square(hidden))

    gradients = dict(tree_flatten(mx.grad(loss)(model.trainable_parameters())))
    without = sorted(name for name, gradient in gradients.items() if not mx.any(gradient).item())
    assert without == [
        "candidate_selector.hidden_projection.weight",
        "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook",
    ]
