"""Status: told from the run folder, also while another process holds it."""

from pathlib import Path

from batchgen.journal.disk import Disk
from batchgen.journal.record import InputRecord
from batchgen.journal.run_folder import RunFolder
from batchgen.prompts.files import record_file
from batchgen.report.status import status_text
from tests.fakes import make_error, make_result
from tests.jobs import write_input

JOB = Path("jobs/x.yaml")


def open_folder(output: Path) -> RunFolder:
    file, _ = record_file(output.with_name("in.parquet"))
    return RunFolder.open(
        output,
        fingerprint={},
        input_files=[InputRecord("in.parquet", file.size, file.num_rows, file.footer_digest)],
        count_rows=lambda: 3,
        new_id=lambda: "folder",
        now="2030-01-01T00:00:00+00:00",
        disk=Disk(),
        warn=lambda message: None,
    )


def test_nothing_yet(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    assert status_text(output, JOB, ["in.parquet"]) == (
        f"Not started: {output} has no run folder (paths are relative to {Path.cwd()}).\n"
        "Start with: batchgen run jobs/x.yaml"
    )
    assert list(tmp_path.iterdir()) == []


def test_running_stopped_and_complete(tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    inputs = [str(write_input(tmp_path, 3))]
    with open_folder(output) as folder:
        folder.begin_attempt("a", "2030-01-02T00:00:00+00:00", "")
        folder.begin_attempt("b", "2030-01-03T00:00:00+00:00", "")
        folder.commit([make_result(0), make_error(1)])
        lines = status_text(output, JOB, inputs).splitlines()
    assert lines[0] == "2 of 3 rows done, 1 error"
    assert lines[1] == "Started 2 times, last at 2030-01-03T00:00:00+00:00"
    assert lines[2].startswith("Running now: process ")
    assert lines[3] == f"Run folder: {output}.run"
    assert status_text(output, JOB, inputs).splitlines()[2] == "Not running. Go on with: batchgen run jobs/x.yaml"
    with open_folder(output) as folder:
        folder.commit([make_result(2)])
    assert "Complete, but" in status_text(output, JOB, inputs)
    output.write_bytes(b"")
    assert f"Complete: {output}" in status_text(output, JOB, inputs)
