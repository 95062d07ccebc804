"""The bundled pair does its jobs: right answers, accepted drafts, and a measurement that compares like with like."""

from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from batchgen.bench.job import WITH_DRAFTER, WITHOUT_DRAFTER, bench_job
from batchgen.cli import main
from batchgen.errors import InputError
from batchgen.job.load import load_job

ROOT = Path(__file__).parent.parent
NUM_SAMPLED = 9  # ids 0001 to 0009 of each task


def _job(folder: Path, where: str, drafter: bool = True) -> Path:
    """jobs/eval.yaml on some of its rows, writing into `folder`."""
    text = (ROOT / "jobs" / "eval.yaml").read_text()
    text = text.replace("  id: id\n", f'  id: id\n  where: "{where}"\n').replace("out/", f"{folder}/")
    if not drafter:
        text = text.replace("drafter: data/tiny-dflash2\n", "")
    path = folder / "job.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled jobs' paths are relative to the repository."""
    monkeypatch.chdir(ROOT)


def _run(folder: Path, drafter: bool) -> pl.DataFrame:
    folder.mkdir()
    done = CliRunner().invoke(main, ["run", str(_job(folder, "id LIKE '%-000%'", drafter))])
    assert done.exit_code == 0, done.output
    return pl.read_parquet(folder / "eval.parquet")


def test_answers_are_right_and_drafts_are_accepted(tmp_path: Path, in_root: None) -> None:
    rows = _run(tmp_path / "drafted", drafter=True)
    assert rows.group_by("task").len().sort("task").rows() == [
        (task, NUM_SAMPLED) for task in ("code", "math", "prose", "summary")
    ]
    lengths: dict[str, float] = {}
    for (task,), group in rows.group_by("task"):
        passes, accepted = group["verify_passes"].sum(), group["accepted_tokens"].sum()
        lengths[str(task)] = (accepted + passes) / passes
        if task != "prose":
            assert (group["completion"] == group["reference"]).sum() >= NUM_SAMPLED - 1, task
    assert min(lengths["summary"], lengths["math"]) > 5
    assert lengths["prose"] < lengths["math"] - 1

    plain = _run(tmp_path / "plain", drafter=False)
    assert plain["completion"].to_list() == rows["completion"].to_list()
    assert plain["accepted_tokens"].sum() == 0


def test_bench_compares_the_same_rows(tmp_path: Path, in_root: None) -> None:
    lines: list[str] = []
    job = _job(tmp_path, "task = 'summary'")
    report = bench_job(job, max_rows=4, repeats=2, batch_sizes=[2, 2, 4], say=lines.append)
    assert [one.side for one in report.measured] == [
        WITH_DRAFTER,
        WITHOUT_DRAFTER,
        "mlx_lm.batch_generate, 2 rows",
        "mlx_lm.batch_generate, 4 rows",
    ]
    assert [one.rows_that_differ for one in report.measured] == [0, 0, 0, 0]
    assert sorted({one.completion_tokens for one in report.measured}) == [report.measured[0].completion_tokens]
    assert [len(one.seconds) for one in report.measured] == [2, 2, 2, 2]
    assert report.measured[0].acceptance_length is not None
    assert report.measured[0].acceptance_length > 5
    baseline = next(one for one in report.measured if one.side == report.baseline)
    assert report.ratio(baseline) == 1.0
    assert report.num_rows == 4
    assert "times as fast" in report.lines()[0]
    assert not (tmp_path / "eval.parquet").exists()
    assert not (tmp_path / "eval.parquet.run").exists()


def test_bench_without_rows_says_so(tmp_path: Path, in_root: None) -> None:
    with pytest.raises(InputError, match="nothing to measure"):
        bench_job(_job(tmp_path, "task = 'no such'"), max_rows=None, repeats=1, batch_sizes=[], say=print)


def test_bundled_jobs_name_files_that_are_there(in_root: None) -> None:
    for name in ("summarize", "eval"):
        job = load_job(ROOT / "jobs" / f"{name}.yaml")
        assert job.drafter is not None
        for path in (job.model, job.drafter, "data/prompts.parquet"):
            assert Path(path).exists()
    size = sum(file.stat().st_size for name in ("tiny", "tiny-dflash2") for file in (ROOT / "data" / name).iterdir())
    assert size < 20e6
