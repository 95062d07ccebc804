"""Measuring a job that samples: every sample on every side, and rows compared only where they must be the same."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from batchgen.bench.job import WITH_DRAFTER, WITHOUT_DRAFTER, JobBench, Measured, bench_job

DATA = Path(__file__).parents[2] / "data"
NUM_ROWS = 3


def measure(folder: Path, drafter: bool = True, carry: dict[str, Any] | None = None, **sampling: Any) -> JobBench:
    """The first summaries, with columns of their own for what `carry` names."""
    prompts = pl.read_parquet(DATA / "prompts.parquet").filter(pl.col("task") == "summary").head(NUM_ROWS)
    prompts.with_columns(**{name: pl.Series(values) for name, values in (carry or {}).items()}).write_parquet(
        folder / "in.parquet"
    )
    job: dict[str, Any] = {
        "model": str(DATA / "tiny"),
        "input": {"path": str(folder / "in.parquet"), "id": "id", "prompt": "Summarize:\n{{ text }}"},
        "sampling": {"max_tokens": 12, **sampling},
        "engine": {"max_rows": 4},
        "output": {"path": str(folder / "out.parquet")},
    }
    if drafter:
        job["drafter"] = str(DATA / "tiny-dflash2")
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return bench_job(folder / "job.yaml", max_rows=None, repeats=1, batch_sizes=[4], say=lambda line: None)


def sides(report: JobBench) -> list[tuple[int, int | None]]:
    """For each side how many rows can be compared, and how many of them differ."""
    return [(one.comparable_rows, one.rows_that_differ) for one in report.measured]


def test_shared_noise_keeps_the_text_and_mlx_lm_is_not_compared(tmp_path: Path) -> None:
    report = measure(tmp_path, n=2, temperature=0.8, seed=3)
    assert (report.num_rows, report.num_output_rows) == (3, 6)
    drafted, plain, mlx_lm = report.measured
    assert (drafted.side, plain.side, report.baseline) == (WITH_DRAFTER, WITHOUT_DRAFTER, mlx_lm.side)
    assert sides(report) == [(6, 0), (6, 0), (0, None)]
    assert drafted.completion_tokens == plain.completion_tokens > 0
    assert report.lines()[0].splitlines()[-1].endswith("  -")
    assert any("noise of its own" in line for line in report.notices())
    assert "3 rows (6 output rows)" in "\n".join(report.lines())
    assert report.left_out == ()

    written = json.loads(json.dumps(report.to_json()))
    assert written["num_output_rows"] == 6
    assert [side["rows_that_differ"] for side in written["measured"]] == [0, 0, None]
    assert written["notices"] == report.notices()


def test_rejection_is_compared_with_nothing_but_itself(tmp_path: Path) -> None:
    report = measure(tmp_path, temperature=1.0, coupling="rejection")
    assert sides(report) == [(0, None), (3, 0), (0, None)]


def test_keys_that_mlx_lm_lacks_are_named(tmp_path: Path) -> None:
    report = measure(tmp_path, drafter=False, stop=["e"], min_tokens=3)
    assert report.left_out == ("stop", "min_tokens")
    assert report.notices()[0].startswith("mlx-lm's side leaves out stop, min_tokens, ")
    assert sides(report) == [(3, 0), (0, None)]
    plain, mlx_lm = report.measured
    assert plain.completion_tokens < mlx_lm.completion_tokens
    assert "times as fast compares tokens per second" in report.notices()[1]


def test_mlx_lm_takes_each_greedy_row_as_it_is(tmp_path: Path) -> None:
    """Penalties, bias and end tokens are mlx-lm's too, so that such rows must be the same."""
    columns = {
        "temperature": [0.0, 0.0, 0.7],
        "repetition_penalty": [1.0, 4.0, 1.0],
        "presence_penalty": [0.0, 6.0, 0.0],
        "logit_bias": ["{}", '{"20": 40}', "{}"],
        "ignore_eos": [True, False, False],
    }
    keys = {key: {"column": key} for key in columns}
    report = measure(tmp_path, carry=columns, max_tokens=48, top_k=5, **keys)
    assert sides(report) == [(3, 0), (3, 0), (2, 0)]
    assert report.lines()[0].splitlines()[-1].endswith("0 of 2")


def test_grammars_move_anew_in_every_run(tmp_path: Path) -> None:
    report = measure(tmp_path, choice=["yes", "no, never"], temperature=0.9)
    assert sides(report) == [(3, 0), (3, 0), (0, None)]
    assert report.left_out == ("choice",)


@pytest.mark.parametrize(("tokens", "ratio"), [((80, 80), 2.0), ((40, 80), 1.0), ((0, 0), 2.0), ((80, 0), None)])
def test_ratio_compares_tokens_per_second(tokens: tuple[int, int], ratio: float | None) -> None:
    engine, mlx_lm = (
        Measured(name, (seconds,), number, None, 0, None)
        for name, seconds, number in zip(("engine", "mlx-lm"), (2.0, 4.0), tokens, strict=True)
    )
    report = JobBench("job", 1, 1, 1, {}, (engine, mlx_lm), "mlx-lm", ())
    assert report.ratio(engine) == ratio
    assert report.ratio(mlx_lm) == 1.0
