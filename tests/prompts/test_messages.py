"""Conversations: what a chat template gets to see, and rows that hold none."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchgen.errors import InputError
from batchgen.types import Prompt
from tests.prompts.builders import invalid_text, open_table, prompts_of, write

TURN = pa.struct([("role", pa.string()), ("content", pa.string())])
CALL = pa.struct([("id", pa.string()), ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())]))])
RICH = pa.struct([*TURN, ("name", pa.string()), ("tool_calls", pa.list_(CALL))])


def only(folder: Path, messages: Any, kind: pa.DataType = RICH) -> tuple[Path, Prompt]:
    path = write(folder / "a.parquet", {"m": pa.array([messages], pa.list_(kind))})
    (prompt,) = prompts_of(path, messages="m")
    return path, prompt


def test_optional_fields_are_absent_whichever_file_lacks_them(tmp_path: Path) -> None:
    plain = pa.array([[{"role": "user", "content": "one"}]], pa.list_(TURN))
    rich = pa.array([[{"role": "user", "content": "two", "name": "Ann"}]], pa.list_(RICH))
    paths = [write(tmp_path / "a.parquet", {"m": plain}), write(tmp_path / "b.parquet", {"m": rich})]
    one, two = {"role": "user", "content": "one"}, {"role": "user", "content": "two", "name": "Ann"}
    assert [prompt.messages for prompt in prompts_of(paths, messages="m")] == [(one,), (two,)]
    assert [prompt.messages for prompt in prompts_of(paths[::-1], messages="m")] == [(two,), (one,)]


def test_nulls_inside_tool_calls_are_absent_too(tmp_path: Path) -> None:
    call = {"id": None, "function": {"name": "add", "arguments": None}}
    _, prompt = only(tmp_path, [{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert prompt.messages == ({"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]},)


@pytest.mark.parametrize(
    ("messages", "kind", "reason"),
    [
        (None, "missing_prompt", "m is null"),
        ([], "bad_messages", "m: the conversation is empty"),
        (
            [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}],
            "bad_messages",
            "m: message 1 has the role 'robot', which is none of system, developer, user, assistant, tool",
        ),
        ([{"role": None, "content": "a"}], "bad_messages", "m: message 0 has no role"),
        ([{"role": "user", "content": None}], "bad_messages", "m: message 0 (role user) has no content"),
        ([{"role": "assistant", "content": None}], "bad_messages", "m: message 0 (role assistant) has no content"),
        ([None], "bad_messages", "m: message 0 has no role"),
        ([{"role": "user", "content": " \n"}], "empty_prompt", "m: no message has any text"),
    ],
)
def test_rows_without_a_conversation(tmp_path: Path, messages: Any, kind: str, reason: str) -> None:
    path, prompt = only(tmp_path, messages)
    assert prompt.error is not None
    assert (prompt.error.kind, prompt.error.message) == (kind, f"{path}: row 0: {reason}")
    assert prompt.messages is None


def test_text_that_is_not_utf8_inside_a_conversation(tmp_path: Path) -> None:
    turns = pa.StructArray.from_arrays([pa.array(["user"] * 3), invalid_text([b"a", b"\xc9", b"b"])], fields=list(TURN))
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), turns)
    path = write(tmp_path / "a.parquet", {"m": column})
    prompts = prompts_of(path, messages="m")
    assert [prompt.error.kind if prompt.error else (prompt.messages or ())[0]["content"] for prompt in prompts] == [
        "a",
        "invalid_utf8",
        "b",
    ]


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        (pa.string(), "must be a list of struct with role and content"),
        (pa.list_(pa.string()), "must be a list of struct with role and content"),
        (pa.list_(pa.struct([("role", pa.string())])), "content in it must be a string"),
        (pa.list_(pa.struct([("content", pa.string())])), "role in it must be a string"),
        (
            pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(pa.string()))])),
            "content in it must be a string",
        ),
        (pa.list_(pa.struct([("role", pa.string()), ("content", pa.binary())])), "content in it must be a string"),
    ],
)
def test_columns_that_hold_no_conversations(tmp_path: Path, kind: pa.DataType, ending: str) -> None:
    path = write(tmp_path / "a.parquet", {"m": pa.nulls(1, kind)})
    with pytest.raises(InputError) as caught:
        open_table(path, messages="m")
    assert str(caught.value).startswith(f"{path}: column m, which input.messages names, is ")
    assert str(caught.value).endswith(ending)


def test_large_lists_and_large_strings_will_do(tmp_path: Path) -> None:
    kind = pa.large_list(pa.struct([("role", pa.large_string()), ("content", pa.large_string())]))
    path = write(tmp_path / "a.parquet", {"m": pa.array([[{"role": "user", "content": "x"}]], kind)})
    assert [prompt.messages for prompt in prompts_of(path, messages="m")] == [({"role": "user", "content": "x"},)]
