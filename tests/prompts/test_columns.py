"""Files that differ: in ways that do not matter they read as one, else both are named."""

import datetime
import decimal
import itertools
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.errors import InputError
from batchgen.schema import RESULT_NAMES
from tests.prompts.builders import invalid_text, open_table, outcomes, prompts_of, write

TURN = pa.struct([("role", pa.string()), ("content", pa.string())])
TURN_WITH_NAME = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())])


def pair(tmp_path: Path, one: pa.Array, other: pa.Array) -> list[Path]:
    return [write(tmp_path / f"{name}.parquet", {"c": column}) for name, column in (("a", one), ("b", other))]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.string_view(), pa.large_string()),
        (pa.large_string(), pa.string_view(), pa.large_string()),
        (pa.string(), pa.string(), pa.string()),
        (pa.string_view(), pa.string_view(), pa.string_view()),
        (pa.null(), pa.string(), pa.string()),
        (pa.null(), pa.null(), pa.null()),
        (pa.null(), pa.timestamp("us", "Europe/Paris"), pa.timestamp("us", "Europe/Paris")),
        (pa.null(), pa.list_(TURN), pa.list_(TURN)),
        (pa.null(), pa.list_view(pa.int8()), pa.list_view(pa.int8())),
        (pa.list_(TURN), pa.list_(TURN_WITH_NAME), pa.list_(TURN_WITH_NAME)),
        (
            pa.list_(pa.string()),
            pa.list_(pa.field("element", pa.large_string())),
            pa.list_(pa.field("item", pa.large_string())),
        ),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.large_string()),
        (
            pa.map_(pa.string(), pa.string()),
            pa.map_(pa.string(), pa.large_string()),
            pa.map_(pa.string(), pa.large_string()),
        ),
        (
            pa.struct([("x", pa.int8()), ("y", pa.null())]),
            pa.struct([("y", pa.string()), ("x", pa.int8())]),
            pa.struct([("x", pa.int8()), ("y", pa.string())]),
        ),
    ],
)
def test_types_that_unify(tmp_path: Path, one: pa.DataType, other: pa.DataType, expected: pa.DataType) -> None:
    table = open_table(pair(tmp_path, pa.nulls(2, one), pa.nulls(1, other)), prompt="x")
    assert table.kept_schema == pa.schema([("c", expected)])
    batches = list(table.kept())
    assert [batch.schema.field("c").type for batch in batches] == [expected, expected]
    assert [batch.column("row").to_pylist() for batch in batches] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.string()),
        (pa.int32(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.list_(pa.field("element", pa.string())), pa.string()),
        (pa.struct([("x", pa.int8())]), pa.struct([("x", pa.string())])),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    ],
)
def test_types_that_do_not_name_both_files(tmp_path: Path, one: pa.DataType, other: pa.DataType) -> None:
    paths = pair(tmp_path, pa.nulls(1, one), pa.nulls(1, other))
    with pytest.raises(InputError) as caught:
        open_table(paths, prompt="x")
    assert str(caught.value) == (
        f"input.path: the type of column c is {one} in {paths[0]} and {other} in {paths[1]}; "
        "write the files with one type"
    )


def test_the_file_that_brought_a_type_is_the_one_named(tmp_path: Path) -> None:
    kinds = [pa.null(), pa.int64(), pa.string()]
    paths = [write(tmp_path / f"{n}.parquet", {"c": pa.nulls(1, kind)}) for n, kind in enumerate(kinds)]
    with pytest.raises(InputError, match=re.escape(f"int64 in {paths[1]} and string in {paths[2]}")):
        open_table(paths, prompt="x")


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_text_is_text_whoever_wrote_it(tmp_path: Path, order: tuple[str, ...]) -> None:
    kinds = {"a": pa.string(), "b": pa.large_string(), "c": pa.string_view()}
    for name, kind in kinds.items():
        write(tmp_path / f"lang={name}" / "x.parquet", {"t": pa.array([f"é {name}", None], kind)})
    paths = [tmp_path / f"lang={name}" for name in order]
    table = open_table(paths, column="t")
    assert table.schema == pa.schema([("t", pa.large_string())])
    assert outcomes(list(table.prompts())) == [text for name in order for text in (f"é {name}", "missing_prompt")]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_column_of_nulls_in_one_file_takes_the_other_file_s_type(tmp_path: Path, order: str) -> None:
    write(tmp_path / "a.parquet", {"t": ["1", "2"], "hint": pa.nulls(2)})
    write(tmp_path / "b.parquet", {"t": ["3"], "hint": ["be brief"]})
    table = open_table(
        [tmp_path / f"{name}.parquet" for name in order], prompt="{% if hint %}{{ hint }}: {% endif %}{{ t }}"
    )
    assert table.kept_schema.field("hint").type == pa.string()
    assert sorted(outcomes(list(table.prompts()))) == ["1", "2", "be brief: 3"]


def test_nullability_does_not_matter_and_the_output_is_nullable(tmp_path: Path) -> None:
    strict = pa.table({"id": [1, 2]}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    paths = [write(tmp_path / "a.parquet", strict), write(tmp_path / "b.parquet", {"id": [3]})]
    assert open_table(paths, prompt="{{ id }}", id="id").kept_schema == pa.schema([pa.field("id", pa.int64())])
    assert outcomes(prompts_of(paths[::-1], prompt="{{ id }}")) == ["3", "1", "2"]
    assert open_table(paths[0], prompt="x").kept_schema == strict.schema


def test_column_order_does_not_matter(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.parquet", {"x": ["1"], "y": [2]}),
        write(tmp_path / "b.parquet", {"y": [4], "x": ["3"]}),
    ]
    table = open_table(paths, prompt="{{ x }}{{ y }}")
    assert outcomes(list(table.prompts())) == ["12", "34"]
    assert table.kept_schema.names == ["x", "y"]
    assert [batch.to_pydict() for batch in table.kept()] == [
        {"x": ["1"], "y": [2], "row": [0]},
        {"x": ["3"], "y": [4], "row": [1]},
    ]


def test_partition_columns_are_not_added(tmp_path: Path) -> None:
    write(tmp_path / "lang=en" / "x.parquet", {"id": [1], "prompt": ["hello"]})
    table = open_table(tmp_path, column="prompt", keep=["id", "prompt"])
    assert table.kept_schema.names == ["id", "prompt"]
    assert open_table(tmp_path, column="prompt").kept_schema.names == ["id", "prompt"]
    with pytest.raises(InputError, match=r"no column lang, which input\.keep names"):
        open_table(tmp_path, column="prompt", keep=["lang"])


def test_a_column_that_only_some_files_have(tmp_path: Path) -> None:
    few, many = write(tmp_path / "a.parquet", {"t": ["1"]}), write(tmp_path / "b.parquet", {"t": ["2"], "x": [1]})
    with pytest.raises(InputError, match=re.escape(f"{few}: no column x, which {many} has; name the columns to carry")):
        open_table([many, few], column="t")
    with pytest.raises(InputError, match=re.escape(f"{many}: has the column x, which {few} does not have; list the")):
        open_table([few, many], column="t")
    with pytest.raises(InputError, match=re.escape(f"{few}: no column x, which input.prompt names; its columns are t")):
        open_table([many, few], prompt="{{ x }}", keep=["t"])
    assert outcomes(prompts_of([few, many], column="t", keep=["t"])) == ["1", "2"]


def test_repeated_column_names_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table([pa.array(["x"])] * 4, names=["t", "u", "t", "u"]))
    with pytest.raises(InputError, match=r"a\.parquet: has more than one column named t, u; rename them"):
        open_table(path, column="t")


@pytest.mark.parametrize("name", [*RESULT_NAMES, "row"])
def test_every_name_that_the_output_has_for_itself_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.parquet", {"t": ["x"], name: ["y"]})
    with pytest.raises(InputError) as caught:
        open_table(path, column="t")
    assert str(caught.value) == (
        f"{path}: the output has columns of its own named {name}; list the columns to carry in input.keep "
        "without these, or rename them in the input"
    )
    assert outcomes(prompts_of(path, prompt=f"{{{{ t }}}} {{{{ {name} }}}}", keep=["t"])) == ["x y"]


def test_running_on_our_own_output_names_every_collision(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": [1], "status": ["ok"], "completion": ["c"], "acceptance_rate": [0.5]})
    with pytest.raises(InputError, match="named status, completion;"):
        open_table(path, column="completion")


KEPT: dict[str, tuple[pa.DataType, list[Any]]] = {
    "offset": (pa.timestamp("us", "-03:00"), [datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC), None]),
    "paris": (pa.timestamp("ms", "Europe/Paris"), [datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC), None]),
    "nanos": (pa.timestamp("ns"), [1_234_567_891, None]),
    "day": (pa.date32(), [datetime.date(1969, 12, 31), None]),
    "price": (pa.decimal128(38, 9), [decimal.Decimal("12345678901234567890.123456789"), None]),
    "vector": (pa.list_(pa.float32()), [[0.1, float("inf"), None], []]),
    "pairs": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], None]),
    "nested": (pa.struct([("x", pa.list_(pa.struct([("y", pa.uint8())])))]), [{"x": [{"y": 255}, None]}, None]),
    "label": (pa.dictionary(pa.int32(), pa.string()), ["red", None]),
    "blob": (pa.binary(), [b"\xff\x00", None]),
    "half": (pa.float16(), [0.5, None]),
    "nothing": (pa.null(), [None, None]),
    "view": (pa.string_view(), ["a long string that does not fit inside a view", None]),
    "large": (pa.large_list(pa.large_string()), [["x"], None]),
    "fixed": (pa.list_(pa.int16(), 2), [[1, 2], None]),
    "took": (pa.duration("ms"), [5, None]),
}


def test_kept_columns_keep_types_and_values(tmp_path: Path) -> None:
    table = pa.table({name: pa.array(values, kind) for name, (kind, values) in KEPT.items()})
    path = write(tmp_path / "a.parquet", table)
    opened = open_table(path, prompt="x")
    assert opened.kept_schema == table.schema
    carried = pa.Table.from_batches(list(opened.kept()))
    assert carried.drop_columns(["row"]).equals(table)
    pq.write_table(carried, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").drop_columns(["row"]).equals(table)


def test_kept_text_that_is_not_utf8_is_carried_as_it_is(tmp_path: Path) -> None:
    values = [b"R\xc9UNION", b"ok"]
    write(tmp_path / "a.parquet", {"t": ["x", "y"], "city": invalid_text(values)})
    write(tmp_path / "b.parquet", {"t": ["z"], "city": invalid_text([b"\xff"], pa.string_view())})
    batches = list(open_table(tmp_path, column="t").kept())
    assert [value for batch in batches for value in batch.column("city").cast(pa.large_binary()).to_pylist()] == [
        *values,
        b"\xff",
    ]


def test_keep_chooses_and_orders(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"a": [1], "b": [2], "c": ["3"]})
    batch = next(open_table(path, column="c", keep=["c", "a"]).kept())
    assert batch.to_pydict() == {"c": ["3"], "a": [1], "row": [0]}
    assert batch.schema.field("row") == pa.field("row", pa.int64(), nullable=False)
    assert next(open_table(path, column="c", keep=[]).kept()).to_pydict() == {"row": [0]}


def test_require_kept(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "a.parquet", {"task": [1], "t": ["x"]}), column="t", keep=["task"])
    table.require_kept("task", "report.group_by")
    with pytest.raises(InputError, match=r"no column tsk, which report\.group_by names; did you mean task"):
        table.require_kept("tsk", "report.group_by")
