"""Prompts to tokens and tokens to text, the way the model's own tokenizer and chat template have it.

A prompt has one beginning-of-sequence token where its tokenizer has one. Decoded text is what mlx-lm shows for the same
tokens, without special tokens. A prompt that cannot be encoded is a `RowError`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from batchgen.errors import ModelError
from batchgen.job.spec import InputSpec
from batchgen.prompts.model_files import (
    config_int,
    end_tokens,
    load_tokenizer,
    read_json,
    tokenizer_digest,
)
from batchgen.prompts.render import TEMPLATE_ERRORS, reason_of
from batchgen.types import ErrorKind, Prompt, RowError

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_PROBE = "batchgen"

_DATE_CALL = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>[^'"\\]*)(?P=quote)\s*\)""")
_ANY_DATE_CALL = re.compile(r"strftime_now\s*\(")


class Codec:
    """The tokenizer of one model, set up for one job. `chat` says whether text prompts go through the chat template."""

    def __init__(self, folder: Path, tokenizer: Any, config: dict[str, Any], system: str | None, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._system = system
        self._folder = folder
        self.chat = chat
        self._template = self._dated_template(datetime.now(UTC))  # until `pin_time`
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.context_length = config_int(config, "max_position_embeddings")
        # mlx-lm ends at the tokenizer's own end token too, whatever the configuration names.
        own_end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.eos_token_ids = end_tokens(folder, config) | frozenset(own_end)
        self._hidden = _special_ids(tokenizer) - {vocabulary.get(THINK_OPEN), vocabulary.get(THINK_CLOSE)}
        self._trims_space = _is_byte_level(folder)
        self._thinks = THINK_CLOSE in vocabulary or THINK_CLOSE in str(tokenizer.chat_template)
        self._opens_thinking = chat and self._probe().rstrip().endswith(THINK_OPEN)

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
        codec._require_fit(config_int(config, "vocab_size"))
        return codec

    @classmethod
    def for_input(cls, folder: Path, spec: InputSpec) -> Self:
        """Loads it as the job's input needs it: conversations always take the chat template."""
        return cls.load(folder, system=spec.system, chat=True if spec.messages is not None else spec.chat)

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
        if prompt.messages is None and not self.chat:
            assert prompt.text is not None
            return prompt.text
        if not self.chat:
            raise ModelError(f"{self._folder}: conversations need a chat template, and none is in use")
        text, messages = prompt.text, prompt.messages
        kind: ErrorKind = "bad_messages" if messages is not None else "bad_template"
        try:
            return self._apply_template(messages if messages is not None else [{"role": "user", "content": text}])
        except TEMPLATE_ERRORS as error:
            return RowError(kind, f"{prompt.place}: the model's chat template fails: {reason_of(error)}")

    def pin_time(self, time: str) -> None:
        """What chat templates that ask for the date are told from now on (ISO): a job that goes on after midnight must
        not render other prompts than it began with."""
        self._template = self._dated_template(datetime.fromisoformat(time))

    def completion_budget(self, prompt_tokens: int, max_tokens: int) -> int:
        """How many tokens a completion may have: `max_tokens`, or what the context leaves; at least 1."""
        if self.context_length is None:
            return max_tokens
        return min(max_tokens, self.context_length - prompt_tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of completion tokens, without an end token and other special tokens."""
        visible = [token for token in tokens if token not in self._hidden]
        if visible and tokens[-1] in self.eos_token_ids and visible[-1] == tokens[-1]:
            visible.pop()
        # Cleaning up spaces is meant for word pieces, and spoils what BPE decodes exactly.
        text = str(self._tokenizer.decode(visible, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return text.removeprefix(" ") if self._trims_space else text

    def split_reasoning(self, text: str) -> tuple[str, str | None]:
        """A completion's answer and the text of its thinking block, None where it has no block.

        The block may have been opened by the chat template. A block that was never closed is all there is: the answer
        is then empty.
        """
        if not self._thinks:
            return text, None
        head, close, answer = text.partition(THINK_CLOSE)
        if head.lstrip().startswith(THINK_OPEN):
            head = head.lstrip().removeprefix(THINK_OPEN)
        elif not self._opens_thinking:
            return text, None
        return (answer.lstrip("\n") if close else ""), head.strip()

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

    def _tokens(self, rendered: str) -> list[int]:
        # A chat template writes the special tokens itself; so does text that already begins with one.
        bos = self._tokenizer.bos_token
        add_special = not self.chat and not (bos and rendered.startswith(bos))
        return list(self._tokenizer.encode(rendered, add_special_tokens=add_special, verbose=False))

    def _apply_template(self, messages: Sequence[Mapping[str, Any]]) -> str:
        conversation = [dict(message) for message in messages]
        if self._system is not None and conversation[0]["role"] not in ("system", "developer"):
            conversation.insert(0, {"role": "system", "content": self._system})
        return str(
            self._tokenizer.apply_chat_template(
                conversation, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        )

    def _dated_template(self, now: datetime) -> str | None:
        """The chat template in use, with what it asks of the clock written into it."""
        if not self.chat:
            return None
        template = str(self._tokenizer.get_chat_template())
        dated = _DATE_CALL.sub(lambda call: json.dumps(now.strftime(call["format"])), template)
        if _ANY_DATE_CALL.search(dated):
            raise ModelError(
                f"{self._folder}: its chat template asks for the date in a form that cannot be held still "
                "(strftime_now with another argument than a plain string), so prompts would change from day to day"
            )
        return dated

    def _probe(self) -> str:
        """What the chat template makes of a plain question; raises ModelError if it cannot."""
        try:
            return self._apply_template([{"role": "user", "content": _PROBE}])
        except TEMPLATE_ERRORS as error:
            with_system = " with input.system" if self._system is not None else ""
            raise ModelError(f"{self._folder}: its chat template fails{with_system}: {reason_of(error)}") from error

    def _require_fit(self, model_vocab_size: int | None) -> None:
        if model_vocab_size is not None and self.vocab_size > model_vocab_size:
            raise ModelError(
                f"{self._folder}: the tokenizer has {self.vocab_size} tokens and the model {model_vocab_size}; "
                "they do not belong together"
            )


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added = (number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset(added) | frozenset(tokenizer.all_special_ids)


def _is_byte_level(folder: Path) -> bool:
    """Whether tokens are bytes (GPT-2's way); mlx-lm then drops one space before the text."""
    path = folder / "tokenizer.json"
    decoder = read_json(path).get("decoder") if path.exists() else None
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
