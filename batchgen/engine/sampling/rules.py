"""What the rows of a batch ask of their tokens, as arrays with one entry a row, and the logits that result.

Made anew whenever rows join, leave or change places, and moved along on the device in between. Rules that no row has
cost nothing. Which token is taken from the logits is `coupling`'s to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mlx.core as mx
import numpy as np

from batchgen.engine.arrays import int_array
from batchgen.engine.row import Row
from batchgen.engine.sampling.filters import keep, log_softmax
from batchgen.engine.sampling.noise import key_words
from batchgen.engine.sampling.penalties import Penalties
from batchgen.types import Request, RowKey, Sampling

# A position no completion comes to, and a number of tokens that none has: one can be added to the other in 32 bits.
_NEVER = 2**31 - 1
_ENDLESS = 2**30 - 1
# Stands for a token where a row has none.
_NO_TOKEN = -1
_EMPTY = Request(RowKey(-1, 0), (0,), 1)


@dataclass(frozen=True, slots=True)
class Filters:
    """top_p, min_p and top_k of each row [R]; None where no row has the filter."""

    top_p: mx.array | None
    min_p: mx.array | None
    top_k: mx.array | None

    @classmethod
    def of(cls, samplings: Sequence[Sampling]) -> Self:
        drawn = [sampling for sampling in samplings if sampling.temperature > 0]
        return cls(
            top_p=mx.array([s.top_p for s in samplings]) if any(s.top_p < 1 for s in drawn) else None,
            min_p=mx.array([s.min_p for s in samplings]) if any(s.min_p > 0 for s in drawn) else None,
            top_k=int_array([s.top_k for s in samplings]) if any(s.top_k > 0 for s in drawn) else None,
        )

    def apply(self, logits: mx.array) -> mx.array:
        """Logits [R, S, V] with -inf for tokens that may not be drawn."""
        if self.top_p is None and self.min_p is None and self.top_k is None:
            return logits
        return mx.where(keep(log_softmax(logits), self.top_p, self.min_p, self.top_k), logits, -mx.inf)


@dataclass(frozen=True, slots=True)
class Bias:
    """logit_bias: token ids [R, B] and what is added to their logits [R, B]; 0 is added where a row has fewer."""

    tokens: mx.array
    values: mx.array

    @classmethod
    def of(cls, samplings: Sequence[Sampling]) -> "Bias | None":
        width = max(len(sampling.logit_bias) for sampling in samplings)
        if width == 0:
            return None
        pairs = [[*sampling.logit_bias, *[(0, 0.0)] * (width - len(sampling.logit_bias))] for sampling in samplings]
        return cls(
            mx.array([[token for token, _ in row] for row in pairs], dtype=mx.int32),
            mx.array([[value for _, value in row] for row in pairs], dtype=mx.float32),
        )

    def apply(self, logits: mx.array) -> mx.array:
        """Of logits [R, S, V]."""
        rows, positions = mx.arange(logits.shape[0])[:, None, None], mx.arange(logits.shape[1])[None, :, None]
        return logits.at[rows, positions, self.tokens[:, None, :]].add(self.values[:, None, :])


@dataclass(frozen=True, slots=True)
class Ban:
    """Tokens [R, E] that may not stand before the completion has `until` [R] tokens: a row's end tokens."""

    tokens: mx.array
    until: mx.array

    @classmethod
    def of(cls, rows: Sequence[Row | None]) -> "Ban | None":
        ends = [sorted(row.end_token_ids) if row is not None and row.min_tokens else [] for row in rows]
        width = max(len(tokens) for tokens in ends)
        if width == 0:
            return None
        # A repeated token is barred once; a row without any is never short of its least number of tokens.
        padded = [tokens + [tokens[0] if tokens else 0] * (width - len(tokens)) for tokens in ends]
        until = [row.min_tokens if row is not None and tokens else 0 for row, tokens in zip(rows, ends, strict=True)]
        return cls(mx.array(padded, dtype=mx.int32), int_array(until))

    def apply(self, logits: mx.array, positions: mx.array) -> mx.array:
        """Of logits [R, S, V] for the completion's tokens number positions [R, S]. Where an end is all that may stand
        it may stand after all: from logits that are all -inf no token can be taken."""
        index = mx.broadcast_to(self.tokens[:, None, :], (*positions.shape, self.tokens.shape[1]))
        is_early = (positions < self.until[:, None])[..., None]
        values = mx.where(is_early, -mx.inf, mx.take_along_axis(logits, index, axis=-1))
        barred = mx.put_along_axis(logits, index, values, axis=-1)
        return mx.where(barred.max(axis=-1, keepdims=True) > -mx.inf, barred, logits)


@dataclass(slots=True)
class ThinkingOpenings:
    """Blocks that completions may still open: by which token [R], _NO_TOKEN where none may; how many tokens [R] of
    thinking each then has; and the tokens [R, L] that may stand before it."""

    open_tokens: mx.array
    budgets: mx.array
    lead_tokens: mx.array

    @classmethod
    def of(cls, rows: Sequence[Row | None]) -> "ThinkingOpenings | None":
        limits = [row.request.thinking_limit if row is not None and row.may_open_thinking else None for row in rows]
        if all(limit is None for limit in limits):
            return None
        leads = [[] if limit is None else sorted(limit.lead_tokens) for limit in limits]
        width = max(1, *map(len, leads))
        return cls(
            int_array(
                [_NO_TOKEN if limit is None or limit.open_token is None else limit.open_token for limit in limits]
            ),
            int_array([0 if limit is None else min(limit.max_tokens, _ENDLESS) for limit in limits]),
            mx.array([tokens + [_NO_TOKEN] * (width - len(tokens)) for tokens in leads], dtype=mx.int32),
        )

    def ends(self, tokens: mx.array, positions: mx.array) -> mx.array:
        """Where tokens [R, S] open a block, the number of the token by which it must be closed, else _NEVER; [R, S].

        A completion's token behind each of them has its number in positions [R, S].
        """
        is_first = mx.cumprod(self._is_lead(tokens).astype(mx.int32), axis=1, inclusive=False) > 0
        # What stands before the completion's first token is the prompt's.
        opens = is_first & (tokens == self.open_tokens[:, None]) & (positions > 0)
        return mx.where(opens, positions + self.budgets[:, None], _NEVER)

    def advance(self, tokens: mx.array, is_taken: mx.array) -> None:
        """Moves past those of tokens [R, S] that are taken [R, S]."""
        may_open = mx.all(self._is_lead(tokens) | ~is_taken, axis=1)
        self.open_tokens = mx.where(may_open, self.open_tokens, _NO_TOKEN)

    def _is_lead(self, tokens: mx.array) -> mx.array:
        return mx.any(tokens[..., None] == self.lead_tokens[:, None, :], axis=-1)


@dataclass(slots=True)
class ThinkingLimits:
    """From which token number on [R] a row's thinking block must be closed, and by which token [R]; and `openings` if
    a block is yet to be opened."""

    positions: mx.array
    close_tokens: mx.array
    openings: ThinkingOpenings | None

    @classmethod
    def of(cls, rows: Sequence[Row | None]) -> "ThinkingLimits | None":
        ends = [None if row is None else row.thinking_end() for row in rows]
        limits = [None if row is None else row.request.thinking_limit for row in rows]
        openings = ThinkingOpenings.of(rows)
        if openings is None and all(end is None for end in ends):
            return None
        return cls(
            int_array([_NEVER if end is None else min(end[0], _NEVER) for end in ends]),
            int_array([_NO_TOKEN if limit is None else limit.close_token for limit in limits]),
            openings,
        )

    def apply(self, logits: mx.array, tokens: mx.array, positions: mx.array) -> mx.array:
        """Leaves only the close token where thinking has to end; tokens [R, S] stand before the logits [R, S, V].

        It may then stand whatever else bars it, a least number of tokens that it would end too soon included.
        """
        ends = self.positions[:, None]
        if self.openings is not None:
            ends = mx.minimum(ends, mx.cummin(self.openings.ends(tokens, positions), axis=1))
        closed = mx.cumsum((tokens == self.close_tokens[:, None]).astype(mx.int32), axis=1) > 0
        must_close = (positions >= ends) & ~closed
        others = mx.arange(logits.shape[-1]) != self.close_tokens[:, None, None]
        return mx.where(must_close[..., None], mx.where(others, -mx.inf, 0.0), logits)

    def advance(self, tokens: mx.array, counts: mx.array, positions: mx.array) -> None:
        """Moves past each row's first counts[r] of tokens [R, S]; positions [R, S] are as for `apply`."""
        is_taken = mx.arange(tokens.shape[1]) < counts[:, None]
        if self.openings is not None:
            ends = mx.where(is_taken, self.openings.ends(tokens, positions), _NEVER)
            self.positions = mx.minimum(self.positions, ends.min(axis=1))
            self.openings.advance(tokens, is_taken)
        closed = mx.any((tokens == self.close_tokens[:, None]) & is_taken, axis=1)
        self.positions = mx.where(closed, _NEVER, self.positions)

    def arrays(self) -> list[mx.array]:
        """What `advance` changes."""
        return [self.positions] if self.openings is None else [self.positions, self.openings.open_tokens]


class Rules:
    """All of it for R rows. `positions` [R] is how many tokens each completion has: the number of the next one.

    `temperature` [R] is 0 for greedy rows and `keys` [R, 2] are the words of the rows' noise keys.
    """

    def __init__(self, rows: Sequence[Row | None], wants_logprobs: bool = False) -> None:
        requests = [_EMPTY if row is None else row.request for row in rows]
        samplings = [request.sampling for request in requests]
        self.wants_logprobs = wants_logprobs
        self.is_sampled = any(sampling.temperature > 0 for sampling in samplings)
        self.temperature = mx.array([sampling.temperature for sampling in samplings])
        self.keys = mx.array([key_words(request.noise_key) for request in requests], dtype=mx.uint32)
        self.positions = int_array([0 if row is None else len(row.tokens) for row in rows])
        self._filters = Filters.of(samplings)
        self._bias = Bias.of(samplings)
        self._penalties = Penalties.of(
            samplings, lambda width: [[] if row is None else row.tail(width) for row in rows]
        )
        self._ban = Ban.of(rows)
        self._thinking = ThinkingLimits.of(rows)
        matchers = [request.grammar_matcher for request in requests]
        self._grammars = [(slot, matcher) for slot, matcher in enumerate(matchers) if matcher is not None]

    @property
    def is_plain(self) -> bool:
        """Whether each token is just the one of the highest logit."""
        adjusts = self.adjusts_drafts or self._ban is not None or self._thinking is not None
        return not (self.is_sampled or adjusts or self.has_grammar or self.wants_logprobs)

    @property
    def adjusts_drafts(self) -> bool:
        """Whether bias or penalties change what a drafter had better propose."""
        return self._bias is not None or self._penalties is not None

    @property
    def has_grammar(self) -> bool:
        return bool(self._grammars)

    def block_positions(self, num_positions: int) -> mx.array:
        """Numbers of the completion's tokens that a block decides, [R, S]."""
        return self.positions[:, None] + mx.arange(num_positions)

    def adjust(self, logits: mx.array, tokens: mx.array, allowed: mx.array | None) -> mx.array:
        """Logits [R, S, V] in float32 after bias, penalties and grammar; the logits follow tokens [R, S], the anchor
        first. `allowed` [R, S, V] is what `grammar_masks` gave."""
        logits = logits.astype(mx.float32)
        if self._bias is not None:
            logits = self._bias.apply(logits)
        if self._penalties is not None:
            logits = self._penalties.apply(logits, tokens)
        if allowed is not None:
            logits = mx.where(allowed, logits, -mx.inf)
        positions = self.block_positions(tokens.shape[1])
        if self._ban is not None:
            logits = self._ban.apply(logits, positions)
        if self._thinking is not None:
            logits = self._thinking.apply(logits, tokens, positions)
        return logits

    def adjust_drafts(self, logits: mx.array, anchors: mx.array) -> mx.array:
        """A drafter's logits [R, S, V] with the bias and penalties that are known before any draft is chosen.

        What a drafter proposes never changes what the target takes: this only makes it agree more often.
        """
        logits = logits.astype(mx.float32)
        if self._bias is not None:
            logits = self._bias.apply(logits)
        return logits if self._penalties is None else self._penalties.apply(logits, anchors[:, None], num_known=1)

    def draw_logits(self, adjusted: mx.array) -> mx.array:
        """Unnormalised log probabilities [R, S, V] that sampled rows are drawn from: filtered, then divided by the
        temperature. Greedy rows' entries are finite and mean nothing."""
        return self._filters.apply(adjusted) / mx.where(self.temperature > 0, self.temperature, 1)[:, None, None]

    def grammar_masks(self, drafts: Sequence[Sequence[int]], vocab_size: int) -> mx.array | None:
        """Which tokens each row's grammar allows at each position of a block with these drafts, [R, S, V]."""
        if not self._grammars:
            return None
        num_positions = len(drafts[0]) + 1
        words = np.full((len(drafts), num_positions, -(-vocab_size // 32)), 0xFFFFFFFF, dtype=np.uint32)
        for slot, matcher in self._grammars:
            # Behind a draft that breaks the grammar nothing is filled in: the draft itself will be rejected.
            matcher.fill(drafts[slot], words[slot])
        bits = mx.array(words)[..., None] >> mx.arange(32).astype(mx.uint32)
        return (bits & 1).astype(mx.bool_).reshape(len(drafts), num_positions, -1)[..., :vocab_size]

    def advance(self, tokens: mx.array, counts: mx.array) -> None:
        """Moves past each row's first counts[r] of a block's tokens [R, S]; the choice behind is its new anchor."""
        positions = self.block_positions(tokens.shape[1])
        self.positions = self.positions + counts
        if self._penalties is not None:
            self._penalties.advance(tokens, counts)
        if self._thinking is not None:
            self._thinking.advance(tokens, counts, positions)

    def arrays(self) -> list[mx.array]:
        """What `advance` changes."""
        recent = [] if self._penalties is None else [self._penalties.recent]
        return [self.positions, *recent, *([] if self._thinking is None else self._thinking.arrays())]
