"""Drafts drawn from a drafter's candidates, the way the coupling asks for."""

import mlx.core as mx

from batchgen.engine.drafters.selector import walk
from batchgen.engine.sampling.coupling import Coupling, Proposal
from batchgen.engine.sampling.noise import Stream, gumbel
from batchgen.engine.sampling.rules import Rules


def draw_drafts(rules: Rules, coupling: Coupling, tokens: mx.array, scores: mx.array) -> Proposal:
    """Walks through candidates [R, S, k] with scores [R, S, k, k] of each after each candidate of the step before.

    Sampled rows draw each step from softmax(scores / T); greedy rows take the best. Under shared coupling the noise is
    that of the target's choice at the same position, under rejection it is the drafts' own, and what was drawn from is
    part of the proposal.
    """
    temperature = mx.where(rules.temperature > 0, rules.temperature, 1)
    scaled = scores / temperature[:, None, None, None]
    stream = Stream.TOKEN if coupling == "shared" else Stream.DRAFT
    noise = gumbel(rules.keys, rules.block_positions(tokens.shape[1]), tokens, stream)
    is_sampled = (rules.temperature > 0)[:, None, None, None]
    path = walk(mx.where(is_sampled, scaled + noise[:, :, None, :], scores))
    drafts = mx.take_along_axis(tokens, path[..., None], axis=-1)[..., 0]
    if coupling == "shared":
        return Proposal(drafts)
    # Before the first step every candidate stands for the anchor, so any of them will do.
    before = mx.concatenate([mx.zeros_like(path[:, :1]), path[:, :-1]], axis=1)
    given = mx.take_along_axis(scaled, before[..., None, None], axis=2)[:, :, 0]
    return Proposal(drafts, tokens, mx.softmax(given, axis=-1))
