"""Reading prompts: rows of similar length together, a chunk at a time, each row to its own end.

A group owns its caches until a row has read its whole prompt; the decoder then copies that row into a slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array, read_float_rows, read_int_rows
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.prefix import Prefix
from batchgen.engine.row import Row
from batchgen.engine.sampling.coupling import Coupling, decide
from batchgen.engine.sampling.rules import Rules
from batchgen.engine.target.model import Target

# A group's chunk holds at most this many tokens over all its rows, padding counted: bounds memory and the wait of
# rows that decode in between.
GROUP_TOKENS = 4096
_SIMILAR = 1.25
_SIMILAR_TOKENS = 32


def choose_group(lengths: Sequence[int], chunk: int) -> list[int]:
    """Which waiting prompts to read together: the first, and those of similar length behind it, as far as they fit."""
    if not lengths:
        return []
    first = lengths[0]
    low, high = first / _SIMILAR - _SIMILAR_TOKENS, first * _SIMILAR + _SIMILAR_TOKENS
    group: list[int] = []
    longest = 0
    for index, length in enumerate(lengths):
        widest = max(longest, length)
        if low <= length <= high and (not group or (len(group) + 1) * min(widest, chunk) <= GROUP_TOKENS):
            group.append(index)
            longest = widest
    return group


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """How rows get the token that their prompt's pass yields."""

    coupling: Coupling
    wants_logprobs: bool
    clock: Callable[[], float]

    def give(self, rows: Sequence[Row], logits: mx.array) -> None:
        """`logits` [R, V] are those behind each row's prompt."""
        rules = Rules(rows, self.wants_logprobs)
        anchors = int_array([row.request.tokens[-1] for row in rows])
        allowed = rules.grammar_masks([[] for _ in rows], logits.shape[-1])
        decision = decide(rules, self.coupling, logits[:, None], anchors, None, mx.ones_like(anchors), allowed)
        mx.eval(decision.tokens)
        now_s = self.clock()
        tokens = read_int_rows(decision.tokens)
        logprobs = [[] for _ in rows] if decision.logprobs is None else read_float_rows(decision.logprobs)
        for row, (token,), logprob in zip(rows, tokens, logprobs, strict=True):
            row.begin(token, now_s, logprob)


@dataclass(slots=True)
class _Prompt:
    """A prompt that is being read, for all rows that are samples of it."""

    rows: list[Row]
    num_read: int = 0

    @property
    def tokens(self) -> Sequence[int]:
        return self.rows[0].request.tokens


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt that was read to its end: its rows, its place in the group's caches, the logits [1, V] behind it."""

    rows: list[Row]
    place: int
    logits: mx.array

    @property
    def num_following(self) -> int:
        """How many more samples of it will be admitted."""
        return min(row.request.num_following for row in self.rows)


class PrefillGroup:
    """Prompts that are being read, with caches of their own.

    Each of `prompts` is the rows that share it; all begin with the prefix, if there is one.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[Row]],
        target: Target,
        drafter: Drafter | None,
        chunk: int,
        first: FirstTokens,
        prefix: Prefix | None = None,
    ) -> None:
        self.state = target.make_state(len(prompts))
        self.context: DraftContext | None = None if drafter is None else drafter.make_context(len(prompts))
        self._prompts: list[_Prompt | None] = [_Prompt(list(rows)) for rows in prompts]
        self._target, self._drafter, self._chunk, self._first = target, drafter, chunk, first
        if prefix is not None:
            self._begin_behind(prefix)
        for prompt in prompts:
            for row in prompt[1:]:
                row.cached_prompt_tokens = len(row.request.tokens)

    def _begin_behind(self, prefix: Prefix) -> None:
        places = range(len(self._prompts))
        self.state.put(places, prefix.state, [0] * len(places))
        if self.context is not None and prefix.context is not None:
            self.context.put(places, prefix.context, [0] * len(places))
        for prompt in self._prompts:
            assert prompt is not None
            prompt.num_read = prompt.rows[0].cached_prompt_tokens = len(prefix.tokens)

    @property
    def num_rows(self) -> int:
        return sum(len(prompt.rows) for prompt in self._prompts if prompt is not None)

    def rows(self) -> list[Row]:
        """Those whose prompt is not read yet."""
        return [row for prompt in self._prompts if prompt is not None for row in prompt.rows]

    def turn(self) -> list[ReadPrompt]:
        """Reads one chunk; the rows of prompts that reached their end get their first token.

        Returns those prompts; their rows are the group's no more.
        """
        left = [0 if prompt is None else len(prompt.tokens) - prompt.num_read for prompt in self._prompts]
        width = min(self._chunk, max(left))
        counts = [min(width, tokens) for tokens in left]
        tokens = mx.array([self._next_tokens(prompt, width) for prompt in self._prompts], dtype=mx.int32)
        device_counts = int_array(counts)
        hidden = self._target.prefill(self.state, tokens, device_counts)
        arrays = self.state.arrays()
        if self._drafter is not None and self.context is not None and hidden.features is not None:
            self._drafter.extend(self.context, hidden.features, device_counts)
            arrays += self.context.arrays()
        mx.async_eval(arrays)
        ended = [place for place, tokens_left in enumerate(left) if 0 < tokens_left == counts[place]]
        read = self._end(ended, hidden.final, counts) if ended else []
        mx.eval(arrays)
        for place, prompt in enumerate(self._prompts):
            if prompt is not None:
                prompt.num_read += counts[place]
                self._prompts[place] = None if place in ended else prompt
        return read

    def _next_tokens(self, prompt: _Prompt | None, width: int) -> list[int]:
        tokens = [] if prompt is None else list(prompt.tokens[prompt.num_read : prompt.num_read + width])
        return tokens + [0] * (width - len(tokens))

    def _end(self, places: Sequence[int], final: mx.array, counts: Sequence[int]) -> list[ReadPrompt]:
        # One row of logits for each prompt, however many samples are taken from it.
        logits = self._target.logits(final[int_array(places), int_array([counts[place] - 1 for place in places])])
        prompts = [prompt for place in places if (prompt := self._prompts[place]) is not None]
        rows = [row for prompt in prompts for row in prompt.rows]
        sources = [number for number, prompt in enumerate(prompts) for _ in prompt.rows]
        self._first.give(rows, logits[int_array(sources)])
        return [
            ReadPrompt(prompt.rows, place, logits[number : number + 1])
            for number, (place, prompt) in enumerate(zip(places, prompts, strict=True))
        ]


class KeptPrompt:
    """A prompt that was read and of which samples are still to come, with caches of one row as they were at its end."""

    def __init__(self, prompt: ReadPrompt, group: PrefillGroup, target: Target, drafter: Drafter | None) -> None:
        request = prompt.rows[0].request
        self.row, self.num_following = request.key.row, prompt.num_following
        self.state = target.make_state(1)
        self.state.put([0], group.state, [prompt.place])
        self.state.settle(len(request.tokens))
        self.context: DraftContext | None = None
        if drafter is not None and group.context is not None:
            self.context = drafter.make_context(1)
            self.context.put([0], group.context, [prompt.place])
            self.context.settle(len(request.tokens))
        self._logits = prompt.logits
        # Else the group's caches would stay as long as this does.
        mx.eval(self._logits, self.state.arrays(), [] if self.context is None else self.context.arrays())

    def begin(self, rows: Sequence[Row], first: FirstTokens) -> None:
        """Gives further samples their first token."""
        for row in rows:
            row.cached_prompt_tokens = len(row.request.tokens)
        self.num_following = min(row.request.num_following for row in rows)
        first.give(rows, mx.repeat(self._logits, len(rows), axis=0))
