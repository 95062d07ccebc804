"""What is wrong with a value in a column is said as of a value in a column: no advice for YAML, no library's words."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.prompts.builders import open_table, write

TEXTS = pa.list_(pa.string())
BIASES = pa.map_(pa.int64(), pa.float64())


@pytest.mark.parametrize(
    ("key", "kind", "value", "message"),
    [
        ("stop", TEXTS, ["x"] * 70, "is a list; must have at most 64 entries, and has 70"),
        ("stop", TEXTS, ["a", None], "has at [1] null; must be text"),
        ("stop", TEXTS, ["a", "y" * 1030], f'has at [1] "{"y" * 56}...; must be at most 1024 characters, and has 1030'),
        ("choice", TEXTS, [], "is a list; must have at least 1 entries, and has 0"),
        ("choice", TEXTS, [None], "has at [0] null; must be text"),
        ("stop_token_ids", pa.list_(pa.int64()), [1, None], "has at [1] null; must be a whole number"),
        ("logit_bias", BIASES, [(5, 1.0), (5, 2.0)], "cannot be read: c has a map in which a key stands twice"),
        ("logit_bias", BIASES, [(number, 1.0) for number in range(1030)],
         "is a mapping; must have at most 1024 entries, and has 1030"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_value_that_cannot_stand(tmp_path: Path, key: str, kind: pa.DataType, value: Any, message: str) -> None:
    path = write(tmp_path / "in.parquet", {"p": ["hello", "world"], "c": pa.array([value, None], kind)})
    bad, good = open_table(path, column="p", sampling={key: {"column": "c"}}).prompts()
    assert bad.error is not None
    assert bad.error.message == f"{path}: row 0: column c, which sampling.{key} names, {message}"
    assert good.error is None


def test_a_map_for_a_template_whose_key_stands_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"c": pa.array([[(5, 1.0), (5, 2.0)], [(5, 1.0)]], BIASES)})
    bad, good = open_table(path, prompt="{{ c }}").prompts()
    assert bad.error is not None
    assert "c has a map in which a key stands twice" in bad.error.message
    assert good.error is None
