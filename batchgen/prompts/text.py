"""Tokens to text: all at once as mlx-lm shows them, and the same text token by token.

Special tokens are hidden, but for those that mark thinking. Where tokens are bytes (GPT-2's way), one space before all
text is dropped, as mlx-lm does.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from batchgen.prompts.model_files import read_json
from batchgen.prompts.thinking import CLOSE, OPEN

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most 4 bytes, so what is before the last 4 tokens can no longer change.
_NUM_LEAD = 4
# Tokens are decoded together up to here before the ones that are settled are let go.
_MAX_WINDOW = 16
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_PLAIN = re.compile("[0-9A-Za-z]")
_NUM_TAIL_TOKENS = 16


class Detokenizer:
    """The way from tokens to text of one model's tokenizer."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        self._tokenizer = tokenizer
        self._hidden = _special_ids(tokenizer) - {vocabulary.get(OPEN), vocabulary.get(CLOSE)}
        self._byte_tokens = frozenset(token for name, token in vocabulary.items() if _BYTE_TOKEN.fullmatch(name))
        self._trims_space = _is_byte_level(folder)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of a completion's tokens."""
        text = self.raw_text([token for token in tokens if token not in self._hidden])
        return text.removeprefix(" ") if self._trims_space else text

    def seen(self, text: str) -> str:
        """A text without a character at its end of which bytes may be missing."""
        # Where bytes have tokens of their own, a run of them that is no text yet has a replacement for each.
        return text.rstrip(_REPLACEMENT) if self._byte_tokens else text.removesuffix(_REPLACEMENT)

    @cached_property
    def blank_tokens(self) -> frozenset[int]:
        """Tokens that show nothing, or white space alone."""
        names: Mapping[str, int] = self._tokenizer.get_vocab()
        # A name with a plain letter or digit is none of white space, unless it is that of a byte.
        suspects = [token for name, token in names.items() if not _PLAIN.search(name)]
        return self._hidden | {token for token in {*suspects, *self._byte_tokens} if not self.raw_text([token]).strip()}

    def stream(self) -> "TextStream":
        """The same text for tokens of one completion that come one by one."""
        return TextStream(self, self._hidden, self._byte_tokens, self._trims_space)

    def tail(self, tokens: Sequence[int], num_characters: int) -> str:
        """The end of the tokens' text, special tokens included, without white space behind it; at least so many
        characters, if there are."""
        width = _NUM_TAIL_TOKENS
        while True:
            text = self.raw_text(tokens[-width:]).rstrip()
            if len(text) >= num_characters or width >= len(tokens):
                return text
            width *= 2

    def raw_text(self, tokens: Sequence[int]) -> str:
        """The text of tokens as the tokenizer has it, special tokens included."""
        # Cleaning up spaces is meant for word pieces, and spoils what BPE decodes exactly.
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


class TextStream:
    """The text of one completion's tokens as they come, decoded over a few of the last ones.

    What was given with all tokens so far is what is `seen` of their text. `hidden` tokens have no text. Where single
    bytes have tokens of their own (`byte_tokens`), a tokenizer decodes a run of them as a whole, so that its text may
    still become another until the run has ended.
    """

    def __init__(
        self, detokenizer: Detokenizer, hidden: Collection[int], byte_tokens: Collection[int], trims_space: bool
    ) -> None:
        self._detokenizer = detokenizer
        self._hidden = hidden
        self._byte_tokens = byte_tokens
        self._trims_space = trims_space
        self._window: list[int] = []
        self._num_given = 0  # characters of the window's text that are settled
        self._ahead = ""

    def push(self, token: int) -> tuple[str, str]:
        """The text that is settled with this token and was not before, and the text behind it that may still change."""
        if token in self._hidden:
            return "", self._ahead
        self._window.append(token)
        text = self._seen()
        added = text[self._num_given :]
        if token in self._byte_tokens:
            self._ahead = added
            return "", added
        self._ahead = ""
        self._num_given = len(text)
        # What may still become text is in no settled one yet, so it stays in the window.
        if len(self._window) > _MAX_WINDOW and not self._is_open():
            self._window = self._window[-_NUM_LEAD:]
            self._trims_space = False
            self._num_given = len(self._seen())
        return added, ""

    def _is_open(self) -> bool:
        return self._detokenizer.raw_text(self._window).endswith(_REPLACEMENT)

    def _seen(self) -> str:
        text = self._detokenizer.seen(self._detokenizer.raw_text(self._window))
        return text.removeprefix(" ") if self._trims_space else text


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added = (number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset(added) | frozenset(tokenizer.all_special_ids)


def _is_byte_level(folder: Path) -> bool:
    """Whether tokens are bytes (GPT-2's way); mlx-lm then drops one space before the text."""
    path = folder / "tokenizer.json"
    decoder = read_json(path).get("decoder") if path.exists() else None
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
