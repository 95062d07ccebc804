"""From logits and drafts to tokens: how many drafts stand, and which token follows them.

`shared` coupling takes argmax(logits / T + Gumbel noise) at every position, which is an exact draw (the Gumbel-max
trick) and a function of the prefix: drafts stand as far as they are those tokens, so nothing but how fast the tokens
come depends on them (drafter-invariant speculative decoding; Daliri, Musco, Suresh 2024). `rejection` coupling takes a
draft with probability min(1, p / q), and else draws from max(p - q, 0) (Leviathan, Kalman, Matias 2023; Chen et al.
2023): exact in distribution, a different text for every drafter and block.
"""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from batchgen.engine.compiling import compiled
from batchgen.engine.sampling.filters import log_softmax
from batchgen.engine.sampling.noise import Stream, gumbel, uniform
from batchgen.engine.sampling.rules import Rules

Coupling = Literal["shared", "rejection"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts [R, S] of a block and, where they were drawn on their own, what from: candidates [R, S, k] and their
    probabilities [R, S, k]."""

    drafts: mx.array
    candidates: mx.array | None = None
    probabilities: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Of a block of S + 1 positions: tokens [R, S + 1], of which a row's first num_accepted[r] are drafts and the next
    is the target's own; what follows means nothing. `logprobs` [R, S + 1] where the rules want them."""

    tokens: mx.array
    num_accepted: mx.array
    logprobs: mx.array | None


def decide(
    rules: Rules,
    coupling: Coupling,
    logits: mx.array,
    anchors: mx.array,
    proposal: Proposal | None,
    block_lengths: mx.array,
    allowed: mx.array | None = None,
) -> Decision:
    """Judges a block: logits [R, S + 1, V] of the target behind the anchors [R] and the drafts.

    A row's drafts past block_lengths[r] - 1 are never accepted. `allowed` comes from `Rules.grammar_masks`.
    """
    tokens = anchors[:, None]
    if proposal is not None:
        tokens = mx.concatenate([tokens, proposal.drafts], axis=1)
    if rules.is_plain:
        choices, num_accepted = _judge_greedy(logits, tokens, block_lengths)
        return Decision(choices, num_accepted, None)
    adjusted = rules.adjust(logits, tokens, allowed)
    if coupling == "rejection" and rules.is_sampled:
        chosen, num_accepted = _reject(rules, adjusted, proposal, block_lengths)
    else:
        chosen = _choose(rules, adjusted)
        num_accepted = count_accepted(tokens[:, 1:] == chosen[:, :-1], block_lengths)
    logprobs = None
    if rules.wants_logprobs:
        logprobs = mx.take_along_axis(log_softmax(adjusted), chosen[..., None], axis=-1)[..., 0]
    return Decision(chosen, num_accepted, logprobs)


def _greedy(logits: mx.array, tokens: mx.array, block_lengths: mx.array) -> tuple[mx.array, mx.array]:
    """The best tokens [R, S + 1] and how many drafts are them [R]; tokens [R, S + 1] are anchor and drafts."""
    choices = mx.argmax(logits, axis=-1).astype(mx.int32)
    return choices, count_accepted(tokens[:, 1:] == choices[:, :-1], block_lengths)


_judge_greedy = compiled(_greedy)


def count_accepted(stands: mx.array, block_lengths: mx.array) -> mx.array:
    """How many drafts from the start stand, of stands [R, S], within each row's block; [R]."""
    inside = mx.arange(stands.shape[1]) < (block_lengths - 1)[:, None]
    return mx.cumprod((stands & inside).astype(mx.int32), axis=1).sum(axis=1)


def _choose(rules: Rules, adjusted: mx.array) -> mx.array:
    """The token of every position, as if all before it stood: [R, S] int32."""
    if not rules.is_sampled:
        return mx.argmax(adjusted, axis=-1).astype(mx.int32)
    positions = rules.block_positions(adjusted.shape[1])
    return _draw(rules, rules.draw_logits(adjusted), adjusted, positions, Stream.TOKEN)


def _draw(rules: Rules, logits: mx.array, adjusted: mx.array, positions: mx.array, stream: Stream) -> mx.array:
    """Draws for sampled rows from `logits`, and the best of `adjusted` for greedy ones."""
    greedy = (rules.temperature <= 0)[:, None, None]
    tokens = mx.arange(logits.shape[-1])[None, None, :]
    noisy = logits + gumbel(rules.keys, positions, tokens, stream)
    return mx.argmax(mx.where(greedy, adjusted, noisy), axis=-1).astype(mx.int32)


def _reject(
    rules: Rules, adjusted: mx.array, proposal: Proposal | None, block_lengths: mx.array
) -> tuple[mx.array, mx.array]:
    """The classic rule: tokens [R, S + 1] and how many of them are drafts [R]."""
    logits = rules.draw_logits(adjusted)
    positions = rules.block_positions(adjusted.shape[1])
    num_drafts = adjusted.shape[1] - 1
    if proposal is None or num_drafts == 0:
        return _draw(rules, logits, adjusted, positions, Stream.RESIDUAL), mx.zeros(positions.shape[:1], mx.int32)
    assert proposal.candidates is not None and proposal.probabilities is not None
    p = mx.softmax(logits, axis=-1)
    stands = _accepts(rules, p, adjusted, proposal, positions[:, :-1])
    num_accepted = count_accepted(stands, block_lengths)
    place = num_accepted[:, None]
    # Behind the last draft of a row's block there is no q, and the token is drawn from p itself.
    was_rejected = num_accepted < block_lengths - 1
    residual = _residual(p, proposal, place, was_rejected)
    here = mx.take_along_axis(adjusted, place[..., None], axis=1)
    own = _draw(rules, mx.log(residual), here, mx.take_along_axis(positions, place, axis=1), Stream.RESIDUAL)
    padded = mx.concatenate([proposal.drafts.astype(mx.int32), own], axis=1)
    return mx.put_along_axis(padded, place, own, axis=1), num_accepted


def _accepts(rules: Rules, p: mx.array, adjusted: mx.array, proposal: Proposal, positions: mx.array) -> mx.array:
    """Whether each draft would stand by itself, [R, S]: u q < p, or for greedy rows whether it is the best token."""
    assert proposal.candidates is not None and proposal.probabilities is not None
    drafts = proposal.drafts[..., None]
    p_draft = mx.take_along_axis(p[:, :-1], drafts, axis=-1)[..., 0]
    q_draft = mx.where(proposal.candidates == drafts, proposal.probabilities, 0).sum(axis=-1)
    stands = uniform(rules.keys, positions, Stream.ACCEPT) * q_draft < p_draft
    best = mx.argmax(adjusted[:, :-1], axis=-1) == proposal.drafts
    return mx.where((rules.temperature > 0)[:, None], stands, best)


def _residual(p: mx.array, proposal: Proposal, place: mx.array, was_rejected: mx.array) -> mx.array:
    """max(p - q, 0) at the place [R, 1] of each row's first rejected draft, [R, 1, V]; p itself where none was, or
    where rounding leaves nothing."""
    assert proposal.candidates is not None and proposal.probabilities is not None
    p_here = mx.take_along_axis(p, place[..., None], axis=1)
    place = mx.minimum(place, proposal.drafts.shape[1] - 1)[..., None]
    candidates = mx.take_along_axis(proposal.candidates, place, axis=1)
    q_here = mx.take_along_axis(proposal.probabilities, place, axis=1)
    left = mx.maximum(mx.take_along_axis(p_here, candidates, axis=-1) - q_here, 0)
    rest = mx.put_along_axis(p_here, candidates, left, axis=-1)
    usable = was_rejected[:, None, None] & (rest.sum(axis=-1, keepdims=True) > 0)
    return mx.where(usable, rest, p_here)
