"""Templates: what they make of a row, how nulls behave in them, and what is refused before any row."""

import datetime
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchgen.errors import InputError
from tests.prompts.builders import invalid_text, open_table, outcomes, prompts_of, write

ROW: dict[str, Any] = {
    "t": ["<Hello> & é"],
    "n": pa.array([None], pa.string()),
    "num": [3],
    "d": pa.array([{"a": 1, "b": None}], pa.struct([("a", pa.int32()), ("b", pa.string())])),
    "items": [["x", None]],
    "when": pa.array([datetime.datetime(2024, 3, 1, 12, 30)], pa.timestamp("ns")),
    "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
    "range": ["R"],
}


def rendered(folder: Path, template: str) -> str:
    """The row's prompt, or the kind and the reason of its error."""
    path = write(folder / "a.parquet", ROW)
    (prompt,) = prompts_of(path, prompt=template)
    if prompt.error is None:
        return str(prompt.text)
    return f"{prompt.error.kind}: {prompt.error.message.removeprefix(f'{path}: row 0: ')}"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Say: {{ t }}", "Say: <Hello> & é"),
        ("no column at all", "no column at all"),
        ("Say:\n{{ t }}\n", "Say:\n<Hello> & é"),
        ("{{ t | upper }} {{ num * 2 }}", "<HELLO> & É 6"),
        ("{{ d.a }} {{ d['a'] }} {{ items[0] }} {{ pairs.k }}", "1 1 x 1"),
        ("{{ when.year }} {{ when.strftime('%H:%M') }}", "2024 12:30"),
        ("{% for word in t.split() %}{{ loop.index }}{{ word }} {% endfor %}", "1<Hello> 2& 3é "),
        ("{% set q = t %}{{ q }}", "<Hello> & é"),
        ("{% if n %}Hint: {{ n }}{% endif %}Go", "Go"),
        ("{{ n or 'none' }}", "none"),
        ("{{ n | default('nothing') }}", "nothing"),
        ("{{ n is none }} {{ n == none }} {{ n is not none }} {{ n is defined }}", "True True False True"),
        ("{{ d | tojson }} {{ t | tojson }}", '{"a": 1, "b": null} "<Hello> & é"'),
        ("{{ n | tojson }} {{ when | tojson }}", 'null "2024-03-01 12:30:00"'),
        ("{{ d.b | default('b') }}", "b"),
        ("{{ items | select | list | join }}", "x"),
        ("{{ range }}", "R"),
        ("{% for i in [1, 2] %}{{ i }}{% endfor %}", "12"),
    ],
)
def test_text(tmp_path: Path, template: str, text: str) -> None:
    assert rendered(tmp_path, template) == text


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ n }}", "n"),
        ("{{ n | trim }}", "n"),
        ("{{ n | upper }}", "n"),
        ("{{ n | string }}", "n"),
        ("{{ n ~ 'x' }}", "n"),
        ("{{ 'x' + n }}", "n"),
        ("{{ '%s' % n }}", "n"),
        ("{{ n | length }}", "n"),
        ("{{ n.x }}", "n"),
        ("{{ 'x' in n }}", "n"),
        ("{% for x in n %}{{ x }}{% endfor %}", "n"),
        ("{{ [n] }}", "n"),
        ("{{ d.b }}", "d.b"),
        ("{{ d }}", "d.b"),
        ("{{ items | join(', ') }}", "items[1]"),
    ],
)
def test_a_null_is_never_printed(tmp_path: Path, template: str, name: str) -> None:
    assert rendered(tmp_path, template) == f"missing_prompt: {name} is null, and the template prints it"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ d.c }}", "'dict object' has no attribute 'c'"),
        ("{{ num / 0 }}", "division by zero"),
        ("{{ num + t }}", "unsupported operand type(s) for +: 'int' and 'str'"),
        ("{{ t.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ items[7] }}", "list object has no element 7"),
        ("{{ '\\ud800' }}", "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"),
    ],
)
def test_a_template_that_fails_for_a_row(tmp_path: Path, template: str, reason: str) -> None:
    assert rendered(tmp_path, template) == f"bad_template: the template fails: {reason}"


@pytest.mark.parametrize("template", ["{{ '' }}", "{% if n %}x{% endif %}", " \n{{ ' ' }}\u3000"])
def test_no_text_is_an_empty_prompt(tmp_path: Path, template: str) -> None:
    assert rendered(tmp_path, template) == "empty_prompt: the prompt is empty"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ tt }}", "{path}: no column tt, which input.prompt names; did you mean t"),
        ("{{ xyz.a }}", "{path}: no column xyz, which input.prompt names; its columns are t, n, num, d, items, when"),
        ("{{ lipsum() }}", "{path}: no column lipsum, which input.prompt names; "),
        ("{{ t | random }}", "input.prompt: cannot be used as a template: No filter named 'random'"),
        ("{% include 'x' %}", "input.prompt: a template may not include, import or extend another; write it out"),
        ("{% import 'x' as y %}", "input.prompt: a template may not include, import or extend another; write it out"),
    ],
)
def test_refused_before_any_row(tmp_path: Path, template: str, message: str) -> None:
    path = write(tmp_path / "a.parquet", ROW)
    with pytest.raises(InputError, match=re.escape(message.format(path=path))):
        open_table(path, prompt=template)


def test_bytes_are_no_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"b": [b"x"], "n": [1]})
    with pytest.raises(InputError) as caught:
        open_table(path, prompt="{{ b }}")
    assert str(caught.value) == f"{path}: column b, which input.prompt names, is binary; write it as text"
    with pytest.raises(InputError) as caught:
        open_table(path, column="b")
    assert str(caught.value) == f"{path}: column b, which input.column names, is binary; write it as text"
    with pytest.raises(InputError, match=r"is int64; use input\.prompt to make text of it"):
        open_table(path, column="n")
    with pytest.raises(InputError, match=r"no column mm, which input\.column names; its columns are b, n"):
        open_table(path, column="mm")


def test_a_column_is_the_prompt_as_it_is(tmp_path: Path) -> None:
    values = ["{{ t }}", " a\n", None, "", " \t\n"]
    path = write(tmp_path / "a.parquet", {"p": values, "label": pa.array(values).dictionary_encode()})
    expected = ["{{ t }}", " a\n", "missing_prompt", "empty_prompt", "empty_prompt"]
    assert outcomes(prompts_of(path, column="p")) == expected
    assert outcomes(prompts_of(path, column="label")) == expected
    assert [prompt.error.message for prompt in prompts_of(path, column="p") if prompt.error] == [
        f"{path}: row 2: p is null",
        f"{path}: row 3: the prompt is empty",
        f"{path}: row 4: the prompt is empty",
    ]


def test_a_column_of_nulls_is_rows_without_a_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"p": pa.nulls(2)})
    assert outcomes(prompts_of(path, column="p")) == ["missing_prompt"] * 2
    assert outcomes(prompts_of(path, prompt="{{ p }}")) == ["missing_prompt"] * 2
    assert outcomes(prompts_of(path, messages="p")) == ["missing_prompt"] * 2


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_that_is_not_utf8_spoils_its_own_row_alone(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [b"caf\xc3\xa9", b"R\xc9UNION", None, b"fine", b"\xff\xfe"]
    path = write(tmp_path / "a.parquet", {"t": invalid_text(texts, kind), "ok": list("abcde")})
    expected = ["café", "invalid_utf8", "missing_prompt", "fine", "invalid_utf8"]
    assert outcomes(prompts_of(path, column="t")) == expected
    assert outcomes(prompts_of(path, prompt="{{ t }}")) == expected
    assert outcomes(prompts_of(path, prompt="{{ ok }}")) == list("abcde")
    errors = [prompt.error.message for prompt in prompts_of(path, column="t") if prompt.error]
    assert errors[0] == f"{path}: row 1: t is not UTF-8 (byte 1 is 0xc9)"


def test_values_that_python_cannot_hold_spoil_their_own_row_alone(tmp_path: Path) -> None:
    days = pa.array([0, 2**31 - 1, None], pa.date32())
    pairs = pa.array([[("a", 1)], [("a", 1), ("a", 2)], []], pa.map_(pa.string(), pa.int32()))
    path = write(tmp_path / "a.parquet", {"day": days, "pairs": pairs})
    assert outcomes(prompts_of(path, prompt="{{ day or 'no day' }}")) == ["1970-01-01", "bad_template", "no day"]
    assert outcomes(prompts_of(path, prompt="{{ pairs.a | default('no a') }}")) == ["1", "bad_template", "no a"]
