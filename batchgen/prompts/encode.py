"""From prompts to requests and from their tokens to text, the way the model's own tokenizer and chat template have it.

A prompt has one beginning-of-sequence token where its tokenizer has one. Text is what mlx-lm shows for the same tokens,
without special tokens. A prompt that cannot be encoded, and sampling that the model cannot serve, is a `RowError`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from batchgen.errors import JobError, ModelError
from batchgen.job.spec import InputSpec
from batchgen.prompts.chat_template import ChatTemplate
from batchgen.prompts.grammars import Grammars
from batchgen.prompts.model_files import (
    config_int,
    end_tokens,
    load_tokenizer,
    read_json,
    text_config,
    tokenizer_digest,
)
from batchgen.prompts.noise_key import noise_key
from batchgen.prompts.render import TEMPLATE_ERRORS, reason_of
from batchgen.prompts.stops import StopStrings, earliest
from batchgen.prompts.text import Detokenizer
from batchgen.prompts.thinking import CLOSE, OPEN, AnswerStream, Block, split_reasoning
from batchgen.types import (
    ErrorKind,
    GrammarMatcher,
    Prompt,
    Request,
    RowError,
    RowKey,
    Sampling,
    StopMatcher,
    ThinkingLimit,
)

_GRAMMARS = ("json_schema", "regex", "choice")


class Codec:
    """The tokenizer of one model, set up for one job. `chat` says whether text prompts go through the chat template."""

    def __init__(self, folder: Path, tokenizer: Any, config: dict[str, Any], system: str | None, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self.chat = chat
        self._template = ChatTemplate(tokenizer, folder, system) if chat else None
        self._text = Detokenizer(tokenizer, folder)
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        # The engine's logits have as many entries as the language model's part of the configuration says.
        known_size = config_int(text_config(config), "vocab_size") or config_int(config, "vocab_size")
        self._model_vocab_size = self.vocab_size if known_size is None else known_size
        self.context_length = config_int(config, "max_position_embeddings")
        # mlx-lm ends at the tokenizer's own end token too, whatever the configuration names.
        own_end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        ends = end_tokens(folder, config) | frozenset(own_end)
        # Some models name ids that they do not have; an array over the vocabulary has no place for these.
        self.eos_token_ids = frozenset(token for token in ends if 0 <= token < self._model_vocab_size)
        self._open_token = vocabulary.get(OPEN)
        self._close_token = vocabulary.get(CLOSE)
        self._thinks = self._close_token is not None or CLOSE in str(tokenizer.chat_template)
        self._grammars = Grammars(tokenizer, self._model_vocab_size, self.eos_token_ids, self._open_token)

    @classmethod
    def load(cls, folder: Path, *, system: str | None, chat: bool | None) -> Self:
        """Loads the tokenizer of a model's folder.

        `chat` None means: through the chat template if there is one. Raises ModelError if the tokenizer is missing or
        broken, is another model's, or has no chat template where one is needed.
        """
        config = read_json(folder / "config.json")
        tokenizer = load_tokenizer(folder)
        has_template = tokenizer.chat_template is not None
        if not has_template and (chat or system is not None):
            why = "input.system is set" if system is not None else "chat is on or the input is conversations"
            raise ModelError(f"{folder}: its tokenizer has no chat template, and the job needs one: {why}")
        codec = cls(folder, tokenizer, config, system, has_template if chat is None else chat)
        codec._require_fit()
        return codec

    @classmethod
    def for_input(cls, folder: Path, spec: InputSpec) -> Self:
        """Loads it as the job's input needs it: conversations always take the chat template."""
        return cls.load(folder, system=spec.system, chat=True if spec.messages is not None else spec.chat)

    def require(self, sampling: Sampling, columns: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raises JobError if the model, or what is installed here, cannot serve a job's own sampling values, or any
        value of the keys that name columns: what concerns these keys as a whole is no row's fault."""
        for key in _GRAMMARS:
            if key in columns or (sampling.grammar is not None and sampling.grammar.kind == key):
                self._grammars.require(f"sampling.{key}")
        refusal = self._refusal(sampling)
        for key, column in columns.items():
            refusal = refusal or self._key_refusal(key, f"column {column}")
        if refusal is not None:
            raise JobError(refusal)

    def requests(self, prompt: Prompt, samples: Sequence[int]) -> list[Request] | RowError:
        """What the engine needs to make these samples of a prompt, or why it cannot make any."""
        if prompt.error is not None:
            return prompt.error
        if not samples:
            return []
        refusal = self._refusal(prompt.sampling)
        if refusal is not None:
            return RowError("bad_sampling", f"{prompt.place}: {_with_column(refusal, prompt.sampling_columns)}")
        tokens = self.encode(prompt)
        if isinstance(tokens, RowError):
            return tokens
        return [self._request(prompt, sample, tokens) for sample in samples]

    def encode(self, prompt: Prompt) -> list[int] | RowError:
        """The prompt's token ids, at least one and at most `context_length - 1`, or why it has none."""
        if prompt.error is not None:
            return prompt.error
        rendered = self.render(prompt)
        if isinstance(rendered, RowError):
            return rendered
        tokens = self._tokens(rendered)
        if not tokens:
            return RowError("empty_prompt", f"{prompt.place}: the tokenizer makes no token of the prompt")
        if self.context_length is not None and len(tokens) > self.context_length - 1:
            return RowError(
                "prompt_too_long",
                f"{prompt.place}: the prompt has {len(tokens)} tokens, and the model's context of "
                f"{self.context_length} leaves room for {self.context_length - 1}",
            )
        return tokens

    def render(self, prompt: Prompt) -> str | RowError:
        """The text that is tokenized: the prompt's own, or what the chat template makes of it."""
        text, messages = prompt.text, prompt.messages
        if self._template is None:
            if messages is not None:
                raise ModelError(f"{self._folder}: conversations need a chat template, and none is in use")
            assert text is not None
            return text
        kind: ErrorKind = "bad_messages" if messages is not None else "bad_template"
        conversation = messages if messages is not None else [{"role": "user", "content": text}]
        try:
            return self._template.apply(conversation, prompt.sampling.thinking)
        except TEMPLATE_ERRORS as error:
            return RowError(kind, f"{prompt.place}: the model's chat template fails: {reason_of(error)}")

    def pin_time(self, time: str) -> None:
        """What chat templates that ask for the date are told from now on (ISO): a job that goes on after midnight must
        not render other prompts than it began with."""
        if self._template is not None:
            self._template.pin_time(datetime.fromisoformat(time))

    def completion_budget(self, prompt_tokens: int, max_tokens: int) -> int:
        """How many tokens a completion may have: `max_tokens`, or what the context leaves; at least 1."""
        if self.context_length is None:
            return max_tokens
        return min(max_tokens, self.context_length - prompt_tokens)

    def completion(self, request: Request, tokens: Sequence[int]) -> tuple[str, str | None] | RowError:
        """The answer in the tokens that came of a request, and the text of its thinking block if it has one; or why
        they are none, the row's place not said.

        The answer ends before its earliest stop string. The end or stop token that ended the row has no text.
        """
        error = _grammar_error(request, len(tokens))
        if error is not None:
            return error
        sampling = request.sampling
        block = self._block(request.tokens, sampling)
        shown = self._without_end(tokens, sampling)
        answer, reasoning = split_reasoning(self._text.text(shown), block)
        if sampling.stop and len(shown) >= sampling.min_tokens:
            num_barred = self._num_barred(shown[: max(0, sampling.min_tokens - 1)], block)
            answer = answer[: earliest(self._text.seen(answer), sampling.stop, num_barred)]
        return answer, reasoning

    @property
    def identity(self) -> dict[str, str | bool]:
        """What of tokenizer and chat template changes answers: digests of the files and of the template in use."""
        template = json.dumps(self._tokenizer.chat_template, sort_keys=True) if self.chat else ""
        return {
            "tokenizer": tokenizer_digest(self._folder),
            "chat": self.chat,
            "chat_template": hashlib.sha256(template.encode()).hexdigest() if self.chat else "",
            "eos_token_ids": ",".join(str(token) for token in sorted(self.eos_token_ids)),
        }

    def _request(self, prompt: Prompt, sample: int, tokens: list[int]) -> Request:
        sampling = prompt.sampling
        block = self._block(tokens, sampling)
        return Request(
            key=RowKey(prompt.row, sample),
            tokens=tokens,
            max_tokens=self.completion_budget(len(tokens), sampling.max_tokens),
            sampling=sampling,
            noise_key=noise_key(prompt, sample),
            stop_matcher=self._stop_matcher(sampling, block),
            grammar_matcher=self._grammar_matcher(sampling, block),
            thinking_limit=self._thinking_limit(sampling, block),
        )

    def _stop_matcher(self, sampling: Sampling, block: Block) -> StopMatcher | None:
        if not sampling.stop:
            return None
        return StopStrings(sampling.stop, sampling.min_tokens, self._text.stream(), AnswerStream(block))

    def _grammar_matcher(self, sampling: Sampling, block: Block) -> GrammarMatcher | None:
        return None if sampling.grammar is None else self._grammars.matcher(sampling.grammar, block)

    def _thinking_limit(self, sampling: Sampling, block: Block) -> ThinkingLimit | None:
        if sampling.thinking_budget is None or block == "none":
            return None
        assert self._close_token is not None
        # Under a grammar a block is opened by the first token or not at all.
        lead = self._text.blank_tokens if sampling.grammar is None else frozenset[int]()
        return ThinkingLimit(sampling.thinking_budget, self._open_token, self._close_token, block == "open", lead)

    def _block(self, prompt_tokens: Sequence[int], sampling: Sampling) -> Block:
        """Whether a completion of this prompt can have a thinking block: for text, stop strings, grammar and budget.

        A model that does not think where it was told to may still do so, unless a grammar keeps it from it.
        """
        if not self._thinks:
            return "none"
        tail = self._text.tail(prompt_tokens, max(len(OPEN), len(CLOSE)))
        if tail.endswith(OPEN):
            return "open"
        is_over = sampling.thinking is False or tail.endswith(CLOSE)
        return "none" if sampling.grammar is not None and (is_over or self._open_token is None) else "may_open"

    def _without_end(self, tokens: Sequence[int], sampling: Sampling) -> Sequence[int]:
        """A completion's tokens without the one that ended it."""
        return tokens[:-1] if tokens and tokens[-1] in self._end_tokens(sampling) else tokens

    def _end_tokens(self, sampling: Sampling) -> frozenset[int]:
        """Tokens that end a row: the model's own, unless they are ignored, and the row's."""
        return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self.eos_token_ids)

    def _num_barred(self, tokens: Sequence[int], block: Block) -> int:
        """How many characters of an answer had come, at most, by each of a completion's first tokens."""
        # Bytes of a character, 3 at most while it is incomplete, may hide text that stood before them.
        numbers = range(max(0, len(tokens) - 3), len(tokens) + 1)
        texts = (self._text.seen(self._text.text(tokens[:number])) for number in numbers)
        return max(len(AnswerStream(block).push(text)) for text in texts)

    def _tokens(self, rendered: str) -> list[int]:
        # A chat template writes the special tokens itself; so does text that already begins with one.
        bos = self._tokenizer.bos_token
        add_special = not self.chat and not (bos and rendered.startswith(bos))
        return list(self._tokenizer.encode(rendered, add_special_tokens=add_special, verbose=False))

    def _refusal(self, sampling: Sampling) -> str | None:
        """What of some sampling values the model cannot serve, behind its key, and what to do; None if all is well."""
        refusal = self._thinking_refusal(sampling) or self._token_refusal(sampling) or self._end_refusal(sampling)
        if refusal is None and sampling.grammar is not None:
            refusal = self._grammars.refusal(sampling.grammar)
        return refusal

    def _thinking_refusal(self, sampling: Sampling) -> str | None:
        given = {"thinking": sampling.thinking, "thinking_budget": sampling.thinking_budget}
        refusals = (self._key_refusal(key, str(value).lower()) for key, value in given.items() if value is not None)
        return next(filter(None, refusals), None)

    def _key_refusal(self, key: str, found: str) -> str | None:
        """Why the model cannot serve any value of a key, with the one that was found."""
        reasons = {"thinking": self._no_thinking, "thinking_budget": self._no_budget}
        reason = reasons[key]() if key in reasons else None
        return None if reason is None else f"sampling.{key}: found {found}, but {reason}; leave {key} out"

    def _no_thinking(self) -> str | None:
        if self._template is None:
            return "no chat template is in use that could be told"
        return None if self._template.reads_thinking else "the model's chat template does not read enable_thinking"

    def _no_budget(self) -> str | None:
        if self._close_token is None:
            return f"the model's tokenizer has no token {CLOSE} to end thinking with"
        if self._open_token is None:
            return f"the model's tokenizer has no token {OPEN} by which to tell that thinking begins"
        return None

    def _token_refusal(self, sampling: Sampling) -> str | None:
        keys = {
            "logit_bias": [token for token, _ in sampling.logit_bias],
            "stop_token_ids": sampling.stop_token_ids,
        }
        for key, tokens in keys.items():
            highest = max(tokens, default=-1)
            if highest >= self._model_vocab_size:
                last = self._model_vocab_size - 1
                return f"sampling.{key}: found token id {highest}, must be at most {last}, the model's last"
        return None

    def _end_refusal(self, sampling: Sampling) -> str | None:
        """Where min_tokens bars every token that may stand."""
        least, budget = sampling.min_tokens, sampling.thinking_budget
        ends = self._end_tokens(sampling) if least else frozenset[int]()
        if len(ends) >= self._model_vocab_size:
            return (
                f"sampling.min_tokens: found {least}, but every token of the model is an end token or one of "
                "stop_token_ids, so none may stand before; name fewer stop_token_ids"
            )
        if budget is not None and budget < least and self._close_token in ends:
            return (
                f"sampling.thinking_budget: found {budget}, but the token {CLOSE} that must stand then ends the row, "
                f"and min_tokens bars that before {least} tokens; take {self._close_token} out of stop_token_ids, or "
                f"lower min_tokens to {budget}"
            )
        return None

    def _require_fit(self) -> None:
        if self.vocab_size > self._model_vocab_size:
            raise ModelError(
                f"{self._folder}: the tokenizer has {self.vocab_size} tokens and the model {self._model_vocab_size}; "
                "they do not belong together"
            )


def _grammar_error(request: Request, num_tokens: int) -> RowError | None:
    """What is wrong with a completion that ended in the middle of its grammar, though nothing asked it to."""
    grammar, matcher = request.sampling.grammar, request.grammar_matcher
    reason = None if matcher is None else matcher.failure(num_tokens)
    if grammar is None or reason is None:
        return None
    return RowError(
        "grammar_failed",
        f"sampling.{grammar.kind}: no token could follow after {num_tokens - 1} tokens, so the answer is not whole "
        f"({reason}); give the row a simpler grammar",
    )


def _with_column(refusal: str, columns: Mapping[str, str]) -> str:
    """What is wrong with a key's value in a row, with the column that has it if there is one."""
    key, _, reason = refusal.partition(": ")
    column = columns.get(key.removeprefix("sampling."))
    return refusal if column is None else f"column {column}, which {key} names: {reason}"
