"""Which files an input is, and that they are read by small batches and not when they have changed."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.errors import InputError
from batchgen.prompts.files import content_digest, find_files, read_batches, record_file
from tests.prompts.builders import open_table, outcomes, prompts_of, write


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def found(folder: Path, *paths: str) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in find_files([f"{folder}/{path}" for path in paths])]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.parquet"], ["a.parquet"]),
        (["B.PARQUET"], ["B.PARQUET"]),
        (["*.parquet"], ["a.parquet", "c.parquet"]),
        (["c.parquet", "a.parquet"], ["c.parquet", "a.parquet"]),
        (["hive"], ["hive/lang=de/x.parquet", "hive/lang=en/x.parquet", "hive/lang=en/y.parquet"]),
        (["hive/lang=*"], ["hive/lang=de/x.parquet", "hive/lang=en/x.parquet", "hive/lang=en/y.parquet"]),
        (["hive/**/x.parquet"], ["hive/lang=de/x.parquet", "hive/lang=en/x.parquet"]),
        (["spark"], ["spark/x.parquet/part-0.parquet"]),
        (["spark/x.parquet"], ["spark/x.parquet/part-0.parquet"]),
    ],
)
def test_files_globs_and_folders(tmp_path: Path, paths: list[str], expected: list[str]) -> None:
    touch(tmp_path, "c.parquet", "a.parquet", "B.PARQUET", "notes.txt")
    touch(tmp_path, "hive/lang=en/y.parquet", "hive/lang=en/x.parquet", "hive/lang=de/x.parquet", "hive/.x.parquet")
    touch(tmp_path, "hive/_SUCCESS", "hive/_delta_log/1.parquet", "spark/x.parquet/part-0.parquet", "spark/_a.parquet")
    assert found(tmp_path, *paths) == expected


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    touch(tmp_path, "[1].parquet", "1.parquet")
    assert found(tmp_path, "[1].parquet") == ["[1].parquet"]
    assert found(tmp_path, "[12].parquet") == ["1.parquet"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.parquet", "none.parquet: no such file or folder (paths are relative to {cwd})"),
        ("none*.parquet", "none*.parquet: matches no file (paths are relative to {cwd})"),
        ("rows.jsonl", "rows.jsonl: only .parquet files can be read; convert it, for example with polars"),
        ("*.csv", "t.csv: only .parquet files can be read; convert it, for example with polars"),
        ("empty", "empty: the folder has no .parquet file in it"),
        ("x" * 300, "x" * 300 + ": cannot be looked up: File name too long"),
    ],
)
def test_what_is_no_input(tmp_path: Path, path: str, message: str) -> None:
    touch(tmp_path, "rows.jsonl", "t.csv", "empty/readme.md")
    with pytest.raises(InputError) as caught:
        find_files([f"{tmp_path}/{path}"])
    assert str(caught.value) == f"input.path: {tmp_path}/" + message.format(cwd=Path.cwd())


def test_remote_paths_are_refused() -> None:
    with pytest.raises(InputError, match=r"hf://datasets/a/b: only local files can be read; download it first"):
        find_files(["hf://datasets/a/b"])


def test_a_file_named_twice_is_refused_also_through_a_link(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"b\.parquet is read twice \(also as .*a\.parquet\)"):
        find_files([str(tmp_path)])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"abcdefghijk\xff\xff\xff\x7fPAR1"])
def test_files_that_are_no_parquet(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(f"{path}: cannot be read as Parquet: ")):
        record_file(path)


def test_a_damaged_page_is_an_input_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"t": [f"text {number}" for number in range(1000)]})
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=re.escape(f"{path}: cannot be read: ")):
        prompts_of(path, column="t")


def test_a_file_that_changed_since_it_was_recorded_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"t": ["one", "two"]})
    table = open_table(path, column="t")
    write(path, {"t": ["one", "ten"]})
    with pytest.raises(
        InputError, match=r"a\.parquet: was changed while the job was using it; put the original file back"
    ):
        next(table.prompts())
    with pytest.raises(InputError, match="was changed"):
        next(table.kept())


def test_no_read_is_larger_than_a_small_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", {"t": [str(number) for number in range(2000)], "n": list(range(2000))})

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("an input may not be read by row group or as a whole")

    for name in ("read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, refuse)
    for name in ("read_table", "read_pandas"):
        monkeypatch.setattr(pq, name, refuse)
    sizes: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def watch(self: pq.ParquetFile, batch_size: int, columns: list[str]) -> object:
        sizes.append(batch_size)
        return iter_batches(self, batch_size, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watch)
    table = open_table(path, column="t", where="n % 2 = 0", id="n")
    assert outcomes(list(table.prompts()))[-2:] == ["1996", "1998"]
    assert sum(batch.num_rows for batch in table.kept()) == 1000
    assert len(sizes) == 4
    assert max(sizes) <= 512


def test_only_needed_columns_are_read_for_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", {"big": ["x" * 100], "t": ["a"], "n": [1], "lang": ["en"]})
    read: list[list[str]] = []
    iter_batches = pq.ParquetFile.iter_batches

    def watch(self: pq.ParquetFile, batch_size: int, columns: list[str]) -> object:
        read.append(columns)
        return iter_batches(self, batch_size, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watch)
    table = open_table(path, prompt="{{ t }} in {{ lang }}", where="n > 0")
    assert outcomes(list(table.prompts())) == ["a in en"]
    assert read == [["n"], ["t", "lang"]]


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_know_their_rows(tmp_path: Path, batch_size: int) -> None:
    sizes = [5, 0, 11, 1]
    paths = [
        write(tmp_path / f"{number}.parquet", {"n": pa.array(range(size), pa.int64())}, row_group_size=4)
        for number, size in enumerate(sizes)
    ]
    files = [record_file(path)[0] for path in paths]
    rows = [
        (batch.row + index, batch.place(index), value)
        for batch in read_batches(files, ["n"], batch_size)
        for index, value in enumerate(batch.data.column("n").to_pylist())
    ]
    expected = [(path, value) for path, size in zip(paths, sizes, strict=True) for value in range(size)]
    assert rows == [(row, f"{path}: row {value}", value) for row, (path, value) in enumerate(expected)]


def test_the_content_digest_follows_the_values_of_its_columns_only(tmp_path: Path) -> None:
    def digest(columns: dict[str, list[str]], of: list[str]) -> str:
        return content_digest([record_file(write(tmp_path / "a.parquet", columns))[0]], of)

    first = digest({"t": ["aa", "mm", "zz"], "other": ["p", "q", "r"]}, ["t"])
    # Neither the length nor the smallest and largest value differ, so a footer might not tell.
    assert digest({"t": ["aa", "nn", "zz"], "other": ["p", "q", "r"]}, ["t"]) != first
    assert digest({"t": ["aa", "mm", "zz"], "other": ["p", "x", "r"]}, ["t"]) == first
    assert digest({"t": ["aa", "mm", "zz"], "other": ["p", "x", "r"]}, ["t", "other"]) != first
