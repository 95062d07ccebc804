"""A model's chat template as a job uses it: with the job's system message, and its date held still."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from batchgen.errors import ModelError
from batchgen.prompts.render import TEMPLATE_ERRORS, reason_of

_PROBE = "batchgen"
_THINKING = "enable_thinking"
_DATE_CALL = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>[^'"\\]*)(?P=quote)\s*\)""")
_ANY_DATE_CALL = re.compile(r"strftime_now\s*\(")

Message = Mapping[str, Any]


class ChatTemplate:
    """The template of a tokenizer that has one. Raises ModelError if it does not even render a plain question.

    `reads_thinking` says that it can be asked to open a thinking block or not to.
    """

    def __init__(self, tokenizer: Any, folder: Path, system: str | None) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self._system = system
        self._source = str(tokenizer.get_chat_template())
        self.pin_time(datetime.now(UTC))
        self._require_working()
        self.reads_thinking = reads_variable(self._source, _THINKING)

    def pin_time(self, time: datetime) -> None:
        """Writes what it asks of the clock into it."""
        self._dated = _DATE_CALL.sub(lambda call: json.dumps(time.strftime(call["format"])), self._source)
        if _ANY_DATE_CALL.search(self._dated):
            raise ModelError(
                f"{self._folder}: its chat template asks for the date in a form that cannot be held still "
                "(strftime_now with another argument than a plain string), so prompts would change from day to day"
            )

    def apply(self, messages: Sequence[Message], thinking: bool | None = None) -> str:
        """The prompt for a conversation, up to where the answer begins; raises one of TEMPLATE_ERRORS.

        `thinking` is what it is told of thinking; nothing if None.
        """
        conversation = [dict(message) for message in messages]
        if self._system is not None and conversation[0]["role"] not in ("system", "developer"):
            conversation.insert(0, {"role": "system", "content": self._system})
        told = {} if thinking is None else {_THINKING: thinking}
        return str(
            self._tokenizer.apply_chat_template(
                conversation, chat_template=self._dated, tokenize=False, add_generation_prompt=True, **told
            )
        )

    def _require_working(self) -> None:
        try:
            self.apply([{"role": "user", "content": _PROBE}])
        except TEMPLATE_ERRORS as error:
            with_system = " with input.system" if self._system is not None else ""
            raise ModelError(f"{self._folder}: its chat template fails{with_system}: {reason_of(error)}") from error


class _Generation(Extension):
    """The tag by which chat templates mark the assistant's part; what is in it is as if it stood there alone."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def reads_variable(template: str, name: str) -> bool:
    """Whether what a chat template makes can depend on a variable that it is given."""
    environment = SandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", _Generation])
    try:
        return name in meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateSyntaxError:
        # A tag that only transformers knows: then whether it is mentioned.
        return re.search(rf"\b{re.escape(name)}\b", template) is not None
