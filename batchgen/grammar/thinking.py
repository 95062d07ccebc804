"""The text before a grammar begins: where its end, such as `</think>`, comes up in tokens.

Every token is allowed there except those that end the row, and those in which the text ends and goes on: the grammar
begins between tokens. A text that is a token of its own, as `</think>` mostly is, can only be that token: a thinking
budget looks for the token, and must not find thinking open where the grammar has begun. Of a marker's bytes, how many
the text so far ends with is all that has to be remembered.
"""

from collections.abc import Mapping

from batchgen.grammar.vocabulary import Vocabulary, Words

# Line ends between marker and grammar; models write one or two, and they belong to neither.
MAX_LINE_ENDS = 2


class Marker:
    """The text that ends thinking, over the bytes of a model's tokens.

    A state is the number of the marker's bytes, from its start, with which the text so far ends; the marker's length
    means that it is complete.
    """

    def __init__(self, marker: bytes, token_bytes: Mapping[int, bytes], vocabulary: Vocabulary) -> None:
        assert marker, "an empty text marks nothing"
        self.length = len(marker)
        self._marker = marker
        self._token_bytes = token_bytes
        self._vocabulary = vocabulary
        self._masks: dict[int, Words] = {}
        self._own_tokens = frozenset(token for token, text in token_bytes.items() if text == marker)
        # Tokens made of line ends alone, and how many they are.
        self.line_ends = {
            token: len(text)
            for token, text in token_bytes.items()
            if text and len(text) <= MAX_LINE_ENDS and not text.strip(b"\n")
        }

    def step(self, state: int, token: int) -> int:
        """The state behind a token."""
        text = self._marker[:state] + self._token_bytes.get(token, b"")
        if self._marker in text:
            return self.length
        return next(size for size in range(min(len(text), self.length - 1), -1, -1) if self._ends_with(text, size))

    def mask(self, state: int) -> Words:
        """Which tokens may follow, one bit each."""
        if state not in self._masks:
            self._masks[state] = self._vocabulary.free & ~self._vocabulary.words(self._barred(state))
        return self._masks[state]

    def _ends_with(self, text: bytes, size: int) -> bool:
        return text.endswith(self._marker[:size])

    def _barred(self, state: int) -> list[int]:
        """Tokens that complete the marker as they must not."""
        begun = self._marker[:state]
        # What of the marker may be missing: all that a token can begin with to complete it.
        missing = tuple(self._marker[size:] for size in range(1, state + 1) if self._ends_with(begun, size))
        return [
            token
            for token, text in self._token_bytes.items()
            if (text.startswith(missing) or self._marker in text)
            and (self._goes_on(begun + text) or (self._own_tokens and token not in self._own_tokens))
        ]

    def _goes_on(self, text: bytes) -> bool:
        return text.partition(self._marker)[2] != b""
