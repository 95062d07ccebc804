"""Reading prompts: rows of similar length together, a chunk at a time, each row to its own end.

A group owns its caches until a row has read its whole prompt; the decoder then copies that row into a slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine.arrays import int_array, read_float_rows, read_int_rows
from batchgen.engine.caches.context import DraftContext
from batchgen.engine.drafters.protocol import Drafter
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


@dataclass(slots=True)
class _Prompt:
    """A prompt that is being read, for all rows that are samples of it."""

    rows: list[Row]
    num_read: int = 0

    @property
    def tokens(self) -> Sequence[int]:
        return self.rows[0].request.tokens


class PrefillGroup:
    """Prompts that are being read, with caches of their own. Each of `prompts` is the rows that share it."""

    def __init__(
        self,
        prompts: Sequence[Sequence[Row]],
        target: Target,
        drafter: Drafter | None,
        chunk: int,
        coupling: Coupling,
        wants_logprobs: bool,
    ) -> None:
        self.state = target.make_state(len(prompts))
        self.context: DraftContext | None = None if drafter is None else drafter.make_context(len(prompts))
        self._prompts: list[_Prompt | None] = [_Prompt(list(rows)) for rows in prompts]
        self._target, self._drafter, self._chunk = target, drafter, chunk
        self._coupling: Coupling = coupling
        self._wants_logprobs = wants_logprobs
        for prompt in prompts:
            for row in prompt[1:]:
                row.cached_prompt_tokens = len(row.request.tokens)

    @property
    def num_rows(self) -> int:
        return sum(len(prompt.rows) for prompt in self._prompts if prompt is not None)

    def turn(self, clock: Callable[[], float]) -> list[tuple[int, Row]]:
        """Reads one chunk; rows whose prompt reached its end get their first token.

        Returns those rows, each with the place of its prompt in the group's caches; they are the group's no more.
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
        done = [
            (place, row)
            for place, prompt in enumerate(self._prompts)
            if prompt is not None and counts[place] == left[place]
            for row in prompt.rows
        ]
        self._give_first_tokens(done, hidden.final, counts, clock)
        mx.eval(arrays)
        for place, prompt in enumerate(self._prompts):
            if prompt is not None:
                prompt.num_read += counts[place]
                self._prompts[place] = None if counts[place] == left[place] else prompt
        return done

    def _next_tokens(self, prompt: _Prompt | None, width: int) -> list[int]:
        tokens = [] if prompt is None else list(prompt.tokens[prompt.num_read : prompt.num_read + width])
        return tokens + [0] * (width - len(tokens))

    def _give_first_tokens(
        self, done: Sequence[tuple[int, Row]], final: mx.array, counts: Sequence[int], clock: Callable[[], float]
    ) -> None:
        if not done:
            return
        # One row of logits for each prompt, however many samples are taken from it.
        places = sorted({place for place, _ in done})
        logits = self._target.logits(final[int_array(places), int_array([counts[place] - 1 for place in places])])
        rules = Rules([row for _, row in done], self._wants_logprobs)
        logits = logits[int_array([places.index(place) for place, _ in done])][:, None]
        anchors = int_array([row.request.tokens[-1] for _, row in done])
        allowed = rules.grammar_masks([[] for _ in done], logits.shape[-1])
        decision = decide(rules, self._coupling, logits, anchors, None, mx.ones_like(anchors), allowed)
        mx.eval(decision.tokens)
        now_s = clock()
        tokens = read_int_rows(decision.tokens)
        logprobs = [[] for _ in done] if decision.logprobs is None else read_float_rows(decision.logprobs)
        for (_, row), (token,), logprob in zip(done, tokens, logprobs, strict=True):
            row.begin(token, now_s, logprob)
