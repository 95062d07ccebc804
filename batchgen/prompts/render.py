"""From the columns of one row to a `Prompt`: a template's text, a column's text, or a conversation.

What a row lacks becomes a `RowError` that names file and row; what a file lacks is an InputError when the input is
opened.
"""

from typing import Any, Protocol

import jinja2
import pyarrow as pa

from batchgen.errors import InputError
from batchgen.job.spec import InputSpec
from batchgen.prompts.columns import is_binary, is_text, require_column
from batchgen.prompts.messages import BadMessagesError, conversation, is_blank, require_messages_type
from batchgen.prompts.template import NullValueError, Template
from batchgen.prompts.values import Unreadable
from batchgen.types import ErrorKind, Prompt, RowError

# What an expression of a template may raise: a template is someone's code.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Renderer(Protocol):
    """One of the three ways to make a prompt."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        ...

    def prompt(self, row: int, place: str, values: dict[str, Any]) -> Prompt:
        """The prompt of a row with these values of its columns; `place` is its file and row."""
        ...


def renderer(spec: InputSpec, schema: pa.Schema, source: object) -> Renderer:
    """The way that the job asks for. Raises InputError if the columns of `source` cannot serve it."""
    if spec.messages is not None:
        require_messages_type(require_column(schema, spec.messages, "input.messages", source), source)
        return _MessagesRenderer(spec.messages)
    if spec.column is not None:
        field = require_column(schema, spec.column, "input.column", source)
        if not is_text(field.type):
            hint = "write it as text" if is_binary(field.type) else "use input.prompt to make text of it"
            raise InputError(f"{source}: column {field.name}, which input.column names, is {field.type}; {hint}")
        return _ColumnRenderer(spec.column)
    assert spec.prompt is not None
    template = Template(spec.prompt)
    columns = template.columns(schema.names, source)
    for name in columns:
        if is_binary(schema.field(name).type):
            raise InputError(
                f"{source}: column {name}, which input.prompt names, is {schema.field(name).type}; write it as text"
            )
    return _TemplateRenderer(template, columns)


class _TemplateRenderer:
    def __init__(self, template: Template, columns: tuple[str, ...]) -> None:
        self._template = template
        self.columns = columns

    def prompt(self, row: int, place: str, values: dict[str, Any]) -> Prompt:
        try:
            text = self._template.render(values)
            text.encode()
        except NullValueError as error:
            return _failed(row, place, "missing_prompt", f"{error.message}, and the template prints it")
        except TEMPLATE_ERRORS as error:
            return _failed(row, place, "bad_template", f"the template fails: {reason_of(error)}")
        return _text_prompt(row, place, text)


class _ColumnRenderer:
    def __init__(self, name: str) -> None:
        self.columns = (name,)

    def prompt(self, row: int, place: str, values: dict[str, Any]) -> Prompt:
        text = values[self.columns[0]]
        if text is None:
            return _failed(row, place, "missing_prompt", f"{self.columns[0]} is null")
        return _text_prompt(row, place, text)


class _MessagesRenderer:
    def __init__(self, name: str) -> None:
        self.columns = (name,)

    def prompt(self, row: int, place: str, values: dict[str, Any]) -> Prompt:
        name = self.columns[0]
        if values[name] is None:
            return _failed(row, place, "missing_prompt", f"{name} is null")
        try:
            messages = conversation(values[name])
        except BadMessagesError as error:
            return _failed(row, place, "bad_messages", f"{name}: {error}")
        if is_blank(messages):
            return _failed(row, place, "empty_prompt", f"{name}: no message has any text")
        return Prompt(row, messages=messages, place=place)


def unreadable(row: int, place: str, values: dict[str, Any]) -> Prompt | None:
    """The prompt of a row with a value that could not be read, or None if all could."""
    for value in values.values():
        if isinstance(value, Unreadable):
            return _failed(row, place, value.kind, value.reason)
    return None


def reason_of(error: Exception) -> str:
    """An error's message as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _text_prompt(row: int, place: str, text: str) -> Prompt:
    if not text.strip():
        return _failed(row, place, "empty_prompt", "the prompt is empty")
    return Prompt(row, text=text, place=place)


def _failed(row: int, place: str, kind: ErrorKind, reason: str) -> Prompt:
    return Prompt(row, error=RowError(kind, f"{place}: {reason}"), place=place)
