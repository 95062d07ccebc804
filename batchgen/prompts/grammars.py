"""Grammars that completions of one model are held to. Loads llguidance, an extra, with the first grammar."""

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

from batchgen.errors import JobError, ModelError
from batchgen.prompts.thinking import CLOSE, Block
from batchgen.types import Grammar, GrammarMatcher

if TYPE_CHECKING:
    from batchgen.grammar import GrammarFactory


class Grammars:
    """Makes matchers. `vocab_size` is the model's; `open_token` the token of `<think>`, None if it has none."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int], open_token: int | None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._open_token = open_token

    def require(self, key: str) -> None:
        """Raises JobError, naming the job's key, if no completion can be held to any grammar, for want of llguidance or
        because of the model."""
        from batchgen.grammar import require_llguidance

        require_llguidance(key)
        try:
            _ = self._factory
        except ModelError as error:
            raise JobError(f"{key}: {error}") from error

    def refusal(self, grammar: Grammar) -> str | None:
        """Why no completion can be held to this grammar, behind its key; None if one can. Asked after `require`."""
        from batchgen.grammar import GrammarError

        try:
            self._factory.matcher(grammar)
        except GrammarError as error:
            return f"sampling.{grammar.kind}: {error}"
        return None

    def matcher(self, grammar: Grammar, block: Block) -> GrammarMatcher:
        """A matcher for a new completion; of a grammar that `refusal` lets stand. It holds for the answer only."""
        if block == "none":
            return self._factory.matcher(grammar)
        return self._factory.matcher(grammar, CLOSE, None if block == "open" else self._open_token)

    @cached_property
    def _factory(self) -> "GrammarFactory":
        from batchgen.grammar import GrammarFactory

        return GrammarFactory(self._tokenizer, self._vocab_size, self._eos_token_ids)
