"""A row's own sampling values: what its columns, their defaults and the job's own values make together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchgen.types import Grammar, Prompt, Sampling
from tests.prompts.builders import open_table, write

TYPES: Mapping[str, pa.DataType] = {
    "n": pa.int64(),
    "t": pa.float64(),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "flag": pa.bool_(),
    "biases": pa.list_(pa.struct([("token_id", pa.int64()), ("bias", pa.float64())])),
}


def prompt_of(folder: Path, sampling: Mapping[str, Any], **values: Any) -> Prompt:
    """The prompt of a row whose column `<type>` or `<type>_<anything>` has each of these values."""
    columns = {name: pa.array([value], TYPES[name.partition("_")[0]]) for name, value in values.items()}
    path = write(folder / "in.parquet", {"prompt": ["hello"], **columns})
    (prompt,) = open_table(path, column="prompt", sampling=sampling).prompts()
    return prompt


def refusal_of(folder: Path, sampling: Mapping[str, Any], **values: Any) -> str:
    prompt = prompt_of(folder, sampling, **values)
    assert prompt.error is not None
    assert prompt.error.kind == "bad_sampling"
    return prompt.error.message.removeprefix(f"{folder / 'in.parquet'}: row 0: ")


def column(name: str, default: Any = None) -> dict[str, Any]:
    return {"column": name, "default": default}


TWO_GRAMMARS = "must have only one of json_schema, regex, choice, and has regex and choice"
NO_THINKING = "thinking_budget has no effect with thinking: false; leave one of them out"


@pytest.mark.parametrize(
    ("sampling", "values", "message"),
    [
        ({"regex": "a+", "choice": column("texts")}, {"texts": ["x"]}, TWO_GRAMMARS),
        ({"regex": column("text", "a+"), "choice": column("texts")}, {"text": None, "texts": ["x"]}, TWO_GRAMMARS),
        ({"regex": column("text"), "choice": column("texts")}, {"text": "b", "texts": ["x"]}, TWO_GRAMMARS),
        ({"max_tokens": column("n"), "min_tokens": 9}, {"n": 5}, "min_tokens is 9, and max_tokens only 5"),
        # All columns are null, and what is left contradicts itself.
        ({"max_tokens": column("n"), "min_tokens": 300}, {"n": None}, "min_tokens is 300, and max_tokens only 256"),
        ({"thinking": column("flag"), "thinking_budget": 3}, {"flag": False}, NO_THINKING),
        ({"thinking": column("flag"), "thinking_budget": column("n")}, {"flag": False, "n": 3}, NO_THINKING),
    ],
)
def test_values_that_contradict_each_other(
    tmp_path: Path, sampling: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    assert refusal_of(tmp_path, sampling, **values) == message


def test_values_that_go_together(tmp_path: Path) -> None:
    keys = {"regex": column("text"), "choice": column("texts", ["x", "y"])}
    sampling = prompt_of(tmp_path, keys, text=None, texts=None).sampling
    assert sampling == Sampling(grammar=Grammar("choice", '["x", "y"]'))
    keys = {"thinking": column("flag"), "thinking_budget": column("n")}
    assert prompt_of(tmp_path, keys, flag=False, n=None).sampling == Sampling(thinking=False)
    assert prompt_of(tmp_path, keys, flag=None, n=4).sampling == Sampling(thinking_budget=4)
    assert prompt_of(tmp_path, keys, flag=True, n=4).sampling == Sampling(thinking=True, thinking_budget=4)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("temperature", 1e-39, "is 1e-39; must be 0 or at least 1e-05"),
        ("top_p", 1e-46, "is 1e-46; must be at least 1e-06"),
        ("repetition_penalty", 1e-46, "is 1e-46; must be at least 0.001"),
    ],
)
def test_numbers_that_are_too_small_for_32_bits(tmp_path: Path, key: str, value: float, message: str) -> None:
    keys = {"temperature": column("t_own", 0.7)} | {key: column("t")}
    values = {"t": value} if key == "temperature" else {"t": value, "t_own": None}
    assert refusal_of(tmp_path, keys, **values) == f"column t, which sampling.{key} names, {message}"


@pytest.mark.parametrize(
    ("key", "name", "value", "message"),
    [
        ("logit_bias", "text", '{"5": 1, "5": 2}', 'is "{\\"5\\": 1, \\"5\\": 2}"; names 5 twice'),
        ("json_schema", "text", '{"a": 1, "a": 2}', 'is "{\\"a\\": 1, \\"a\\": 2}"; names a twice'),
        (
            "logit_bias",
            "biases",
            [{"token_id": 5, "bias": 1.0}, None],
            "is a list; must have no null among its entries",
        ),
        ("logit_bias", "biases", [None], "is a list; must have no null among its entries"),
        ("logit_bias", "biases", [{"token_id": 5, "bias": None}], "has at 5 null; must be a number"),
        (
            "stop",
            "texts",
            ["a", None],
            "has at [1] null; must be text",
        ),
    ],
)
def test_values_that_cannot_stand(tmp_path: Path, key: str, name: str, value: Any, message: str) -> None:
    expected = f"column {name}, which sampling.{key} names, {message}"
    assert refusal_of(tmp_path, {key: column(name)}, **{name: value}) == expected
