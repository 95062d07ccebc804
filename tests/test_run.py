"""Whole runs over a scripted decoder: every row once, whatever happens, and nothing decoded that was done."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import EngineError, FingerprintError, InputError, JournalError, ModelError, OutputError
from batchgen.journal.disk import Disk
from batchgen.run import Outcome, Surroundings, run_job
from batchgen.schema import RESULT_NAMES, result_schema
from tests.fakes import FakeBackend, FakeClock, FakeDecoder
from tests.jobs import write_input, write_job

# The steps of a commit and of writing the final file, each with the steps before it already done.
PART_STEPS = [f"part.{step}" for step in ("begin", "written", "synced", "renamed", "done")]
LOG_STEPS = [f"log.{step}" for step in ("begin", "written", "done")]
FINAL_STEPS = [f"final.{step}" for step in ("begin", "written", "synced", "renamed", "done")]


def run(job: Path, backend: FakeBackend | None = None, **surroundings: Any) -> Outcome:
    values: dict[str, Any] = {"console": io.StringIO(), "clock": FakeClock(tick=1.0)}
    return run_job(job, backend or FakeBackend(), Surroundings(**(values | surroundings)))


def final_table(folder: Path) -> pa.Table:
    return pq.read_table(folder / "out" / "done.parquet")


def assert_all_rows(folder: Path, num_rows: int) -> None:
    """Each input row once, in order, with the completion of its own prompt."""
    table = final_table(folder)
    assert table["id"].to_pylist() == [f"id-{row}" for row in range(num_rows)]
    assert table["completion"].to_pylist() == [f"<{row}>" for row in range(num_rows)]


def fail_at_step(last: int) -> FakeBackend:
    """A backend whose decoder dies at its step `last`."""

    def on_step(number: int) -> None:
        if number == last:
            raise RuntimeError("out of memory")

    return FakeBackend(make_decoder=lambda: FakeDecoder(on_step=on_step))


def drive(job: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.drive", "run", str(job)],
        env=os.environ | environment,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )


def start_driving(job: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.drive", "run", str(job)],
        env=os.environ | environment,
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.01)
    pytest.fail(f"{path} never appeared")


def done_rows(folder: Path) -> list[int]:
    """The rows that the log counts, sorted."""
    lines = (folder / "out" / "done.parquet.run" / "log.jsonl").read_text().splitlines()
    ranges = [key_range for line in lines for key_range in json.loads(line)["keys"]]
    return sorted(row for _, start, stop in ranges for row in range(start, stop))


def test_a_run_makes_the_file(tmp_path: Path) -> None:
    write_input(tmp_path, 20)
    outcome = run(write_job(tmp_path))
    assert_all_rows(tmp_path, 20)
    assert (outcome.state, outcome.exit_code, outcome.num_rows, outcome.num_done) == ("finished", 0, 20, 20)
    assert final_table(tmp_path).column_names == ["id", "task", "text", *RESULT_NAMES]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["done.parquet", "done.parquet.run"]


def test_figures_of_each_row_are_there_and_agree(tmp_path: Path) -> None:
    write_input(tmp_path, 3)
    run(write_job(tmp_path))
    for row in final_table(tmp_path).to_pylist():
        assert row["status"] == "ok"
        assert row["completion_tokens"] == len(row["completion"]) + 1
        assert row["prompt_tokens"] == len(row["text"])
        assert (row["verify_passes"], row["drafted_tokens"], row["accepted_tokens"]) == (3, 9, 5)
        assert row["acceptance_length"] == (5 + 3) / 3
        assert row["acceptance_counts"] == [1, 0, 1, 1]
        assert row["prefill_s"] + row["decode_s"] == 1.0
        assert row["tokens_per_s"] == row["completion_tokens"]
        assert row["queue_s"] >= 0
        assert (row["sample"], row["attempt"], row["seed"]) == (0, 1, 0)


def test_rows_without_passes_or_time_have_nulls_for_rates(tmp_path: Path) -> None:
    write_input(tmp_path, 2)
    backend = FakeBackend(make_decoder=lambda: FakeDecoder(answer=lambda request: "", accepted=()))
    outcome = run(write_job(tmp_path), backend)
    table = final_table(tmp_path)
    assert table["completion"].to_pylist() == ["", ""]
    assert table["status"].to_pylist() == ["ok", "ok"]
    assert table["finish_reason"].to_pylist() == ["stop", "stop"]
    assert table["acceptance_length"].to_pylist() == [None, None]
    assert outcome.totals.num_empty == 2


def test_metadata_says_what_made_the_file(tmp_path: Path) -> None:
    write_input(tmp_path, 2)
    run(write_job(tmp_path, drafter="some/drafter"))
    metadata = json.loads(pq.read_metadata(tmp_path / "out" / "done.parquet").metadata[b"batchgen"])
    assert metadata["job"]["sampling"]["max_tokens"] == 8
    assert metadata["model"] == {"config.json": "aa"}
    assert metadata["drafter"] == {"config.json": "dd"}
    assert metadata["versions"]["pyarrow"] == pa.__version__


def test_one_bad_row_is_one_error_row(tmp_path: Path) -> None:
    write_input(tmp_path, 20, bad=[17])
    outcome = run(write_job(tmp_path))
    table = final_table(tmp_path)
    assert table["id"].to_pylist() == [f"id-{row}" for row in range(20)]
    assert [row for row, status in enumerate(table["status"].to_pylist()) if status == "error"] == [17]
    assert table["error_kind"][17].as_py() == "prompt_too_long"
    assert (outcome.exit_code, outcome.num_errors) == (1, 1)
    assert pq.read_schema(tmp_path / "out" / "done.parquet").field("error_kind").type == pa.string()


def test_nothing_but_bad_rows(tmp_path: Path) -> None:
    write_input(tmp_path, 5, bad=range(5))
    assert run(write_job(tmp_path)).exit_code == 1
    assert final_table(tmp_path)["completion"].to_pylist() == [None] * 5


def test_no_rows_make_a_file_with_the_schema_without_loading_weights(tmp_path: Path) -> None:
    write_input(tmp_path, 8)
    backend = FakeBackend()
    outcome = run(write_job(tmp_path, input__where="id = 'nobody'"), backend)
    assert (outcome.state, outcome.exit_code, backend.decoders) == ("finished", 0, [])
    assert final_table(tmp_path).num_rows == 0
    assert list(final_table(tmp_path).schema)[3:] == list(result_schema())


def test_a_filter_leaves_gaps_that_are_no_fault(tmp_path: Path) -> None:
    write_input(tmp_path, 9)
    run(write_job(tmp_path, input__where="task = 'odd'"))
    assert final_table(tmp_path)["completion"].to_pylist() == ["<1>", "<3>", "<5>", "<7>"]


def test_a_failed_engine_keeps_what_finished_and_only_the_rest_is_decoded_again(tmp_path: Path) -> None:
    write_input(tmp_path, 20)
    job = write_job(tmp_path)
    with pytest.raises(EngineError, match="out of memory"):
        run(job, fail_at_step(9))
    done = done_rows(tmp_path)
    assert 0 < len(done) < 20
    assert not (tmp_path / "out" / "done.parquet").exists()
    backend, console = FakeBackend(), io.StringIO()
    run(job, backend, console=console)
    assert sorted([*done, *backend.admitted_rows]) == list(range(20))
    assert f"{len(done)}/20 rows" in console.getvalue()
    assert_all_rows(tmp_path, 20)
    attempts = final_table(tmp_path)["attempt"].to_pylist()
    assert [row for row, attempt in enumerate(attempts) if attempt == 1] == done
    assert len(dict.fromkeys(final_table(tmp_path)["run_id"].to_pylist())) == 2


def test_rows_are_resumed_inside_one_row_group(tmp_path: Path) -> None:
    write_input(tmp_path, 100)
    assert pq.ParquetFile(tmp_path / "in.parquet").num_row_groups == 1
    job = write_job(tmp_path)
    with pytest.raises(EngineError):
        run(job, fail_at_step(70))
    num_done = len(done_rows(tmp_path))
    assert 50 < num_done < 100
    backend = FakeBackend()
    run(job, backend)
    assert len(backend.admitted_rows) == 100 - num_done
    assert_all_rows(tmp_path, 100)


@given(
    num_rows=st.sampled_from([0, 1, 7, 16, 17, 60, 61]),
    max_rows=st.sampled_from([1, 3, 17, 50]),
    commits=st.sampled_from(["1ms", "5s", "50s", "1h"]),
    fail_at=st.none() | st.integers(1, 40),
)
@settings(max_examples=25, deadline=None)
def test_rows_out_are_rows_in(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, max_rows: int, commits: str, fail_at: int | None
) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_input(folder, num_rows)
    job = write_job(folder, engine__max_rows=max_rows, output__checkpoint_every=commits)
    if fail_at is not None:
        try:
            run(job, fail_at_step(fail_at))
        except EngineError:
            assert len(done_rows(folder)) < num_rows if (folder / "out/done.parquet.run/log.jsonl").exists() else True
    run(job)
    assert_all_rows(folder, num_rows)
    shutil.rmtree(folder)


def test_a_finished_job_is_a_no_op(tmp_path: Path) -> None:
    write_input(tmp_path, 6, bad=[2])
    job = write_job(tmp_path)
    run(job)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (tmp_path / "out").rglob("*.[pjy]*")}
    backend = FakeBackend()
    outcome = run(job, backend)
    assert (outcome.state, outcome.exit_code, backend.decoders) == ("already complete", 1, [])
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in before}


def test_a_lost_final_file_is_made_again_without_decoding(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    job = write_job(tmp_path)
    run(job)
    (tmp_path / "out" / "done.parquet").unlink()
    backend = FakeBackend()
    outcome = run(job, backend)
    assert (outcome.state, outcome.exit_code, backend.decoders) == ("finished", 0, [])
    assert_all_rows(tmp_path, 6)


def test_other_kept_columns_make_the_file_again_without_decoding(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    run(write_job(tmp_path))
    backend = FakeBackend()
    outcome = run(write_job(tmp_path, input__keep=["id"]), backend)
    assert (outcome.state, backend.decoders) == ("finished", [])
    assert final_table(tmp_path).column_names == ["id", *RESULT_NAMES]


def test_a_file_of_someone_else_is_never_overwritten(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    job = write_job(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "done.parquet").write_bytes(b"precious")
    backend = FakeBackend()
    with pytest.raises(OutputError, match=r"done\.parquet exists and was not made by"):
        run(job, backend)
    assert (tmp_path / "out" / "done.parquet").read_bytes() == b"precious"
    assert backend.decoders == []


def test_a_lost_part_is_decoded_again_and_said(tmp_path: Path) -> None:
    write_input(tmp_path, 16)
    job = write_job(tmp_path)
    run(job)
    (tmp_path / "out" / "done.parquet").unlink()
    parts = sorted((tmp_path / "out" / "done.parquet.run" / "parts").iterdir())
    rows = sorted(pq.read_table(parts[1])["row"].to_pylist())
    parts[1].unlink()
    backend, console = FakeBackend(), io.StringIO()
    run(job, backend, console=console)
    assert backend.admitted_rows == rows
    assert "warning: " in console.getvalue()
    assert parts[1].name in console.getvalue()
    assert_all_rows(tmp_path, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling__max_tokens": 9}, r"sampling\.max_tokens: 8 -> 9"),
        ({"input__column": None, "input__prompt": "Say {{ text }}"}, r"input\.prompt: null -> "),
        ({"input__where": "task = 'odd'"}, r"input\.where"),
        ({"engine__dtype": "float16"}, r"engine\.dtype"),
    ],
)
def test_changed_settings_are_refused_before_weights(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_input(tmp_path, 6)
    run(write_job(tmp_path))
    backend = FakeBackend()
    with pytest.raises(FingerprintError, match=message):
        run(write_job(tmp_path, **changes), backend)
    assert backend.decoders == []


def test_another_model_is_refused_and_another_drafter_is_not(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    run(write_job(tmp_path))
    with pytest.raises(FingerprintError, match=r"input: the model's config\.json differs; put that back"):
        run(write_job(tmp_path), FakeBackend(model_identity={"config.json": "bb"}))
    outcome = run(write_job(tmp_path, drafter="some/drafter", engine__max_rows=2, engine__prefill_chunk=7))
    assert outcome.state == "already complete"


def test_changed_input_is_refused_with_what_changed(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    job = write_job(tmp_path)
    run(job)
    write_input(tmp_path, 7)
    with pytest.raises(FingerprintError, match=r"in\.parquet had 6 rows and has 7"):
        run(job)
    write_input(tmp_path, 6, bad=[3])
    with pytest.raises(FingerprintError, match=r"in\.parquet"):
        run(job)


def test_a_pair_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    backend = FakeBackend(refuse_pair=ModelError("the drafter has another vocabulary"))
    with pytest.raises(ModelError):
        run(write_job(tmp_path), backend)
    assert not (tmp_path / "out" / "done.parquet.run").exists()
    assert backend.decoders == []


def test_grouping_by_a_column_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    write_input(tmp_path, 6)
    backend = FakeBackend()
    with pytest.raises(InputError, match="taks"):
        run(write_job(tmp_path, report__group_by="taks"), backend)
    assert backend.decoders == []


@pytest.mark.parametrize("place", ["under a file", "a folder", "read only"])
def test_an_output_that_cannot_be_is_refused_before_weights(tmp_path: Path, place: str) -> None:
    write_input(tmp_path, 6)
    output = tmp_path / "out" / "done.parquet"
    if place == "under a file":
        (tmp_path / "out").write_bytes(b"")
    elif place == "a folder":
        output.mkdir(parents=True)
    else:
        output = Path("/proc/done.parquet")
    backend = FakeBackend()
    with pytest.raises(OutputError):
        run(write_job(tmp_path, output__path=str(output)), backend)
    assert backend.decoders == []


def test_rows_that_the_engine_loses_are_missed(tmp_path: Path) -> None:
    class Forgetful(FakeDecoder):
        def step(self) -> list[Any]:
            return [generation for generation in super().step() if generation.key.row != 4]

    write_input(tmp_path, 6)
    job = write_job(tmp_path)
    with pytest.raises(EngineError, match="1 rows went into the engine and never came out"):
        run(job, FakeBackend(make_decoder=Forgetful))
    backend = FakeBackend()
    run(job, backend)
    assert backend.admitted_rows == [4]
    assert_all_rows(tmp_path, 6)


def test_a_full_disk_stops_the_run_and_it_goes_on_afterwards(tmp_path: Path) -> None:
    write_input(tmp_path, 20)
    job = write_job(tmp_path)
    num_parts = 0

    def reached(step: str) -> None:
        nonlocal num_parts
        num_parts += step == "part.written"
        if num_parts == 3:
            raise OSError(28, "No space left on device")

    backend = FakeBackend()
    with pytest.raises(JournalError, match=r"part-000003\.parquet: cannot be written \(No space left on device\)"):
        run(job, backend, disk=Disk(reached))
    done = done_rows(tmp_path)
    again = FakeBackend()
    run(job, again)
    assert sorted([*done, *again.admitted_rows]) == list(range(20))
    assert_all_rows(tmp_path, 20)


@pytest.mark.parametrize("crash_at", [f"{step}:2" for step in [*PART_STEPS, *LOG_STEPS]] + FINAL_STEPS)
def test_a_process_that_ends_at_any_step_leaves_every_row_once(tmp_path: Path, crash_at: str) -> None:
    write_input(tmp_path, 20)
    job = write_job(tmp_path)
    assert drive(job, CRASH_AT=crash_at, STEP_S="0.002").returncode == 9
    assert (tmp_path / "out" / "done.parquet").exists() == (crash_at in ("final.renamed", "final.done"))
    log = tmp_path / "out" / "done.parquet.run" / "log.jsonl"
    whole = log.read_text().rpartition("\n")[0]
    done = [
        row for line in whole.splitlines() for _, start, stop in json.loads(line)["keys"] for row in range(start, stop)
    ]
    backend = FakeBackend()
    run(job, backend)
    assert sorted([*done, *backend.admitted_rows]) == list(range(20))
    assert_all_rows(tmp_path, 20)


def test_kill_9_in_the_middle_costs_only_what_was_in_flight(tmp_path: Path) -> None:
    write_input(tmp_path, 60)
    job = write_job(tmp_path)
    admitted = tmp_path / "admitted"
    process = start_driving(job, STEP_S="0.01", READY_AT="30", READY=str(tmp_path / "ready"), ADMITTED=str(admitted))
    wait_for(tmp_path / "ready")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = done_rows(tmp_path)
    assert 20 < len(done) < 60
    second = drive(job, ADMITTED=str(admitted))
    assert second.returncode == 0, second.stderr
    assert f"{len(done)}/60 rows" in second.stderr
    rows = sorted(int(line) for line in admitted.read_text().splitlines())
    assert list(dict.fromkeys(rows)) == list(range(60))
    assert len(rows) <= 60 + 8
    assert_all_rows(tmp_path, 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_commits_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    write_input(tmp_path, 60)
    job = write_job(tmp_path, output__checkpoint_every="1h")
    process = start_driving(job, STEP_S="0.01", READY_AT="20", READY=str(tmp_path / "ready"))
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    done = done_rows(tmp_path)
    assert 10 < len(done) < 60
    assert f"{len(done)} of 60 rows done and kept" in output
    assert f"batchgen run {job}" in output
    assert "Traceback" not in errors
    backend = FakeBackend()
    run(job, backend)
    assert sorted([*done, *backend.admitted_rows]) == list(range(60))
    assert_all_rows(tmp_path, 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once_and_it_can_still_be_resumed(tmp_path: Path, number: signal.Signals) -> None:
    write_input(tmp_path, 40)
    job = write_job(tmp_path)
    process = start_driving(job, STEP_S="30", READY_AT="1", READY=str(tmp_path / "ready"))
    assert process.stderr is not None
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    while "once more" not in process.stderr.readline():
        pass
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 130
    run(job)
    assert_all_rows(tmp_path, 40)


def test_two_processes_at_once(tmp_path: Path) -> None:
    write_input(tmp_path, 40)
    job = write_job(tmp_path)
    first = start_driving(job, STEP_S="0.2", READY_AT="1", READY=str(tmp_path / "ready"))
    wait_for(tmp_path / "ready")
    second = drive(job)
    assert second.returncode == 2
    assert f"is in use by process {first.pid}" in second.stderr
    first.kill()
    first.communicate()
    assert drive(job).returncode == 0
    assert_all_rows(tmp_path, 40)


def test_a_run_folder_can_be_read_as_it_is(tmp_path: Path) -> None:
    write_input(tmp_path, 4)
    run(write_job(tmp_path))
    folder = tmp_path / "out" / "done.parquet.run"
    assert sorted(path.name for path in folder.iterdir()) == ["job.yaml", "lock", "log.jsonl", "parts", "run.json"]
    assert "max_tokens: 8" in (folder / "job.yaml").read_text()
    assert json.loads((folder / "run.json").read_text())["num_rows"] == 4
