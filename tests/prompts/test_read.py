"""Rows: how they are numbered, which are in, which are skipped, and what their ids must be."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import InputError
from tests.prompts.builders import invalid_text, open_table, outcomes, prompts_of, write


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    row_group_size=st.sampled_from([1, 7, 64, 1000]),
    modulus=st.integers(1, 4),
    done=st.sets(st.integers(0, 300)),
)
def test_rows_are_numbered_over_all_files_whatever_is_filtered_or_skipped(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], row_group_size: int, modulus: int, done: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        rows = list(range(start, start + size))
        columns = {"n": pa.array(rows, pa.int64()), "t": pa.array([f"row {row}" for row in rows], pa.string())}
        write(folder / f"{number}.parquet", columns, row_group_size)
    table = open_table(folder, prompt="{{ t }}", where=f"n % {modulus} = 0", id="n")
    expected = [row for row in range(sum(sizes)) if row % modulus == 0]
    assert (table.num_rows, table.count()) == (sum(sizes), len(expected))
    prompts = list(table.prompts(lambda row: row in done))
    assert [(prompt.row, prompt.text) for prompt in prompts] == [
        (row, f"row {row}") for row in expected if row not in done
    ]
    kept = [values for batch in table.kept() for values in batch.to_pylist()]
    assert kept == [{"n": row, "t": f"row {row}", "row": row} for row in expected]


@pytest.mark.parametrize("num_row_groups", [0, 1])
def test_no_rows(tmp_path: Path, num_row_groups: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("t", pa.string())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for _ in range(num_row_groups):
            writer.write_table(schema.empty_table())
    assert pq.ParquetFile(tmp_path / "a.parquet").metadata.num_row_groups == num_row_groups
    for keys in ({"column": "t"}, {"prompt": "{{ t }}", "where": "length(t) > 1", "id": "id"}):
        table = open_table(tmp_path, **keys)
        assert (table.num_rows, table.count(), list(table.prompts())) == (0, 0, [])
        assert sum(batch.num_rows for batch in table.kept()) == 0
        assert table.kept_schema == schema


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.binary_view(),
        pa.list_(pa.string_view()),
        pa.struct([("x", pa.string_view())]),
        pa.dictionary(pa.int32(), pa.string()),
        pa.map_(pa.string(), pa.int8()),
        pa.null(),
    ],
)
def test_columns_of_every_type_are_carried_past_a_filter(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"n": list(range(6)), "c": pa.nulls(6, kind)})
    opened = open_table(write(tmp_path / "a.parquet", table), prompt="{{ n }}", where="n IN (0, 2, 3, 5)")
    (batch,) = opened.kept()
    assert batch.column("row").to_pylist() == batch.column("n").to_pylist() == [0, 2, 3, 5]
    assert batch.schema.field("c").type == kind
    assert outcomes(list(opened.prompts(lambda row: row == 2))) == ["0", "3", "5"]


def test_a_filter_that_leaves_nothing(tmp_path: Path) -> None:
    table = open_table(write(tmp_path / "a.parquet", {"t": ["a", "b"]}), column="t", where="t = 'c'")
    assert (table.num_rows, table.count(), list(table.prompts())) == (2, 0, [])
    assert sum(batch.num_rows for batch in table.kept()) == 0


WHERE = {
    "n": [1, 2, 3, None],
    "t": ["a", "bb", None, "dd"],
    "over": [True, False, True, None],
    "weird name": [1, 1, 0, 0],
    "label": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "gone": pa.nulls(4),
}


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("n > 1", [1, 2]),
        ("n IN (1, 3)", [0, 2]),
        ("NOT n IN (1, 3)", [1]),
        ("n IS NULL", [3]),
        ("length(t) = 2", [1, 3]),
        ("t LIKE 'b%' OR n = 1", [0, 1]),
        ("n BETWEEN 2 AND 3 AND t IS NOT NULL", [1]),
        ('"over"', [0, 2]),
        ('"weird name" = 1', [0, 1]),
        ("label = 'x'", [0, 2]),
        ("gone IS NULL AND n = 2", [1]),
        ("t = 'over and select'", []),
        ("t = '5' OR n = 1.0", [0]),
        ("t <> '= 5'", [0, 1, 3]),
        ("gone = 5 OR n <= 1", [0]),
        ('("over" = true) = (n > 1)', [2]),
        ("CASE WHEN n = 1 THEN true ELSE false END", [0]),
    ],
)
def test_where(tmp_path: Path, expression: str, rows: list[int]) -> None:
    path = write(tmp_path / "a.parquet", WHERE)
    assert [prompt.row for prompt in prompts_of(path, prompt="x", where=expression)] == rows


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nn > 1", "input.where: no column nn; did you mean n"),
        ("T = 'a'", "input.where: no column T; the columns are n, t, over, weird name, label, gone"),
        ("n >", "input.where: sql parser error: "),
        ("n; DROP TABLE rows", "input.where: sql parser error: "),
        ("nope(n)", "input.where: unsupported function 'nope'"),
        ("t > 1", "input.where: cannot compare string with numeric type"),
        *(
            (expression, "input.where: compares text with a number, and they are never equal; write what text is")
            for expression in (
                "t = 5",
                "t=5",
                "5 == t",
                "t <> 5",
                "t != 5.5",
                "NOT (t = 5) AND n = 1",
            )
        ),
        ("n", "input.where: gives Int64, and must give true or false"),
        ("'text'", "input.where: gives String, and must give true or false"),
        ("true", "input.where: names no column; the columns are n, t, over, weird name, label, gone"),
        ("n) AS a, (n", "input.where: must be one expression that is true or false for each row"),
        ("n = 1) FROM rows --", "input.where: must be one expression that is true or false for each row"),
        ("sum(n) > 1", "input.where: must be one expression that is true or false for each row"),
        ("count(*) > n", "input.where: "),
        ("n > avg(n)", "input.where: "),
        ("row_number() OVER (ORDER BY n) > 1", "input.where: OVER looks at other rows, and where is asked of one row"),
        ("n IN (SELECT n FROM rows)", "input.where: SELECT looks at other rows, and where is asked of one row"),
        ("over", "input.where: over looks at other rows, and where is asked of one row at a time (a column of that"),
        ("CAST(t AS INT) > 1", "input.where: conversion from `str` to `i32` failed"),
    ],
)
def test_where_that_cannot_be_asked(tmp_path: Path, expression: str, message: str) -> None:
    path = write(tmp_path / "a.parquet", WHERE)
    with pytest.raises(InputError, match=re.escape(message)):
        open_table(path, prompt="x", where=expression)


def test_a_filter_that_fails_late_fails_before_anything_runs_and_says_where(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"t": ["1"] * 600 + ["x"]})
    with pytest.raises(InputError, match=re.escape(f"(in the rows from {path}: row 512 on)")):
        open_table(path, column="t", where="CAST(t AS INT) > 0")


def test_a_filter_cannot_ask_rows_whose_text_is_not_utf8(tmp_path: Path) -> None:
    texts = invalid_text([b"yes", b"\xc9", b"no", None])
    path = write(tmp_path / "a.parquet", {"t": texts, "p": ["0", "1", "2", "3"]})
    table = open_table(path, column="p", where="t = 'yes'")
    assert table.count() == 2
    prompts = list(table.prompts())
    assert outcomes(prompts) == ["0", "invalid_utf8"]
    assert prompts[1].error is not None
    assert prompts[1].error.message == f"{path}: row 1: a column that input.where reads is not UTF-8"
    assert [batch.column("row").to_pylist() for batch in table.kept()] == [[0, 1]]


def test_repeated_ids_are_named_with_both_places(tmp_path: Path) -> None:
    one = write(tmp_path / "a.parquet", {"id": ["a", "b", "a"]})
    other = write(tmp_path / "b.parquet", {"id": ["c", "b", "a", "c", "d", "c", *"eeff"]})
    with pytest.raises(InputError) as caught:
        open_table([one, other], column="id", id="id")
    assert str(caught.value) == (
        "input.id: column id has ids that stand more than once: "
        f"a ({one}: row 0, and {one}: row 2, and 1 more); b ({one}: row 1, and {other}: row 1); "
        f"c ({other}: row 0, and {other}: row 3, and 1 more); and 2 more"
        "; make them different, or leave input.id out to go by row number"
    )


def test_ids_that_are_equal_only_as_text_are_two_types(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.parquet", {"id": [1]}), write(tmp_path / "b.parquet", {"id": ["1"]})]
    with pytest.raises(InputError, match=r"column id is int64 in .*a\.parquet and string in .*b\.parquet"):
        open_table(paths, prompt="x", id="id")


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([2**63 - 1, -1, 2**61 - 1, 0]),
        pa.array([2**64 - 1, 2**61 - 1, 0], pa.uint64()),
        pa.array(["1", "01", "1 ", ""]),
        pa.array(["a", "b", "c"], pa.string_view()),
        pa.array(["a", "b"]).dictionary_encode(),
        invalid_text([b"\xc9", b"\xc8"]),
    ],
)
def test_different_ids(tmp_path: Path, ids: pa.Array) -> None:
    # hash(-1) == hash(-2) and hash(2**61 - 1) == hash(0): equal hashes are no equal ids.
    path = write(tmp_path / "a.parquet", {"id": ids})
    assert open_table(path, prompt="x", id="id").count() == len(ids)


def test_repeated_ids_of_whole_numbers_and_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": pa.array([5, 6, 5], pa.int8()), "raw": invalid_text([b"\xc9"] * 3)})
    with pytest.raises(InputError, match=r"more than once: 5 \("):
        open_table(path, prompt="x", id="id")
    with pytest.raises(InputError, match="more than once: \ufffd \\("):
        open_table(path, prompt="x", id="raw")


def test_rows_that_are_out_need_no_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": ["a", None, "a", "b"], "n": [1, 0, 0, 1]})
    assert open_table(path, prompt="x", id="id", where="n = 1").count() == 2
    with pytest.raises(InputError) as caught:
        open_table(path, prompt="x", id="id")
    assert str(caught.value) == f"{path}: row 1: the id (column id) is null; every row needs one"


@pytest.mark.parametrize("ids", [pa.array([1.0]), pa.array([True]), pa.array([["a"]]), pa.array([b"a"])])
def test_columns_that_are_no_ids(tmp_path: Path, ids: pa.Array) -> None:
    path = write(tmp_path / "a.parquet", {"id": ids})
    with pytest.raises(InputError, match=r"column id, which input\.id names, is .*, and must be whole numbers or text"):
        open_table(path, prompt="x", id="id")
    with pytest.raises(InputError, match=r"no column idd, which input\.id names; did you mean id"):
        open_table(path, prompt="x", id="idd")


def test_identity_follows_what_prompts_are_made_of(tmp_path: Path) -> None:
    def identity(columns: dict[str, list[object]], **keys: object) -> dict[str, str]:
        return open_table(write(tmp_path / "a.parquet", columns), **({"prompt": "{{ t }}"} | keys)).identity()

    first = identity({"id": [1, 2], "t": ["a", "b"], "n": [1, 1]})
    assert identity({"id": [1, 2], "t": ["a", "x"], "n": [1, 1]}) != first
    assert identity({"id": [1, 2], "t": ["a", "b"], "n": [1, 9]}) == first
    assert identity({"id": [1, 2], "t": ["a", "b"], "n": [1, 1]}, where="n > 0") != first
