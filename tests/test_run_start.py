"""How a run starts: what holds it to an earlier start, what it refuses before it writes, and how its own faults end."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batchgen.backend import MlxBackend
from batchgen.cli import main
from batchgen.errors import EXIT_FAILED, FingerprintError, InputLostError, JobError, ModelError, OutputError
from batchgen.job.load import load_job
from batchgen.plan import make_plan
from batchgen.run import Surroundings, require_startable, run_job
from tests.fakes import FakeBackend, FakeDecoder
from tests.jobs import write_input, write_job


def _job(folder: Path, **changes: Any) -> Path:
    write_input(folder, 12)
    return write_job(folder, **changes)


def _run(job: Path, backend: FakeBackend, **surroundings: Any) -> Any:
    return run_job(job, backend, Surroundings(quiet=True, **surroundings))


def _startable(job: Path) -> None:
    require_startable(make_plan(load_job(job), FakeBackend()), FakeBackend())


class BrokenOnce(FakeBackend):
    """Its weights cannot be read the first time."""

    def load_decoder(self, *arguments: Any) -> FakeDecoder:
        if self.model_identity["config.json"] == "broken":
            raise ModelError("weights are truncated")
        return super().load_decoder(*arguments)


def test_a_start_that_was_refused_does_not_hold_the_repaired_one(tmp_path: Path) -> None:
    job = _job(tmp_path)
    with pytest.raises(ModelError):
        _run(job, BrokenOnce(model_identity={"config.json": "broken"}))
    assert _run(job, BrokenOnce(model_identity={"config.json": "repaired"})).state == "finished"
    with pytest.raises(FingerprintError):
        _run(job, FakeBackend(model_identity={"config.json": "another"}))


def test_a_foreign_file_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    job = _job(tmp_path)
    output = tmp_path / "out" / "done.parquet"
    output.parent.mkdir()
    output.write_bytes(b"someone else's")
    for start in (lambda: _run(job, FakeBackend()), lambda: _startable(job)):
        with pytest.raises(OutputError, match="was not made by a run"):
            start()
    assert sorted(path.name for path in output.parent.iterdir()) == ["done.parquet"]


@pytest.mark.parametrize("state", ["finished", "partial", "empty"])
def test_a_foreign_file_beside_a_run_folder_is_refused_by_check_and_run_alike(tmp_path: Path, state: str) -> None:
    job, output = _job(tmp_path), tmp_path / "out" / "done.parquet"
    folder = output.with_name("done.parquet.run")
    folder.mkdir(parents=True)
    if state != "empty":
        _run(job, FakeBackend())
        output.unlink()
    if state == "partial":
        log = folder / "log.jsonl"
        log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    output.write_bytes(b"someone else's")
    before = sorted(folder.rglob("*"))
    messages = []
    for start in (lambda: _startable(job), lambda: _run(job, FakeBackend())):
        with pytest.raises(OutputError) as refusal:
            start()
        messages.append(str(refusal.value))
    assert (
        messages
        == [f"{output} exists and was not made by the run in {folder}; move it away, or choose another path"] * 2
    )
    assert sorted(folder.rglob("*")) == before
    assert output.read_bytes() == b"someone else's"


@pytest.mark.parametrize("change", ["other rows", "gone"])
def test_an_input_that_is_changed_during_a_run_ends_it_with_what_is_done(tmp_path: Path, change: str) -> None:
    job, source = _job(tmp_path), tmp_path / "in.parquet"
    original = source.read_bytes()

    def overwrite(number: int) -> None:
        if number == 2:
            source.unlink() if change == "gone" else write_input(tmp_path, 6)

    with pytest.raises(InputLostError, match=r"in\.parquet: .*put the original file back, then run again") as lost:
        _run(job, FakeBackend(make_decoder=lambda: FakeDecoder(on_step=overwrite)))
    assert lost.value.exit_code == EXIT_FAILED
    found = "no such file" if change == "gone" else "in.parquet had 12 rows and has 6"
    activity = CliRunner().invoke(main, ["status", str(job)]).output.splitlines()[2]
    assert activity.startswith(f"Complete, but {tmp_path}/out/done.parquet is not there yet, and the input is not as")
    assert found in activity
    assert activity.endswith(f". Put the original file back. Make it with: batchgen run {job}")
    source.write_bytes(original)
    assert "is not there yet. Make it with" in CliRunner().invoke(main, ["status", str(job)]).output
    assert _run(job, FakeBackend()).state == "finished"


def test_check_refuses_what_run_would(tmp_path: Path) -> None:
    job = _job(tmp_path)
    _startable(job)
    assert not (tmp_path / "out").exists()
    # Begun and killed before its folders were all there.
    (tmp_path / "out" / "done.parquet.run").mkdir(parents=True)
    _startable(job)
    _run(job, FakeBackend())
    _startable(job)
    with pytest.raises(FingerprintError, match="max_tokens: 8 -> 9"):
        _startable(_job(tmp_path, sampling__max_tokens=9))


@pytest.mark.parametrize("damage", ["garbage", "missing", "newer", "a file", "parts a file", "no permission"])
def test_a_run_folder_that_cannot_be_gone_on_with_is_exit_2_everywhere(
    tmp_path: Path, damage: str, monkeypatch: Any
) -> None:
    job, output = _job(tmp_path), tmp_path / "out" / "done.parquet"
    folder = output.with_name("done.parquet.run")
    _run(job, FakeBackend())
    if damage == "garbage":
        (folder / "run.json").write_text("{")
    elif damage == "newer":
        (folder / "run.json").write_text('{"format_version": 99}')
    elif damage in ("missing", "no permission"):
        (folder / "run.json").unlink()
        if damage == "no permission":
            (folder / "run.json").mkdir()
    else:
        place = folder if damage == "a file" else folder / "parts"
        shutil.rmtree(place)
        place.write_text("x")
    monkeypatch.setattr("batchgen.backend.MlxBackend", FakeBackend)
    results = [CliRunner().invoke(main, [command, str(job)]) for command in ("run", "check", "status")]
    assert [result.exit_code for result in results] == [2, 2, 2]
    assert len({result.output for result in results}) == 1
    assert results[0].output.startswith(f"error: {folder}")


def test_going_on_in_another_arithmetic_is_refused(tmp_path: Path) -> None:
    job = _job(tmp_path)
    _run(job, FakeBackend(auto_dtype="float32"))
    with pytest.raises(FingerprintError, match=r'engine\.dtype: "float32" -> "checkpoint"'):
        _run(job, FakeBackend(auto_dtype="checkpoint"))
    assert _run(_job(tmp_path, engine={"dtype": "float32"}), FakeBackend()).state == "already complete"


def test_prompts_are_told_the_day_on_which_the_job_began(tmp_path: Path) -> None:
    job, told = _job(tmp_path), []
    for day in ("2030-01-01T23:00:00+00:00", "2030-01-02T01:00:00+00:00"):
        backend = FakeBackend()
        _run(job, backend, time=lambda day=day: day)
        told.append(backend.codec.pinned_time)
    assert told == ["2030-01-01T23:00:00+00:00"] * 2


def test_a_fault_of_our_own_keeps_what_finished_and_is_no_exit_1(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    job = _job(tmp_path, output__checkpoint_every="1h")
    with pytest.raises(KeyboardInterrupt):
        _run(job, FakeBackend(make_decoder=lambda: FakeDecoder(on_step=fail)))
    second = FakeBackend()
    assert _run(job, second).state == "finished"
    assert 0 < len(second.admitted_rows) < 12

    def broken(*arguments: Any) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr("batchgen.run.run_job", broken)
    done = CliRunner().invoke(main, ["run", str(job)])
    assert done.exit_code == EXIT_FAILED
    assert "batchgen failed unexpectedly" in done.output


def test_merging_is_not_decoding_time(tmp_path: Path, monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr("batchgen.run._merge", lambda *arguments: now.__setitem__(0, now[0] + 100.0))

    def step(number: int) -> None:
        now[0] += 1.0

    backend = FakeBackend(make_decoder=lambda: FakeDecoder(on_step=step))
    outcome = _run(_job(tmp_path), backend, clock=lambda: now[0])
    assert outcome.decode_s == backend.decoders[0].steps


def test_without_llguidance_a_job_with_a_column_of_grammars_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchgen.grammar.errors.find_spec", lambda name: None)
    tiny = Path(__file__).parent.parent / "data" / "tiny"
    job = _job(tmp_path, model=str(tiny), sampling={"max_tokens": 4, "regex": {"column": "task"}})
    with pytest.raises(JobError, match=r"job\.yaml:\d+: sampling\.regex: needs llguidance, which is not installed"):
        run_job(job, MlxBackend(), Surroundings(quiet=True))
    assert not (tmp_path / "out").exists()
