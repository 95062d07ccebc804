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
        counts = self._counts(ids, seen != NO_TOKEN, width + newest)
        index = mx.broadcast_to(ids[:, None, :], (ids.shape[0], num_positions, ids.shape[1]))
        penalised = self._penalise(mx.take_along_axis(logits, index, axis=-1), *counts)
        return mx.put_along_axis(logits, index, penalised, axis=-1)

    def advance(self, tokens: mx.array, counts: mx.array) -> None:
        """Moves past each row's first counts[r] of the block tokens [R, S]."""
        seen = mx.concatenate([self.recent, tokens], axis=1)
        index = counts[:, None] + mx.arange(self.recent.shape[1])
        self.recent = mx.take_along_axis(seen, index, axis=1)

    def _counts(self, ids: mx.array, is_there: mx.array, newest: mx.array) -> list[mx.array]:
        """For each context size: how often token ids[r, n] stands in the context of each position, [R, S, N]."""
        equal = ((ids[:, None, :] == ids[:, :, None]) & is_there[:, :, None]).astype(mx.float32)
        place = mx.arange(ids.shape[1])
        age = newest[:, None] - place
        return [((age >= 0) & (age < sizes[:, None, None])).astype(mx.float32) @ equal for sizes in self.context_sizes]

    def _penalise(self, logits: mx.array, repeated: mx.array, present: mx.array, frequent: mx.array) -> mx.array:
        repetition = self.repetition[:, None, None]
        scaled = mx.where(logits < 0, logits * repetition, logits / repetition)
        logits = mx.where(repeated > 0, scaled, logits)
        logits = logits - self.presence[:, None, None] * (present > 0)
        return logits - self.frequency[:, None, None] * frequent


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
