"""Stop strings: where a completion ends in the text of its answer.

A row ends with the token that completes a stop string, and its answer ends before the earliest one in it. Looked at is
the text that will be returned: without hidden tokens, never the thinking block nor the line ends behind it. Text that
later tokens could still change is not looked at yet: a character of which bytes are missing, and, where single bytes
have tokens of their own, a run of those.

A stop string that is complete with fewer than `min_tokens` tokens is text like any other, for the end and for the cut.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from batchgen.prompts.thinking import CLOSE, OPEN

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most 4 bytes, so what is before the last 4 tokens can no longer change.
_NUM_LEAD = 4
# Tokens are decoded together up to here before the ones that are settled are let go.
_MAX_WINDOW = 16


class TextStream:
    """The text of tokens as they come, decoded over a few of the last ones.

    `decode` gives the text of visible tokens. `hidden` tokens have no text; a run of `byte_tokens` is decoded as a
    whole. With `trims_space` one space before all text is dropped.
    """

    def __init__(
        self, decode: Decode, hidden: Collection[int], byte_tokens: Collection[int], trims_space: bool
    ) -> None:
        self._decode = decode
        self._hidden = hidden
        self._byte_tokens = byte_tokens
        self._trims_space = trims_space
        self._window: list[int] = []
        self._num_given = 0  # characters of the window's text

    def push(self, token: int) -> str:
        """The text that is settled with this token and was not before."""
        if token in self._hidden:
            return ""
        self._window.append(token)
        if token in self._byte_tokens:
            return ""
        text = self._settled()
        added = text[self._num_given :]
        self._num_given = len(text)
        if len(self._window) > _MAX_WINDOW:
            self._window = self._window[-_NUM_LEAD:]
            self._num_given = len(self._settled())
        if added and self._trims_space:
            added = added.removeprefix(" ")
            self._trims_space = False
        return added

    def _settled(self) -> str:
        return self._decode(self._window).removesuffix(_REPLACEMENT)


class AnswerStream:
    """The part of a completion's settled text that belongs to its answer.

    `is_open` says that the prompt opens the thinking block; `may_think` that the completion may. Text that is so far
    only the beginning of `<think>` is not told apart yet, and neither are line ends behind `</think>`.
    """

    def __init__(self, may_think: bool, is_open: bool) -> None:
        self._part: Literal["head", "thinking", "gap", "answer"] = "answer"
        if may_think:
            self._part = "thinking" if is_open else "head"
        self._held = ""

    def push(self, text: str) -> str:
        """The text that is now known to be of the answer and was not before."""
        text = self._held + text
        if self._part == "head":
            start = text.lstrip()
            if len(start) < len(OPEN) and OPEN.startswith(start):
                self._held = text
                return ""
            self._part = "thinking" if start.startswith(OPEN) else "answer"
        if self._part == "thinking":
            _, close, behind = text.partition(CLOSE)
            if not close:
                self._held = text[1 - len(CLOSE) :]
                return ""
            self._part, text = "gap", behind
        if self._part == "gap":
            text = text.lstrip("\n")
            if text:
                self._part = "answer"
        self._held = ""
        return text


class StopStrings:
    """The `StopMatcher` of one row; `stops` are not empty."""

    def __init__(self, stops: Sequence[str], min_tokens: int, text: TextStream, answer: AnswerStream) -> None:
        self._stops = stops
        self._min_tokens = min_tokens
        self._text = text
        self._answer = answer
        self._num_tokens = 0
        self._tail = ""
        self._tail_length = max(map(len, stops)) - 1

    def push(self, token: int) -> bool:
        """See `StopMatcher`."""
        self._num_tokens += 1
        num_before = len(self._tail)
        text = self._tail + self._answer.push(self._text.push(token))
        self._tail = text[max(0, len(text) - self._tail_length) :]
        is_looked_for = self._num_tokens >= self._min_tokens and len(text) > num_before
        return is_looked_for and earliest(text, self._stops, num_before) is not None


def earliest(text: str, stops: Sequence[str], num_before: int) -> int | None:
    """Where the earliest stop string begins of those that end behind the first `num_before` characters of a text."""
    starts = [text.find(stop, max(0, num_before - len(stop) + 1)) for stop in stops]
    return min((start for start in starts if start >= 0), default=None)
