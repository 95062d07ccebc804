"""The command line: exit codes, one sentence for each mistake, help that shows an example, docs that match it."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import batchgen.backend
from batchgen.cli import main
from batchgen.errors import EngineError, ModelError
from tests.fakes import FakeBackend, FakeDecoder
from tests.jobs import write_input, write_job


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """A scripted backend in the real one's place."""
    fake = FakeBackend()
    monkeypatch.setattr(batchgen.backend, "MlxBackend", lambda: fake)
    return fake


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_refused(result: Result, *words: str) -> None:
    """Exit 2 and one sentence that holds these words."""
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert [line.startswith("error: ") for line in lines] == [True]
    for word in words:
        assert word in lines[0]


def test_run_makes_the_file_and_says_so(tmp_path: Path, backend: FakeBackend) -> None:
    write_input(tmp_path, 12)
    result = invoke("run", write_job(tmp_path, report__group_by="task"))
    assert result.exit_code == 0, result.output
    output = tmp_path / "out" / "done.parquet"
    assert pq.read_table(output).num_rows == 12
    assert "12 rows: 12 ok, 0 errors" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines() if line.startswith(("even", "odd", "all"))] == [
        "even",
        "odd",
        "all",
    ]
    assert result.stdout.endswith(f"Written to {output}\n")
    assert "loading " in result.stderr
    assert "hint: a faster library would help" in result.stderr
    assert "12/12 rows (100%)" in result.stderr
    assert "\r" not in result.stderr


def test_quiet_leaves_the_closing_text(tmp_path: Path, backend: FakeBackend) -> None:
    write_input(tmp_path, 3)
    result = invoke("run", "--quiet", write_job(tmp_path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3 rows: 3 ok" in result.stdout


def test_error_rows_exit_with_1(tmp_path: Path, backend: FakeBackend) -> None:
    write_input(tmp_path, 5, bad=[1, 3])
    job = write_job(tmp_path)
    first, again = invoke("run", job), invoke("run", job)
    assert (first.exit_code, again.exit_code) == (1, 1)
    assert "5 rows: 3 ok, 2 errors (prompt_too_long 2)" in first.stdout
    assert again.stdout.startswith("Already complete: 5 rows")
    assert len(backend.decoders) == 1


def test_a_failed_run_exits_with_3(tmp_path: Path, backend: FakeBackend) -> None:
    def fail(number: int) -> None:
        raise RuntimeError("out of memory")

    write_input(tmp_path, 5)
    backend.make_decoder = lambda: FakeDecoder(on_step=fail)
    result = invoke("run", write_job(tmp_path))
    assert result.exit_code == EngineError.exit_code == 3
    assert "error: decoding failed (RuntimeError: out of memory)" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input__path": "nowhere.parquet"}, ["nowhere.parquet"]),
        ({"input__column": "texd"}, ["texd", "text"]),
        ({"sampling__temprature": 0.5}, ["job.yaml:", "temprature", "temperature"]),
        ({"sampling__max_tokens": 0}, ["job.yaml:", "max_tokens", "0"]),
        ({"output__path": "/proc/done.parquet"}, ["/proc"]),
        ({"report__group_by": "taks"}, ["taks", "task"]),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_2(
    tmp_path: Path, backend: FakeBackend, changes: dict[str, object], words: list[str]
) -> None:
    write_input(tmp_path, 5)
    assert_refused(invoke("run", write_job(tmp_path, **changes)), *words)
    assert backend.decoders == []


def test_the_input_is_not_taken_for_the_output(tmp_path: Path, backend: FakeBackend) -> None:
    path = write_input(tmp_path, 5)
    before = path.read_bytes()
    assert_refused(invoke("run", write_job(tmp_path, output__path=str(path))), "in.parquet")
    assert path.read_bytes() == before


def test_a_pair_that_does_not_fit_exits_with_2(tmp_path: Path, backend: FakeBackend) -> None:
    write_input(tmp_path, 5)
    backend.refuse_pair = ModelError("drafter: has 4 layers to read and the model 2")
    assert_refused(invoke("run", write_job(tmp_path)), "drafter: has 4 layers")


def test_changed_settings_exit_with_2(tmp_path: Path, backend: FakeBackend) -> None:
    write_input(tmp_path, 5)
    assert invoke("run", write_job(tmp_path)).exit_code == 0
    assert_refused(invoke("run", write_job(tmp_path, sampling__max_tokens=9)), "sampling.max_tokens: 8 -> 9")


def test_no_such_job() -> None:
    for command in ("run", "check", "status"):
        assert_refused(invoke(command, "nowhere.yaml"), "nowhere.yaml")


def test_status_before_and_after(tmp_path: Path, backend: FakeBackend) -> None:
    write_input(tmp_path, 5, bad=[1])
    job = write_job(tmp_path)
    assert "Not started" in invoke("status", job).stdout
    invoke("run", job)
    result = invoke("status", job)
    assert result.exit_code == 0
    assert "5 of 5 rows done, 1 error" in result.stdout
    assert f"Complete: {tmp_path / 'out' / 'done.parquet'}" in result.stdout


def test_schema_is_json_that_names_the_keys() -> None:
    result = invoke("schema")
    assert result.exit_code == 0
    assert {"model", "input", "output"} <= set(json.loads(result.stdout)["properties"])


def test_every_command_has_help_with_an_example() -> None:
    for name, command in main.commands.items():
        result = invoke(name, "-h")
        assert result.exit_code == 0
        assert f"batchgen {name}" in result.stdout.partition("Example")[2]
        assert command.help
    assert "Example" in invoke("--help").stdout


def test_ctrl_c_outside_decoding_exits_with_130(tmp_path: Path, backend: FakeBackend) -> None:
    def interrupted() -> FakeDecoder:
        raise KeyboardInterrupt

    write_input(tmp_path, 5)
    backend.make_decoder = interrupted
    result = invoke("run", write_job(tmp_path))
    assert result.exit_code == 130
    assert "run the same command again" in result.stderr


def test_status_and_schema_import_no_mlx(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    code = (
        "import sys; from batchgen.cli import main\n"
        f"for arguments in (['status', {str(job)!r}], ['schema']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "assert 'mlx.core' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
