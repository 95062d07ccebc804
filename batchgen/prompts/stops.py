"""Stop strings: where a completion ends in the text of its answer.

A row ends with the token that completes a stop string, and its answer ends before the earliest one in it. Looked at is
the text that would be returned if the row ended there: without hidden tokens, never the thinking block nor the line
ends behind it. What may turn out to be something else is not looked at yet: a character of which bytes are missing, and
the beginning of an answer that may be that of `<think>`. When the budget ends this is looked at as it stands.

A stop string that is complete with fewer than `min_tokens` tokens is text like any other, for the end and for the cut.
"""

from collections.abc import Sequence

from batchgen.prompts.text import TextStream
from batchgen.prompts.thinking import AnswerStream


class StopStrings:
    """The `StopMatcher` of one row; `stops` are not empty, and none of them is."""

    def __init__(self, stops: Sequence[str], min_tokens: int, text: TextStream, answer: AnswerStream) -> None:
        self._stops = stops
        self._min_tokens = min_tokens
        self._text = text
        self._answer = answer
        self._num_tokens = 0
        self._tail = ""  # of the settled answer, as much as a stop string may begin in
        self._tail_length = max(map(len, stops)) - 1
        self._ahead = ""  # text behind the settled one
        self._num_barred = 0  # characters from the tail's start in which a stop string may not end

    def push(self, token: int) -> bool:
        """See `StopMatcher`."""
        self._num_tokens += 1
        settled, self._ahead = self._text.push(token)
        known = self._tail + self._answer.push(settled)
        text = known + (self._answer.peek(self._ahead) if self._ahead else "")
        if self._num_tokens < self._min_tokens:
            # Bytes of a character may hide text that stood before them, and it may come back.
            is_found, self._num_barred = False, max(self._num_barred, len(text))
        else:
            is_found = earliest(text, self._stops, max(self._num_barred, len(self._tail))) is not None
        num_left = max(0, len(known) - self._tail_length)
        self._tail = known[num_left:]
        self._num_barred = max(0, self._num_barred - num_left)
        return is_found

    def finish(self) -> bool:
        """See `StopMatcher`."""
        if self._num_tokens < self._min_tokens:
            return False
        text = self._tail + self._answer.last(self._ahead)
        return earliest(text, self._stops, max(self._num_barred, len(self._tail))) is not None


def earliest(text: str, stops: Sequence[str], num_before: int) -> int | None:
    """Where the earliest stop string begins of those that end behind the first `num_before` characters of a text."""
    starts = [text.find(stop, max(0, num_before - len(stop) + 1)) for stop in stops]
    return min((start for start in starts if start >= 0), default=None)
