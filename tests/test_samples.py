"""Several samples a prompt through the bundled pair: each its own, whatever interrupts them; and columns asked for."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchgen.backend import MlxBackend, ReportingDecoder
from batchgen.errors import EngineError
from batchgen.job.spec import Job
from batchgen.run import Outcome, Surroundings, run_job
from batchgen.types import Generation
from tests.jobs import write_input, write_job

DATA = Path(__file__).parent.parent / "data"
NUM_ROWS, NUM_SAMPLES = 3, 4


class Failing(MlxBackend):
    """Its engine fails once it has finished so many rows; `finished` are those."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.finished: list[Generation] = []

    def load_decoder(
        self, model: Path, drafter: Path | None, job: Job, eos_token_ids: frozenset[int], clock: Callable[[], float]
    ) -> ReportingDecoder:
        decoder: Any = super().load_decoder(model, drafter, job, eos_token_ids, clock)
        step = decoder.step

        def failing_step() -> list[Generation]:
            if len(self.finished) >= self.after:
                raise RuntimeError("out of memory")
            generations: list[Generation] = step()
            self.finished += generations
            return generations

        decoder.step = failing_step
        return decoder


def job_of(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    write_input(folder, NUM_ROWS)
    values = {
        "model": str(DATA / "tiny"),
        "drafter": str(DATA / "tiny-dflash2"),
        "input__column": None,
        "input__prompt": "Continue the story: {{ text }}",
        "sampling": {"n": NUM_SAMPLES, "temperature": 0.8, "max_tokens": 24},
    }
    return write_job(folder, **(values | changes))


def run(job: Path, backend: MlxBackend | None = None) -> Outcome:
    return run_job(job, backend or MlxBackend(), Surroundings(console=io.StringIO()))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "out" / "done.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run(job_of(folder, output__token_ids=True))
    return rows_of(folder)


def test_samples_are_rows_of_their_own(whole: list[dict[str, Any]]) -> None:
    keys = [(f"id-{row}", sample) for row in range(NUM_ROWS) for sample in range(NUM_SAMPLES)]
    assert [(row["id"], row["sample"]) for row in whole] == keys
    assert len({tuple(row["token_ids"]) for row in whole}) == NUM_ROWS * NUM_SAMPLES
    for row in whole:
        assert len(row["token_ids"]) == row["completion_tokens"]
    # One sample reads the prompt, the others take what it read.
    cached = [row["cached_prompt_tokens"] for row in whole if row["id"] == "id-1"]
    assert sorted(cached)[0] == 0
    assert sorted(cached)[1:] == [whole[NUM_SAMPLES]["prompt_tokens"]] * (NUM_SAMPLES - 1)


@pytest.mark.parametrize(("max_rows", "drafter"), [(1, True), (3, True), (16, False)])
def test_a_prompt_interrupted_after_its_second_sample_goes_on_with_its_third(
    tmp_path: Path, whole: list[dict[str, Any]], max_rows: int, drafter: bool
) -> None:
    broken = Failing(after=2)
    with pytest.raises(EngineError, match="out of memory"):
        run(job_of(tmp_path, engine__max_rows=1), broken)
    assert [generation.key for generation in broken.finished] == [(0, 0), (0, 1)]
    resumed = job_of(
        tmp_path,
        engine__max_rows=max_rows,
        output__token_ids=True,
        **({} if drafter else {"drafter": None}),
    )
    counted = Failing(after=1 << 30)
    assert run(resumed, counted).exit_code == 0
    assert len(counted.finished) == NUM_ROWS * NUM_SAMPLES - 2
    rows = rows_of(tmp_path)
    names = ("id", "sample", "completion", "token_ids", "finish_reason")
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in whole]
    assert [row["attempt"] for row in rows] == [1, 1] + [2] * (NUM_ROWS * NUM_SAMPLES - 2)


def test_token_ids_may_be_asked_for_afterwards(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    run(job_of(tmp_path))
    assert "token_ids" not in rows_of(tmp_path)[0]
    counted = Failing(after=0)
    assert run(job_of(tmp_path, output__token_ids=True), counted).exit_code == 0
    assert [row["token_ids"] for row in rows_of(tmp_path)] == [row["token_ids"] for row in whole]
    assert counted.finished == []


def test_logprobs_stand_beside_their_tokens(tmp_path: Path) -> None:
    run(job_of(tmp_path, output__logprobs=True))
    for row in rows_of(tmp_path):
        assert len(row["logprobs"]) == row["completion_tokens"]
        assert max(row["logprobs"]) <= 0
