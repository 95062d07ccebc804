"""One row's place in its grammar, and the masks that follow from it for all positions of a block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from batchgen.grammar.check import has_no_way_on, one_line
from batchgen.grammar.thinking import MAX_LINE_ENDS, Marker
from batchgen.grammar.vocabulary import Vocabulary, Words

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Place(NamedTuple):
    """Where a completion stands. `progress` is the marker's state while thinking, in the gap behind the marker the
    number of line ends, else 0."""

    part: Literal["first", "thinking", "gap", "grammar", "end"]
    progress: int = 0


_IN_GRAMMAR, _ENDED = Place("grammar"), Place("end")


@dataclass(frozen=True, slots=True)
class _Stuck:
    """After how many tokens of the completion nothing was allowed, and why."""

    num_tokens: int
    reason: str


class TokenMatcher:
    """The `GrammarMatcher` of one row.

    End tokens are allowed exactly where the grammar may end, and llguidance is never given one: what it was given can
    then always be taken back, token by token.
    """

    def __init__(
        self, start: "LLMatcher", vocabulary: Vocabulary, marker: Marker | None = None, open_token: int | None = None
    ) -> None:
        self._start = start
        self._inner = start.deep_copy()
        self._read: list[int] = []
        self._vocabulary = vocabulary
        self._marker = marker
        self._open_token = open_token
        self._num_tokens = 0
        self._stuck: _Stuck | None = None
        if marker is None:
            self._place = _IN_GRAMMAR
        else:
            self._place = Place("thinking" if open_token is None else "first")

    def fill(self, drafts: Sequence[int], masks: Words) -> int:
        """See `GrammarMatcher`. Where nothing at all could follow, the end tokens are allowed: see `failure`."""
        place, num_taken, num_allowed = self._place, 0, 0
        self._stuck = None
        for draft in [*drafts, None]:
            mask = masks[num_allowed]
            self._write(place, mask)
            if not mask.any():
                self._stuck = _Stuck(self._num_tokens + num_allowed, self._reason())
                mask[:] = self._vocabulary.ends
            if draft is None or not mask[draft // 32] >> np.uint32(draft % 32) & np.uint32(1):
                break
            behind = self._step(place, draft)
            num_taken += behind.part == "grammar"
            place, num_allowed = behind, num_allowed + 1
        if num_taken:
            self._inner.rollback(num_taken)
        if self._inner.is_error():
            # A matcher that met a limit of llguidance stays so, and drafts that will not stand must not bring that on.
            self._inner = self._start.deep_copy()
            self._inner.try_consume_tokens(self._read)
        return num_allowed

    def advance(self, tokens: Sequence[int]) -> None:
        """Moves past tokens that the masks allowed, an end token possibly last."""
        for token in tokens:
            self._place = self._step(self._place, token)
            if self._place.part == "grammar":
                self._read.append(token)
        self._num_tokens += len(tokens)

    def failure(self, num_tokens: int) -> str | None:
        """See `GrammarMatcher`; to be asked behind the last `fill`."""
        if self._stuck is None or num_tokens <= self._stuck.num_tokens:
            return None
        return self._stuck.reason

    def _reason(self) -> str:
        message = self._inner.get_error()
        return one_line(message) if message and not has_no_way_on(message) else "the model has none that goes on"

    def _write(self, place: Place, mask: Words) -> None:
        """Into mask [words], what may stand at a place."""
        if place.part == "thinking":
            assert self._marker is not None
            mask[:] = self._marker.mask(place.progress)
            return
        if place.part == "end":
            mask[:] = self._vocabulary.ends
            return
        self._write_grammar(mask)
        if place.part == "first" and self._open_token is not None:
            mask[self._open_token // 32] |= np.uint32(1 << self._open_token % 32)
        elif place.part == "gap":
            for token in self._gap_tokens(place.progress):
                mask[token // 32] |= np.uint32(1 << token % 32)

    def _write_grammar(self, mask: Words) -> None:
        assert mask.flags.c_contiguous and mask.shape == (self._vocabulary.num_words,) and mask.dtype == np.uint32
        if self._inner.is_error():
            mask[:] = 0
            return
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        mask &= self._vocabulary.free
        if self._inner.is_accepting():
            mask |= self._vocabulary.ends

    def _step(self, place: Place, token: int) -> Place:
        """The place behind a token; the grammar has read the token if the place is in it."""
        if token in self._vocabulary.end_token_ids or place.part == "end":
            return _ENDED
        if place.part == "thinking" or (place.part == "first" and token == self._open_token):
            assert self._marker is not None
            state = self._marker.step(place.progress, token)
            return Place("gap") if state == self._marker.length else Place("thinking", state)
        # A line end that the grammar itself begins with is the grammar's.
        if self._inner.try_consume_tokens([token]) == 0 and place.part == "gap":
            assert self._marker is not None
            return Place("gap", place.progress + self._marker.line_ends.get(token, 0))
        return _IN_GRAMMAR

    def _gap_tokens(self, num_line_ends: int) -> list[int]:
        assert self._marker is not None
        return [token for token, size in self._marker.line_ends.items() if num_line_ends + size <= MAX_LINE_ENDS]
