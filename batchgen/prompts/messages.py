"""Conversations from a messages column: list of struct with `role` and `content`, and whatever else a chat template
reads.

Fields that are null in a row are absent in its messages, so that files with more fields and files with fewer read
alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from batchgen.errors import InputError
from batchgen.prompts.columns import is_text

ROLES = ("system", "developer", "user", "assistant", "tool")


class BadMessagesError(Exception):
    """A row's conversation cannot be given to a chat template; the message says which of its messages, and why."""


def require_messages_type(field: pa.Field, source: object) -> None:
    """Raises InputError if a column cannot hold conversations."""
    kind = field.type
    if pat.is_null(kind):
        return
    is_list = pat.is_list(kind) or pat.is_large_list(kind) or pat.is_list_view(kind) or pat.is_large_list_view(kind)
    if not is_list or not pat.is_struct(kind.value_type):
        raise InputError(
            f"{source}: column {field.name}, which input.messages names, is {kind}, and must be a list of struct "
            "with role and content"
        )
    fields = {child.name: child.type for child in kind.value_type}
    for name in ("role", "content"):
        if name not in fields or not is_text(fields[name]):
            raise InputError(
                f"{source}: column {field.name}, which input.messages names, is {kind}, and {name} in it must be a "
                "string"
            )


def conversation(value: Sequence[Mapping[str, Any] | None]) -> tuple[Mapping[str, Any], ...]:
    """The messages of one row, null fields dropped. Raises BadMessagesError if there are none or one cannot stand."""
    if not value:
        raise BadMessagesError("the conversation is empty")
    return tuple(_message(number, message) for number, message in enumerate(value))


def is_blank(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no message says anything."""
    return not any(message.get("tool_calls") or str(message.get("content", "")).strip() for message in messages)


def _message(number: int, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    message: Mapping[str, Any] = _without_nulls(value or {})
    role = message.get("role")
    if role is None:
        raise BadMessagesError(f"message {number} has no role")
    if role not in ROLES:
        raise BadMessagesError(f"message {number} has the role {role!r}, which is none of {', '.join(ROLES)}")
    if "content" not in message and not (role == "assistant" and message.get("tool_calls")):
        raise BadMessagesError(f"message {number} (role {role}) has no content")
    return message


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
