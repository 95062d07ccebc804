"""The check of a job: its figures, its text, and that it refuses what a run would refuse."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchgen.backend import MlxBackend
from batchgen.check import CheckReport, TokenLengths, _lengths
from batchgen.check import check as check_plan
from batchgen.destination import verify_output
from batchgen.errors import InputError, ModelError, OutputError
from batchgen.job.spec import Job
from batchgen.plan import make_plan
from batchgen.prompts.read import InputTable
from tests.prompts.builders import write, write_model


def no_engine(model: Path, drafter: Path | None, vocab_size: int) -> None:
    """An engine that can decode anything."""


def check(job: Job, check_pair: Callable[[Path, Path | None, int], None]) -> CheckReport:
    """The report on a job whose models are folders here, with another engine to ask about the pair."""
    backend = MlxBackend()
    backend.check_pair = check_pair  # type: ignore[method-assign]
    return check_plan(make_plan(job, backend))


def job_of(folder: Path, **sections: Any) -> Job:
    values: dict[str, Any] = {
        "name": "nightly",
        "model": str(folder / "model"),
        "input": {"path": str(folder / "in.parquet"), "column": "t"},
        "output": {"path": str(folder / "out" / "o.parquet")},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return Job.model_validate(values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An input of ten prompts, each one digit longer than the one before, of which some are bad; and a model."""
    texts = ["7" * length for length in range(1, 11)]
    write(tmp_path / "in.parquet", {"t": [*texts, None, " ", None, "7" * 40], "n": list(range(14))})
    write_model(tmp_path / "model", chat_template=None, config={"max_position_embeddings": 32})
    return tmp_path


def test_figures(folder: Path) -> None:
    report = check(job_of(folder, sampling={"max_tokens": 24}), no_engine)
    assert (report.num_files, report.num_rows, report.num_selected, report.num_errors) == (1, 14, 14, 4)
    assert report.error_counts == (("empty_prompt", 1), ("missing_prompt", 2), ("prompt_too_long", 1))
    assert report.error_messages == (
        f"{folder}/in.parquet: row 10: t is null",
        f"{folder}/in.parquet: row 11: the prompt is empty",
        f"{folder}/in.parquet: row 12: t is null",
        f"{folder}/in.parquet: row 13: the prompt has 41 tokens, and the model's context of 32 leaves room for 31",
    )
    # Each has a beginning-of-sequence token; 8 tokens and 24 more are the context of 32.
    assert report.lengths == TokenLengths(2, 6, 11, 11)
    assert report.num_short_budget == 3
    assert (report.shown_text, report.shown_tokens) == ("7", 2)


def test_lines(folder: Path) -> None:
    job = job_of(folder, sampling={"max_tokens": 24}, input={"where": "n > 8 AND n < 13"})
    assert check(job, no_engine).lines() == [
        "job            nightly",
        f"model          {folder}/model, no drafter",
        "input          1 file, 14 rows, 4 after where",
        "bad rows       3 (empty_prompt 1, missing_prompt 2)",
        f"               {folder}/in.parquet: row 10: t is null",
        f"               {folder}/in.parquet: row 11: the prompt is empty",
        f"               {folder}/in.parquet: row 12: t is null",
        "prompt tokens  min 11, median 11, p95 11, max 11",
        "context        32, 1 rows leave less than max_tokens 24",
        f"output         {folder}/out/o.parquet can be written",
        "first prompt   11 tokens:",
        "    7777777777",
    ]


def test_lines_of_a_good_job_with_several_files_and_no_known_context(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / "in.parquet" / f"{name}.parquet", {"t": ["one\ntwo", "x" * 3000]})
    write_model(tmp_path / "model")
    write_model(tmp_path / "drafter")
    lines = check(job_of(tmp_path, drafter=str(tmp_path / "drafter")), no_engine).lines()
    assert lines[1:4] == [
        f"model          {tmp_path}/model, drafter {tmp_path}/drafter",
        "input          2 files, 4 rows",
        "bad rows       0",
    ]
    assert lines[5] == "context        unknown, the model's configuration names none"
    assert lines[-2:] == ["    <s>[user]one", "    two[assistant]"]
    job = job_of(tmp_path, input={"where": "length(t) > 2000"})
    assert check(job, no_engine).lines()[-2].endswith(" tokens (its beginning):")
    assert len(check(job, no_engine).lines()[-1]) == 4 + 2000


def test_no_rows(folder: Path) -> None:
    report = check(job_of(folder, input={"where": "n > 99"}), no_engine)
    assert (report.num_rows, report.num_selected, report.lengths, report.shown_text) == (14, 0, None, None)
    assert "prompt tokens  no row can run" in report.lines()
    assert report.lines()[-1] == f"output         {folder}/out/o.parquet can be written"


def test_only_the_first_messages_are_kept(folder: Path) -> None:
    write(folder / "in.parquet", {"t": ["x", *[""] * 50]})
    report = check(job_of(folder), no_engine)
    assert (report.num_errors, len(report.error_messages)) == (50, 5)
    assert [line.strip() for line in report.lines()[4:10]] == [*report.error_messages, "and 45 more"]
    assert report.lines()[10].startswith("prompt tokens")


@pytest.mark.parametrize(
    ("num", "expected"),
    [(1, TokenLengths(1, 1, 1, 1)), (2, TokenLengths(1, 1, 2, 2)), (20, TokenLengths(1, 10, 19, 20)),
     (101, TokenLengths(1, 51, 96, 101))],
)  # fmt: skip
def test_percentiles_are_values_that_occur(num: int, expected: TokenLengths) -> None:
    assert _lengths(range(1, num + 1)) == expected


def test_nothing_is_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    check(job_of(folder), no_engine)
    assert sorted(folder.rglob("*")) == before


def test_the_pair_is_checked_with_the_tokenizer_s_vocabulary(folder: Path) -> None:
    write_model(folder / "drafter")
    asked: list[tuple[Path, Path | None, int]] = []

    def refuse(model: Path, drafter: Path | None, vocab_size: int) -> None:
        asked.append((model, drafter, vocab_size))
        raise ModelError("they do not fit")

    with pytest.raises(ModelError, match="they do not fit"):
        check(job_of(folder, drafter=str(folder / "drafter")), refuse)
    ((model, drafter, vocab_size),) = asked
    assert (model, drafter) == (folder / "model", folder / "drafter")
    assert 256 < vocab_size <= 512


def test_a_column_to_group_by_must_reach_the_output(folder: Path) -> None:
    assert isinstance(check(job_of(folder, report={"group_by": "n"}), no_engine), CheckReport)
    with pytest.raises(InputError, match=r"no column task, which report\.group_by names"):
        check(job_of(folder, report={"group_by": "task"}), no_engine)


def verify(folder: Path, output: Path | str, source: str | None = None) -> None:
    job = job_of(folder, input={"path": source} if source else {})
    verify_output(Path(output), InputTable.open(job.input, job.sampling).files, job.input.paths)


def refusal(folder: Path, output: Path | str, source: str | None = None) -> str:
    with pytest.raises(OutputError) as caught:
        verify(folder, output, source)
    return str(caught.value)


def test_output_that_is_an_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder / "in.parquet"
    assert refusal(folder, source) == f"output.path: {source} is the input {source}; choose another path"
    link, hard = folder / "link.parquet", folder / "hard.parquet"
    link.symlink_to(source)
    os.link(source, hard)
    assert refusal(folder, link) == f"output.path: {link} is the input {source}; choose another path"
    assert refusal(folder, hard) == f"output.path: {hard} is the input {source}; choose another path"
    (folder / "elsewhere").symlink_to(folder)
    assert "is the input" in refusal(folder, folder / "elsewhere" / "in.parquet")
    monkeypatch.chdir(folder)
    assert refusal(folder, "in.parquet") == f"output.path: in.parquet is the input {source}; choose another path"


@pytest.mark.parametrize(
    ("source", "output", "is_found"),
    [
        ("data", "data/o.parquet", True),
        ("data", "data/deep/er/o.parquet", True),
        ("data", "database/o.parquet", False),
        ("data/*.parquet", "data/o.parquet", True),
        ("data/*.parquet", "data/deep/o.parquet", False),
        ("data/in*.parquet", "data/o.parquet", False),
        ("data/**/*.parquet", "data/deep/er/o.parquet", True),
        ("d*", "data/o.parquet", True),
        ("data/in.parquet", "data/o.parquet", False),
    ],
)
def test_output_that_would_become_an_input(folder: Path, source: str, output: str, is_found: bool) -> None:
    write(folder / "data" / "in.parquet", {"t": ["x"]})
    if not is_found:
        verify(folder, folder / output, f"{folder}/{source}")
        return
    assert refusal(folder, folder / output, f"{folder}/{source}") == (
        f"output.path: {folder}/{output} would be read as input when the job goes on, for input.path "
        f"{folder}/{source} finds it; write elsewhere"
    )


def test_output_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "dir.parquet").mkdir()
    assert refusal(folder, folder / "dir.parquet") == (
        f"output.path: {folder}/dir.parquet is a folder; name a file that ends in .parquet"
    )
    (folder / "file").write_text("x")
    assert refusal(folder, folder / "file" / "deep" / "o.parquet") == (
        f"output.path: {folder}/file/deep/o.parquet cannot be written, for {folder}/file is not a folder"
    )
    verify(folder, folder / "new" / "deeper" / "o.parquet")

    def refuse(**keys: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("batchgen.destination.tempfile.TemporaryFile", refuse)
    assert refusal(folder, folder / "new" / "o.parquet") == (
        f"output.path: {folder}/new/o.parquet cannot be written: {folder}: Read-only file system"
    )


def test_an_output_that_stands_already_may_be_written_again(folder: Path) -> None:
    output = write(folder / "out" / "o.parquet", {"t": ["x"]})
    before = output.read_bytes()
    verify(folder, output)
    assert output.read_bytes() == before
    assert [path.name for path in output.parent.iterdir()] == ["o.parquet"]


def test_a_bad_output_is_found_before_the_model_is_looked_for(folder: Path) -> None:
    job = job_of(folder, model="/no/such/model", output={"path": str(folder / "in.parquet")})
    with pytest.raises(OutputError):
        check(job, no_engine)
