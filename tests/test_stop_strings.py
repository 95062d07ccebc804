"""Stop strings from a column through the bundled pair: the text is the plain one, cut, whatever the drafter."""

import io
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from batchgen.backend import MlxBackend
from batchgen.run import Surroundings, run_job
from tests.jobs import write_job

DATA = Path(__file__).parent.parent / "data"
TASKS = ("math", "summary", "code", "prose")
NUM_PROMPTS = 6  # of each task, greedy and sampled
# Where in its plain text a row's stop string begins and how long it is, as shares of the text and in characters.
PLACES = [(0.0, 1), (0.2, 3), (0.4, 9), (0.6, 17), (0.8, 4), (1.0, 2)]


def prompts() -> pl.DataFrame:
    table = pl.read_parquet(DATA / "prompts.parquet")
    chosen = pl.concat([table.filter(pl.col("task") == task).head(NUM_PROMPTS) for task in TASKS]).select("id", "text")
    both = [chosen.with_columns(pl.lit(t).alias("t"), pl.col("id") + name) for t, name in ((0.0, "-g"), (0.8, "-s"))]
    return pl.concat(both)


def completions(folder: Path, table: pl.DataFrame, **changes: Any) -> list[dict[str, Any]]:
    folder.mkdir()
    table.write_parquet(folder / "in.parquet")
    sampling: dict[str, Any] = {"temperature": {"column": "t"}, "max_tokens": 48}
    if "stops" in table.columns:
        sampling["stop"] = {"column": "stops"}
    drafter = str(DATA / "tiny-dflash2")
    values = {"model": str(DATA / "tiny"), "drafter": drafter, "input__id": "id", "sampling": sampling}
    job = write_job(folder, **(values | changes))
    assert run_job(job, MlxBackend(), Surroundings(console=io.StringIO())).exit_code == 0
    return pl.read_parquet(folder / "out" / "done.parquet").to_dicts()


def stops_of(number: int, text: str) -> list[str]:
    """The row's stop strings: a part of its text, often with one that begins later or never comes."""
    share, length = PLACES[number % len(PLACES)]
    start = max(0, min(int(share * len(text)), len(text) - length))
    others = [["\N{SNOWMAN}"], [text[start + 1 :][:length]], [text[start : start + length] + "\N{SNOWMAN}"]]
    return [stop for stop in [text[start : start + length], *others[number % len(others)]] if stop]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All rows without stop strings."""
    return completions(tmp_path_factory.mktemp("plain") / "job", prompts(), output__token_ids=True)


@pytest.mark.parametrize("block_size", [None, 2, 4, 8])
def test_a_text_ends_before_its_earliest_stop_string(
    tmp_path: Path, plain: list[dict[str, Any]], block_size: int | None
) -> None:
    stops = [stops_of(number, row["completion"]) for number, row in enumerate(plain)]
    table = prompts().with_columns(pl.Series("stops", stops, pl.List(pl.String)))
    engine = {"drafter": None} if block_size is None else {"engine__block_size": block_size}
    rows = completions(tmp_path / "job", table, output__token_ids=True, **engine)
    num_cut = 0
    for row, whole, (stop, *others) in zip(rows, plain, stops, strict=True):
        text = whole["completion"]
        starts = [text.find(one) for one in (stop, *others) if one in text]
        assert row["completion"] == text[: min(starts)], (row["id"], stop, others)
        assert row["finish_reason"] == "stop"
        assert row["token_ids"] == whole["token_ids"][: row["completion_tokens"]]
        assert row["completion_tokens"] == 1 + row["accepted_tokens"] + row["verify_passes"]
        num_cut += row["completion_tokens"] < whole["completion_tokens"]
    assert num_cut >= 30
    if block_size is not None:
        # Some rows end in the middle of a block whose drafts were right.
        assert sum(row["accepted_tokens"] for row in rows) > len(rows)
