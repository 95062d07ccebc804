"""Two successive tokens of thousands of rows, with drafts, against their exact joint distribution, for both couplings.

Then the same test on rules that are broken on purpose, one line each: it has to see every one of them.
"""

import math
from itertools import combinations

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.drafters import drawing
from batchgen.engine.sampling import coupling as coupling_module
from batchgen.engine.sampling.coupling import Proposal
from batchgen.engine.sampling.noise import Stream, gumbel
from batchgen.engine.sampling.rules import Rules
from batchgen.types import Sampling
from tests.engine.sampling import chain
from tests.engine.sampling.chi_square import p_value

NUM_ROWS = 20_000
KEYS = chain.keys(NUM_ROWS)
GOOD = 1e-4
BROKEN = 1e-8
BOTH = ("shared", "rejection")

COLD, HOT = Sampling(temperature=0.7), Sampling(temperature=1.3)
SETTINGS = {
    "cold": COLD,
    "hot": HOT,
    "top_p": Sampling(temperature=0.7, top_p=0.9),
    "min_p": Sampling(temperature=1.3, min_p=0.12),
    "top_k": Sampling(temperature=1.3, top_k=4),
    "penalties": Sampling(
        temperature=1.3,
        repetition_penalty=1.5,
        presence_penalty=0.4,
        presence_context_size=2,
        frequency_penalty=0.3,
        frequency_context_size=3,
        logit_bias=((2, 0.8), (6, -1.0)),
    ),
    "all": Sampling(temperature=0.7, top_p=0.95, min_p=0.03, top_k=6, presence_penalty=0.8, logit_bias=((0, 1.0),)),
}


def joint_p_value(sampling, coupling):
    return p_value(chain.draw(sampling, coupling, 1, KEYS).counts, chain.exact(sampling))


def test_every_setting_leaves_outcomes_to_tell_apart():
    """And each of them another distribution."""
    joint = [chain.exact(sampling) for sampling in SETTINGS.values()]
    assert min(int((chances * NUM_ROWS > 10).sum()) for chances in joint) >= 16
    for one, other in combinations(joint, 2):
        assert np.abs(one - other).sum() > 0.1


@pytest.mark.parametrize("coupling", BOTH)
@pytest.mark.parametrize(
    ("name", "num_drafts"), [*((name, 1) for name in SETTINGS), ("hot", 2), ("penalties", 2), ("all", 2)]
)
def test_tokens_are_distributed_as_the_target_says(name, num_drafts, coupling):
    draws = chain.draw(SETTINGS[name], coupling, num_drafts, KEYS)
    # Behind a block of two drafts stands a third token, which is not looked at.
    assert min(draws.num_accepted, draws.num_replaced) > 4_000
    assert draws.num_behind > 4_000 if num_drafts == 1 else draws.num_behind == 0
    assert p_value(draws.counts, chain.exact(SETTINGS[name])) > GOOD


def test_under_shared_coupling_rows_do_not_depend_on_their_drafts():
    """Token for token, and under rejection they do."""
    counts = {
        coupling: [chain.draw(HOT, coupling, num_drafts, KEYS[:4000]).counts for num_drafts in (1, 2)]
        for coupling in ("shared", "rejection")
    }
    np.testing.assert_array_equal(*counts["shared"])
    assert not np.array_equal(*counts["rejection"])


def test_settings_side_by_side_are_each_exact():
    """Rows of all settings take turns in one batch; greedy rows among them always take the best token."""
    settings = [*SETTINGS.values(), Sampling()]
    rows = [chain.row(settings[number % len(settings)], key) for number, key in enumerate(KEYS)]
    logits = mx.broadcast_to(mx.array(chain.TARGET[chain.PROMPT[-1]]), (NUM_ROWS, 1, chain.VOCAB))
    anchors = mx.full((NUM_ROWS,), chain.PROMPT[-1], mx.int32)
    for coupling in ("shared", "rejection"):
        decision = coupling_module.decide(Rules(rows), coupling, logits, anchors, None, mx.ones_like(anchors))
        tokens = np.array(decision.tokens[:, 0])
        for number, sampling in enumerate(settings):
            counts = np.bincount(tokens[number :: len(settings)], minlength=chain.VOCAB)
            if sampling.temperature:
                expected = chain.probabilities(sampling, chain.TARGET[chain.PROMPT[-1]], list(chain.PROMPT))
                assert p_value(counts, expected) > GOOD
            else:
                assert counts.max() == counts.sum()
                assert counts.argmax() == chain.TARGET[chain.PROMPT[-1]].argmax()


# Faults, each as a patch.


def keep_all_of_p(patch):
    """Behind a rejected draft p is drawn from, as if q had not been tried."""
    patch.setattr(
        coupling_module,
        "_residual",
        lambda p, proposal, place, was_rejected: mx.take_along_axis(p, place[..., None], axis=1),
    )


def accept_all(patch):
    """Any draft stands that the target could say."""
    patch.setattr(coupling_module, "uniform", lambda keys, positions, stream: mx.zeros(positions.shape))


def accept_without_chance(patch):
    """A draft stands only where the target likes it as much as the drafter does."""
    patch.setattr(coupling_module, "uniform", lambda keys, positions, stream: mx.ones(positions.shape))


def residual_behind_the_block(patch):
    """q is subtracted behind a whole accepted block too, where no draft was tried."""
    original = coupling_module._residual
    patch.setattr(
        coupling_module,
        "_residual",
        lambda p, proposal, place, was_rejected: original(p, proposal, place, mx.ones_like(was_rejected)),
    )


def one_stream(patch):
    """The target's own draw takes the noise that the drafter chose its draft by."""
    patch.setattr(
        drawing, "gumbel", lambda keys, positions, tokens, stream: gumbel(keys, positions, tokens, Stream.RESIDUAL)
    )


def q_of_another_temperature(patch):
    """The proposal says it was drawn at temperature 1."""
    original = drawing.draw_drafts

    def draw_drafts(rules, coupling, tokens, scores):
        proposal = original(rules, coupling, tokens, scores)
        powers = proposal.probabilities ** rules.temperature[:, None, None]
        return Proposal(proposal.drafts, tokens, powers / powers.sum(axis=-1, keepdims=True))

    patch.setattr(chain, "draw_drafts", draw_drafts)


def no_temperature(patch):
    """Tokens are drawn at temperature 1."""
    patch.setattr(Rules, "draw_logits", lambda self, adjusted: self._filters.apply(adjusted))


def no_filters(patch):
    patch.setattr(Rules, "draw_logits", lambda self, adjusted: adjusted / self.temperature[:, None, None])


def temperature_before_filters(patch):
    """top_p and min_p look at the distribution that temperature left."""
    patch.setattr(
        Rules, "draw_logits", lambda self, adjusted: self._filters.apply(adjusted / self.temperature[:, None, None])
    )


def one_position(patch):
    """All tokens of a row are drawn by the same noise."""
    for module in (coupling_module, drawing):
        patch.setattr(
            module,
            "gumbel",
            lambda keys, positions, tokens, stream: gumbel(keys, mx.zeros_like(positions), tokens, stream),
        )


def one_key(patch):
    """All rows are drawn by the same noise."""
    for module in (coupling_module, drawing):
        patch.setattr(
            module,
            "gumbel",
            lambda keys, positions, tokens, stream: gumbel(mx.zeros_like(keys), positions, tokens, stream),
        )


def no_drafts_in_penalties(patch):
    """Penalties at every position of a block see only what stood before the block."""
    original = Rules.adjust
    patch.setattr(
        Rules,
        "adjust",
        lambda self, logits, tokens, allowed: original(
            self, logits, mx.broadcast_to(tokens[:, :1], tokens.shape), allowed
        ),
    )


FAULTS = [
    *[("hot", fault, ("rejection",)) for fault in (keep_all_of_p, accept_all, accept_without_chance, one_stream)],
    *[("cold", fault, ("rejection",)) for fault in (residual_behind_the_block, q_of_another_temperature)],
    *[("cold", fault, BOTH) for fault in (no_temperature, one_position, one_key)],
    *[("top_p", fault, BOTH) for fault in (no_filters, temperature_before_filters)],
    ("min_p", temperature_before_filters, BOTH),
    ("penalties", no_drafts_in_penalties, BOTH),
]


@pytest.mark.parametrize(
    ("name", "fault", "coupling"),
    [(name, fault, coupling) for name, fault, couplings in FAULTS for coupling in couplings],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_broken_rules_are_seen(monkeypatch, name, fault, coupling):
    """Whole rules pass this same test above."""
    fault(monkeypatch)
    assert joint_p_value(SETTINGS[name], coupling) < BROKEN


# How often a draft stands.


def standing(sampling, coupling, draft_coupling=None):
    """The share of first drafts that stand, and its standard deviation at a share of `expected`."""
    return float(chain.draw(sampling, coupling, 1, KEYS, chain.EVERY, draft_coupling).first_stood.mean())


def is_near(share, expected):
    return abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / NUM_ROWS)


@pytest.mark.parametrize("sampling", [COLD, HOT], ids=["cold", "hot"])
def test_how_often_drafts_stand(sampling):
    """Rejection: sum of min(p, q), the most there can be. Shared noise: at least (1 - TV) / (1 + TV), and exactly the
    chance that the first of independent exponentials of rates p and of rates q is the same one. Independent noise:
    sum of p q, which is less."""
    p = chain.probabilities(sampling, chain.TARGET[chain.PROMPT[-1]], list(chain.PROMPT))
    q = chain.drafter_probabilities(sampling.temperature)
    distance = 1 - np.minimum(p, q).sum()
    assert 0.1 < distance < 0.6
    assert is_near(standing(sampling, "rejection"), 1 - distance)

    shared = standing(sampling, "shared")
    ratios = np.maximum(p[None, :] / p[:, None], q[None, :] / q[:, None])
    assert is_near(shared, float((1 / ratios.sum(axis=1)).sum()))
    assert (1 - distance) / (1 + distance) < shared < 1 - distance

    independent = standing(sampling, "shared", draft_coupling="rejection")
    assert is_near(independent, float((p * q).sum()))
    assert independent < shared - 0.1
