"""Repetition, presence and frequency penalties for every position of a block, each seeing the drafts before it.

Formulas and order are those of mlx-lm's `make_logits_processors`: over the last `context_size` tokens of prompt and
completion, a repeated token's logit is divided by the repetition penalty if positive, else multiplied by it (CTRL,
Keskar et al. 2019, sign-aware); then the presence penalty is subtracted once and the frequency penalty once per
occurrence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array
from batchgen.types import Sampling

NO_TOKEN = -1


@dataclass(slots=True)
class Penalties:
    """The rows' penalties [R] and context sizes [R], and `recent` [R, W], the last tokens before each row's anchor.

    W is the longest context of these rows; NO_TOKEN stands where a row has fewer tokens.
    """

    repetition: mx.array
    presence: mx.array
    frequency: mx.array
    context_sizes: tuple[mx.array, mx.array, mx.array]
    recent: mx.array

    @classmethod
    def of(cls, samplings: Sequence[Sampling], tails: Callable[[int], Sequence[list[int]]]) -> "Penalties | None":
        """None if no row has a penalty. `tails(W)` gives each row's last W tokens before its anchor, or what it has."""
        if not any(map(has_penalty, samplings)):
            return None
        width = max(_longest_context(sampling) for sampling in samplings)
        return cls(
            repetition=mx.array([sampling.repetition_penalty for sampling in samplings]),
            presence=mx.array([sampling.presence_penalty for sampling in samplings]),
            frequency=mx.array([sampling.frequency_penalty for sampling in samplings]),
            context_sizes=(
                int_array([sampling.repetition_context_size for sampling in samplings]),
                int_array([sampling.presence_context_size for sampling in samplings]),
                int_array([sampling.frequency_context_size for sampling in samplings]),
            ),
            recent=mx.array([[NO_TOKEN] * (width - len(tail)) + tail for tail in tails(width)], dtype=mx.int32),
        )

    def apply(self, logits: mx.array, tokens: mx.array, num_known: int | None = None) -> mx.array:
        """Penalised logits [R, S, V] float32 of the positions behind each of tokens [R, S], the anchor first.

        With `num_known` only that many of the tokens are seen by any position: for drafts that are not chosen yet.
        """
        width, num_positions = self.recent.shape[1], logits.shape[1]
        seen = mx.concatenate([self.recent, tokens if num_known is None else tokens[:, :num_known]], axis=1)
        newest = mx.arange(num_positions) if num_known is None else mx.full((num_positions,), num_known - 1, mx.int32)
        # What stands for a missing token must be one that is there: equal ids get equal logits, in any order.
        ids = mx.where(seen == NO_TOKEN, tokens[:, :1], seen)
        order = mx.argsort(ids, axis=1)
        ids, is_there = (mx.take_along_axis(values, order, axis=1) for values in (ids, seen != NO_TOKEN))
        ages = mx.where(is_there[:, None], (width + newest)[:, None] - order[:, None], -1)
        index = mx.broadcast_to(ids[:, None, :], ages.shape)
        penalised = self._penalise(mx.take_along_axis(logits, index, axis=-1), self._counts(ids, ages))
        return mx.put_along_axis(logits, index, penalised, axis=-1)

    def advance(self, tokens: mx.array, counts: mx.array) -> None:
        """Moves past each row's first counts[r] of the block tokens [R, S]."""
        seen = mx.concatenate([self.recent, tokens], axis=1)
        index = counts[:, None] + mx.arange(self.recent.shape[1])
        self.recent = mx.take_along_axis(seen, index, axis=1)

    def _counts(self, ids: mx.array, ages: mx.array) -> mx.array:
        """For each context size: how often token ids[r, n] stands in the context of each position, [R, 3, S, N].

        `ids` are sorted, so that equal ones are a run: its count is the difference of two running totals. `ages`
        [R, S, N] are how many tokens a position has behind each, negative for what it does not see.
        """
        sizes = mx.stack(list(self.context_sizes), axis=1)[..., None, None]
        is_inside = ((ages[:, None] >= 0) & (ages[:, None] < sizes)).astype(mx.int32)
        totals = mx.cumsum(is_inside, axis=-1)
        first, last = (mx.broadcast_to(ends[:, None, None], totals.shape) for ends in _runs(ids))
        before = mx.take_along_axis(totals - is_inside, first, axis=-1)
        return (mx.take_along_axis(totals, last, axis=-1) - before).astype(mx.float32)

    def _penalise(self, logits: mx.array, counts: mx.array) -> mx.array:
        repeated, present, frequent = (counts[:, number] for number in range(3))
        repetition = self.repetition[:, None, None]
        scaled = mx.where(logits < 0, logits * repetition, logits / repetition)
        logits = mx.where(repeated > 0, scaled, logits)
        logits = logits - self.presence[:, None, None] * (present > 0)
        return logits - self.frequency[:, None, None] * frequent


def _runs(ids: mx.array) -> tuple[mx.array, mx.array]:
    """For each of the sorted ids [R, N], the first and the last place of its run of equal ones, [R, N] each."""
    place = mx.arange(ids.shape[1])
    differs = ids[:, 1:] != ids[:, :-1]
    edge = mx.ones((ids.shape[0], 1), mx.bool_)
    starts, ends = mx.concatenate([edge, differs], axis=1), mx.concatenate([differs, edge], axis=1)
    first = mx.cummax(mx.where(starts, place, 0), axis=1)
    last = mx.cummin(mx.where(ends, place, ids.shape[1]), axis=1, reverse=True)
    return first, last


def has_penalty(sampling: Sampling) -> bool:
    """Whether any of the three does something."""
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)


def _longest_context(sampling: Sampling) -> int:
    sizes = [1]
    if sampling.repetition_penalty != 1:
        sizes.append(sampling.repetition_context_size)
    if sampling.presence_penalty:
        sizes.append(sampling.presence_context_size)
    if sampling.frequency_penalty:
        sizes.append(sampling.frequency_context_size)
    return max(sizes)
