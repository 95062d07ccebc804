"""Whose the final file is: ours and current, ours and old, or not ours."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.output.final import METADATA_KEY, Mark, final_state, make_metadata, read_metadata

SCHEMA = pa.schema([("a", pa.int64())])
MARK = Mark("folder", "digest")


def write(path: Path, mark: Mark, schema: pa.Schema = SCHEMA) -> None:
    marked = schema.with_metadata({METADATA_KEY: make_metadata(mark, {"job": {"name": "x"}})})
    pq.write_table(pa.Table.from_pylist([], schema=marked), path)


@pytest.mark.parametrize(
    ("mark", "schema", "state"),
    [
        (MARK, SCHEMA, "current"),
        (Mark("folder", "other rows"), SCHEMA, "outdated"),
        (MARK, pa.schema([("a", pa.int32())]), "outdated"),
        (Mark("other folder", "digest"), SCHEMA, "foreign"),
    ],
)
def test_a_file_of_ours(tmp_path: Path, mark: Mark, schema: pa.Schema, state: str) -> None:
    write(tmp_path / "o.parquet", mark, schema)
    assert final_state(tmp_path / "o.parquet", MARK, SCHEMA) == state
    assert read_metadata(tmp_path / "o.parquet") == {
        "job": {"name": "x"},
        "run": {"folder_id": mark.folder_id, "parts_digest": mark.parts_digest},
    }


def test_no_file(tmp_path: Path) -> None:
    assert final_state(tmp_path / "o.parquet", MARK, SCHEMA) == "absent"
    assert read_metadata(tmp_path / "o.parquet") is None


@pytest.mark.parametrize("kind", ["text", "empty", "folder", "plain", "cut", "dangling", "null", "list"])
def test_anything_else_is_not_ours(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "o.parquet"
    if kind == "folder":
        path.mkdir()
    elif kind == "plain":
        pq.write_table(pa.table({"a": [1]}), path)
    elif kind == "cut":
        write(path, MARK)
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "dangling":
        path.symlink_to(tmp_path / "gone")
    elif kind in ("null", "list"):
        metadata = {METADATA_KEY: b"null" if kind == "null" else b"[]"}
        pq.write_table(pa.Table.from_pylist([], schema=SCHEMA.with_metadata(metadata)), path)
    else:
        path.write_bytes(b"" if kind == "empty" else b"some text")
    assert final_state(path, MARK, SCHEMA) == "foreign"
