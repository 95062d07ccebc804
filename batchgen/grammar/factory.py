"""One model's vocabulary as llguidance needs it, and matchers over it."""

from collections import OrderedDict
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from batchgen.errors import ModelError
from batchgen.grammar.check import check_grammar, compile_grammar, one_line
from batchgen.grammar.errors import GrammarError
from batchgen.grammar.matcher import TokenMatcher
from batchgen.grammar.thinking import Marker
from batchgen.grammar.vocabulary import Vocabulary
from batchgen.types import Grammar, GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Grammars that are kept compiled; the rows of a job mostly share a few.
_NUM_KEPT = 64


class GrammarFactory:
    """Makes matchers for rows of one model.

    `tokenizer` is a fast transformers tokenizer, or one of the tokenizers library. `vocab_size` is the model's, which
    may be larger: the ids past the tokenizer's are never allowed. `eos_token_ids` are ids of the model. Raises
    ModelError if llguidance cannot read the tokenizer, or the model has no end token, without which a completion could
    not end where its grammar does.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        from llguidance import LLTokenizer

        ends = sorted(eos_token_ids)
        if not ends:
            raise ModelError("structured output: the model has no end token, so no completion could end")
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "to_str"):
            raise ModelError("structured output: the model has no fast tokenizer (tokenizer.json)")
        try:
            self._tokenizer = LLTokenizer(backend.to_str(), n_vocab=vocab_size, eos_token=ends[0])
        except ValueError as error:
            raise ModelError(
                f"structured output: llguidance cannot read the tokenizer: {one_line(str(error))}"
            ) from error
        ids = [token for token in backend.get_vocab(with_added_tokens=True).values() if token < vocab_size]
        self._vocabulary = Vocabulary(vocab_size, ids, ends)
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._markers: dict[str, Marker] = {}

    def matcher(self, grammar: Grammar, after: str | None = None, open_token: int | None = None) -> GrammarMatcher:
        """A matcher at the start of a completion. Raises GrammarError if no completion can be held to the grammar.

        The grammar begins behind the text `after` where it first occurs, and behind at most two line ends there;
        before that every token but an end token is allowed. With `open_token` that holds only for completions that
        begin with this token; others are held to the grammar from their first token, as all are without `after`.
        """
        marker = None if after is None else self._marker(after)
        return TokenMatcher(self._start(grammar), self._vocabulary, marker, open_token)

    def _start(self, grammar: Grammar) -> "LLMatcher":
        from llguidance import LLMatcher

        if grammar not in self._compiled:
            check_grammar(grammar)
            start = LLMatcher(self._tokenizer, compile_grammar(grammar), log_level=0)
            if start.is_error():
                raise GrammarError(one_line(start.get_error()))
            self._compiled[grammar] = start
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _NUM_KEPT:
            self._compiled.popitem(last=False)
        return self._compiled[grammar]

    def _marker(self, text: str) -> Marker:
        if text not in self._markers:
            self._markers[text] = Marker(text.encode(), self._token_bytes, self._vocabulary)
        return self._markers[text]

    @cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        ids: npt.NDArray[np.int64] = np.flatnonzero(self._vocabulary.bits(self._vocabulary.free))
        return {token: self._tokenizer.decode_bytes([token]) for token in ids.tolist()}
