"""The run folder: commit and recovery through every crash, and refusals that say why."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.errors import FingerprintError, JournalError, RunLockedError
from batchgen.journal.disk import Disk
from batchgen.journal.record import FORMAT_VERSION, InputRecord
from batchgen.journal.run_folder import RunFolder, read_state, run_folder_path
from batchgen.schema import part_schema
from batchgen.types import RowKey
from tests.fakes import make_error, make_result

FILE = InputRecord("in.parquet", 1000, 20, "aa")
NUM_ROWS = 20

# Every step of a commit, and whether a process that ends there leaves the rows done.
COMMIT_STEPS = {
    "part.begin": False,
    "part.written": False,
    "part.synced": False,
    "part.renamed": False,
    "part.done": False,
    "log.begin": False,
    "log.written": True,
    "log.done": True,
}


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it."""


def open_folder(output: Path, reached: Callable[[str], None] = lambda step: None, **changes: Any) -> RunFolder:
    values: dict[str, Any] = {
        "fingerprint": {"sampling.temperature": 0.0, "sampling.max_tokens": 8},
        "input_files": [FILE],
        "count_rows": lambda: NUM_ROWS,
        "new_id": lambda: "folder",
        "now": "2030-01-01T00:00:00+00:00",
        "disk": Disk(reached),
        "warn": lambda message: pytest.fail(f"unexpected warning: {message}"),
    }
    return RunFolder.open(output, **(values | changes))


def commit_rows(output: Path, *groups: range) -> None:
    with open_folder(output) as folder:
        for group in groups:
            folder.commit([make_result(row) for row in group])


def committed_rows(folder: RunFolder) -> list[int]:
    """Row numbers in the parts that count, sorted; a row that stands twice is there twice."""
    tables = [pq.read_table(path) for path in folder.part_paths]
    return sorted(row for table in tables for row in table["row"].to_pylist())


def done_rows(folder: RunFolder) -> list[int]:
    return [row for row in range(NUM_ROWS + 5) if RowKey(row, 0) in folder.done]


def part_path(output: Path, number: int) -> Path:
    return run_folder_path(output) / "parts" / f"part-{number:06d}.parquet"


def test_committed_rows_are_done_for_the_next_process(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(4), range(4, 8))
    with open_folder(tmp_path / "o.parquet") as folder:
        assert done_rows(folder) == list(range(8))
        assert committed_rows(folder) == list(range(8))
        assert len(folder.done) == 8
        folder.commit([make_result(8)])
    assert [path.name for path in sorted(part_path(tmp_path / "o.parquet", 1).parent.iterdir())] == [
        "part-000001.parquet",
        "part-000002.parquet",
        "part-000003.parquet",
    ]


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_a_crash_at_any_step_of_a_commit_leaves_every_row_once(tmp_path: Path, step: str) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4))

    def crash(reached: str) -> None:
        if reached == step:
            raise Crash

    with pytest.raises(Crash), open_folder(output, crash) as folder:
        folder.commit([make_result(row) for row in range(4, 8)])
    warnings: list[str] = []
    with open_folder(output, warn=warnings.append) as folder:
        expected = list(range(8 if COMMIT_STEPS[step] else 4))
        assert done_rows(folder) == committed_rows(folder) == expected
        folder.commit([make_result(row) for row in range(len(expected), 12)])
    with open_folder(output) as folder:
        assert done_rows(folder) == committed_rows(folder) == list(range(12))
    assert bool(warnings) == (step in ("part.renamed", "part.done", "log.begin"))


def test_a_part_without_a_log_line_is_set_aside_with_its_bytes(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4))
    orphan = part_path(output, 7)
    orphan.write_bytes(part_path(output, 1).read_bytes())
    warnings: list[str] = []
    with open_folder(output, warn=warnings.append) as folder:
        assert committed_rows(folder) == [0, 1, 2, 3]
        folder.commit([make_result(9)])
        assert folder.part_paths[-1].name == "part-000008.parquet"
    assert not orphan.exists()
    assert orphan.with_name("part-000007.parquet.orphan").exists()
    assert len(warnings) == 1
    assert "part-000007.parquet.orphan" in warnings[0]


@pytest.mark.parametrize("damage", ["cut to 100 bytes", "empty", "last byte missing", "one bit", "missing"])
def test_a_damaged_part_is_set_aside_and_only_its_rows_run_again(tmp_path: Path, damage: str) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4), range(4, 8), range(8, 12))
    path = part_path(output, 2)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "one bit":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    else:
        path.write_bytes({"cut to 100 bytes": content[:100], "empty": b"", "last byte missing": content[:-1]}[damage])
    warnings: list[str] = []
    with open_folder(output, warn=warnings.append) as folder:
        assert done_rows(folder) == committed_rows(folder) == [0, 1, 2, 3, 8, 9, 10, 11]
        folder.commit([make_result(row) for row in range(4, 8)])
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert path.with_name(path.name + ".corrupt").exists() == (damage != "missing")
    with open_folder(output) as folder:
        assert done_rows(folder) == committed_rows(folder) == list(range(12))


def test_a_torn_last_line_is_dropped_and_all_earlier_ones_hold(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4), range(4, 8))
    log = run_folder_path(output) / "log.jsonl"
    torn = log.read_bytes()[:-20]
    log.write_bytes(torn)
    warnings: list[str] = []
    with open_folder(output, warn=warnings.append) as folder:
        assert done_rows(folder) == [0, 1, 2, 3]
        folder.commit([make_result(row) for row in range(4, 8)])
    assert ["last line is torn" in warning for warning in warnings] == [True, False]
    assert log.with_name("log.jsonl.corrupt").read_bytes() == torn
    with open_folder(output) as folder:
        assert done_rows(folder) == committed_rows(folder) == list(range(8))


def test_a_damaged_middle_line_costs_only_its_own_rows(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4), range(4, 8), range(8, 12))
    log = run_folder_path(output) / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b"#" + lines[1][1:] + lines[2])
    warnings: list[str] = []
    with open_folder(output, warn=warnings.append) as folder:
        assert done_rows(folder) == committed_rows(folder) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert any("line 2 is damaged" in warning for warning in warnings)
    with open_folder(output) as folder:
        assert done_rows(folder) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_part_that_repeats_rows_of_an_earlier_one_does_not_count(tmp_path: Path) -> None:
    output, other = tmp_path / "o.parquet", tmp_path / "p.parquet"
    commit_rows(output, range(4))
    commit_rows(other, range(1), range(2, 6))
    name = "part-000002.parquet"
    part_path(output, 2).write_bytes(part_path(other, 2).read_bytes())
    line = (run_folder_path(other) / "log.jsonl").read_bytes().splitlines(keepends=True)[1]
    with open(run_folder_path(output) / "log.jsonl", "ab") as log:
        log.write(line)
    warnings: list[str] = []
    with open_folder(output, warn=warnings.append) as folder:
        assert done_rows(folder) == committed_rows(folder) == [0, 1, 2, 3]
    assert [name in warning for warning in warnings] == [True]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("step", ["part.written", "part.renamed", "log.begin", "log.written"])
def test_a_failed_write_stops_with_the_file_named_and_loses_nothing_committed(
    tmp_path: Path, number: int, step: str
) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4))

    def fail(reached: str) -> None:
        if reached == step:
            raise OSError(number, os.strerror(number))

    name = "part-000002.parquet" if step.startswith("part") else "log.jsonl"
    with (
        open_folder(output, fail) as folder,
        pytest.raises(JournalError, match=rf"{name}: cannot be written \({os.strerror(number)}\)"),
    ):
        folder.commit([make_result(row) for row in range(4, 8)])
    with open_folder(output, warn=lambda message: None) as folder:
        assert done_rows(folder)[:4] == [0, 1, 2, 3]
        assert committed_rows(folder) == done_rows(folder)


def test_a_row_committed_twice_is_refused(tmp_path: Path) -> None:
    with open_folder(tmp_path / "o.parquet") as folder:
        folder.commit([make_result(3)])
        for again in ([make_result(3)], [make_result(4), make_result(4)]):
            with pytest.raises(JournalError, match="twice"):
                folder.commit(again)
        assert committed_rows(folder) == [3]


def test_all_parts_have_the_same_schema_whatever_the_rows_hold(tmp_path: Path) -> None:
    with open_folder(tmp_path / "o.parquet") as folder:
        folder.commit([make_result(row) for row in range(8)])
        folder.commit([make_error(8)])
        folder.commit([make_error(9), make_error(10, "invalid_utf8")])
        schemas = [pq.read_schema(path) for path in folder.part_paths]
        assert folder.num_errors == 3
    assert all(schema.equals(part_schema()) for schema in schemas)
    assert pa.concat_tables([pq.read_table(path) for path in folder.part_paths]).num_rows == 11


def test_an_empty_commit_writes_nothing(tmp_path: Path) -> None:
    with open_folder(tmp_path / "o.parquet") as folder:
        folder.commit([])
        assert list((folder.path / "parts").iterdir()) == []
        assert not (folder.path / "log.jsonl").exists()


def test_changed_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(4))
    with pytest.raises(FingerprintError, match=r"sampling\.temperature: 0\.0 -> 0\.7") as refusal:
        open_folder(tmp_path / "o.parquet", fingerprint={"sampling.temperature": 0.7, "sampling.max_tokens": 8}).close()
    assert "max_tokens" not in str(refusal.value)
    with open_folder(tmp_path / "o.parquet") as folder:
        assert done_rows(folder) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([InputRecord("in.parquet", 1000, 21, "ab")], "in.parquet had 20 rows and has 21"),
        ([InputRecord("in.parquet", 1001, 20, "ab")], "in.parquet had 1000 bytes and has 1001"),
        ([InputRecord("in.parquet", 1000, 20, "ab")], "in.parquet has other content at the same size"),
        ([FILE, InputRecord("more.parquet", 1, 1, "cc")], "more.parquet is new in the input"),
        ([], "in.parquet is no longer in the input"),
    ],
)
def test_changed_input_is_refused_with_what_changed(tmp_path: Path, files: list[InputRecord], message: str) -> None:
    commit_rows(tmp_path / "o.parquet", range(4))
    with pytest.raises(FingerprintError, match=message):
        open_folder(tmp_path / "o.parquet", input_files=files).close()


def test_input_files_in_another_order_are_refused(tmp_path: Path) -> None:
    files = [FILE, InputRecord("b.parquet", 1, 1, "bb")]
    with open_folder(tmp_path / "o.parquet", input_files=files) as folder:
        folder.commit([make_result(0)])
    with pytest.raises(FingerprintError, match="another order"):
        open_folder(tmp_path / "o.parquet", input_files=files[::-1]).close()


def test_files_that_were_only_moved_are_the_same_files(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(4))
    with open_folder(tmp_path / "o.parquet", input_files=[InputRecord("moved/in.parquet", 1000, 20, "aa")]) as folder:
        assert done_rows(folder) == [0, 1, 2, 3]


def test_the_digest_of_the_input_is_shown_only_where_no_file_tells_more(tmp_path: Path) -> None:
    with open_folder(tmp_path / "o.parquet", fingerprint={"input.content": "aa"}) as folder:
        folder.commit([make_result(0)])
    changed = {"fingerprint": {"input.content": "bb"}}
    with pytest.raises(FingerprintError, match="the input's columns that answers depend on hold other values"):
        open_folder(tmp_path / "o.parquet", **changed).close()
    with pytest.raises(FingerprintError, match="had 20 rows and has 21") as refusal:
        open_folder(tmp_path / "o.parquet", input_files=[InputRecord("in.parquet", 1, 21, "bb")], **changed).close()
    assert "other values" not in str(refusal.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(4))
    path = run_folder_path(tmp_path / "o.parquet") / "run.json"
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps(record | {"format_version": FORMAT_VERSION + 1}))
    with pytest.raises(JournalError, match=f"format version {FORMAT_VERSION + 1} is newer"):
        open_folder(tmp_path / "o.parquet").close()
    assert part_path(tmp_path / "o.parquet", 1).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format_version": 1}', b"\xff"])
def test_a_damaged_run_record_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    commit_rows(tmp_path / "o.parquet", range(4))
    (run_folder_path(tmp_path / "o.parquet") / "run.json").write_bytes(content)
    with pytest.raises(JournalError, match=r"run\.json: is not a run record"):
        open_folder(tmp_path / "o.parquet").close()


def test_a_missing_run_record_over_committed_rows_is_refused(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(4))
    (run_folder_path(tmp_path / "o.parquet") / "run.json").unlink()
    with pytest.raises(JournalError, match="though rows are committed"):
        open_folder(tmp_path / "o.parquet").close()


def test_rows_are_counted_once_and_recorded(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(1))
    with open_folder(tmp_path / "o.parquet", count_rows=lambda: pytest.fail("counted again")) as folder:
        assert folder.run.num_rows == NUM_ROWS


def test_attempts_count_the_starts(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    for number in (1, 2, 3):
        with open_folder(output) as folder:
            assert folder.begin_attempt(f"run-{number}", f"2030-01-0{number}", f"name: {number}\n") == number
    assert (run_folder_path(output) / "job.yaml").read_text() == "name: 3\n"
    with open_folder(output) as folder:
        assert [start.run_id for start in folder.run.starts] == ["run-1", "run-2", "run-3"]


def test_the_folder_keeps_its_id_and_its_digest_follows_the_rows(tmp_path: Path) -> None:
    digests = []
    for number in range(3):
        with open_folder(tmp_path / "o.parquet", new_id=lambda: f"folder-{number}") as folder:  # noqa: B023
            assert folder.run.folder_id == "folder-0"
            digests.append(folder.parts_digest)
            folder.commit([make_result(number)])
            assert folder.parts_digest != digests[-1]
    with open_folder(tmp_path / "o.parquet") as first, open_folder(tmp_path / "p.parquet") as other:
        assert first.parts_digest not in digests
        assert other.parts_digest == digests[0]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_folder(tmp_path / "o.parquet"), pytest.raises(RunLockedError, match=f"process {os.getpid()}"):
        open_folder(tmp_path / "o.parquet").close()


def test_a_refused_folder_is_free_again(tmp_path: Path) -> None:
    commit_rows(tmp_path / "o.parquet", range(1))
    with pytest.raises(FingerprintError):
        open_folder(tmp_path / "o.parquet", fingerprint={}).close()
    open_folder(tmp_path / "o.parquet").close()


def test_a_folder_without_rows_is_begun_again_for_a_job_that_was_put_right(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    with open_folder(output, now="2030-01-01T00:00:00+00:00") as folder:
        folder.begin_attempt("run-1", "2030-01-01T00:00:01+00:00", "name: x\n")
    changes = {"fingerprint": {"model.weights": "repaired"}, "input_files": [], "count_rows": lambda: 3}
    with open_folder(output, now="2030-01-02T00:00:00+00:00", **changes) as folder:
        assert (folder.run.num_rows, folder.run.begun) == (3, "2030-01-02T00:00:00+00:00")
        assert [start.run_id for start in folder.run.starts] == ["run-1"]
        folder.commit([make_result(0)])
    with pytest.raises(FingerprintError):
        open_folder(output).close()


def test_the_time_that_prompts_may_speak_of_stays(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    with open_folder(output, now="2030-01-01T23:59:00+00:00") as folder:
        folder.commit([make_result(0)])
    with open_folder(output, now="2030-01-02T00:01:00+00:00") as folder:
        assert folder.run.begun == "2030-01-01T23:59:00+00:00"


def test_state_can_be_read_while_a_run_holds_the_folder(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    assert read_state(output) is None
    with open_folder(output) as folder:
        folder.begin_attempt("run-1", "2030-01-01T00:00:00+00:00", "name: x\n")
        folder.commit([make_result(0), make_error(1), make_result(2)])
        state = read_state(output)
        assert state is not None
        assert (state.num_done, state.num_errors, state.num_rows, state.num_starts) == (3, 1, NUM_ROWS, 1)
        assert state.holder is not None
    state = read_state(output)
    assert state is not None
    assert state.holder is None


def test_a_part_that_cannot_be_read_is_not_taken_for_a_damaged_one(tmp_path: Path, monkeypatch: Any) -> None:
    output = tmp_path / "o.parquet"
    commit_rows(output, range(4))

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("batchgen.journal.parts.hashlib.file_digest", refuse)
    with pytest.raises(JournalError, match=r"part-000001.parquet: cannot be read \(Input/output error\)"):
        open_folder(output).close()
    assert part_path(output, 1).exists()
