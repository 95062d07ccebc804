"""The bundled prompts and jobs: the file is what its recipe makes, all of it held out, and the jobs fit it."""

from pathlib import Path

import jinja2
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from batchgen.job.load import load_job
from batchgen.training.prompts import NUM_ROWS, SCHEMA, read_prompts, write_prompts
from batchgen.training.tasks import prose
from batchgen.training.tasks.sample import Sample

GRAMMAR_WORDS = {word for items in prose.SLOTS.values() for item in items for word in item.split()} | {
    word.lower().strip(",.") for form in prose.FORMS for word in form.split()
}
ROOT = Path(__file__).parent.parent
PROMPTS = ROOT / "data" / "prompts.parquet"


def test_file_is_what_the_recipe_writes(tmp_path: Path) -> None:
    assert write_prompts(tmp_path / "prompts.parquet", seed=2) == sum(NUM_ROWS.values())
    assert pq.read_table(tmp_path / "prompts.parquet").equals(pq.read_table(PROMPTS))


def test_rows_are_many_whole_and_of_all_tasks() -> None:
    table = pq.read_table(PROMPTS)
    assert table.schema.equals(SCHEMA)
    assert table.num_rows >= 400
    for column in ("id", "text"):
        values = table[column].to_pylist()
        assert len(sorted({*values})) == len(values)
    assert {row["values"]: row["counts"] for row in pc.value_counts(table["task"]).to_pylist()} == NUM_ROWS
    assert [row["task"] for row in table.to_pylist() if row["reference"] is None] == ["prose"] * NUM_ROWS["prose"]


def test_no_row_can_be_trained_on() -> None:
    for row in read_prompts(PROMPTS):
        if row.task == "prose":
            assert not {word.strip(",.") for word in row.text.lower().split()} <= GRAMMAR_WORDS
            continue
        key = row.response if row.task in ("summary", "code") else row.text
        assert Sample(row.task, row.text, row.prompt, row.response, key).split == "held_out"


@pytest.mark.parametrize(("job", "tasks"), [("summarize", ["summary"]), ("eval", sorted(NUM_ROWS))])
def test_jobs_render_the_prompts_that_were_trained_on(job: str, tasks: list[str]) -> None:
    template = load_job(ROOT / "jobs" / f"{job}.yaml").input.prompt
    assert template is not None
    rendered = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template)
    rows = [row for row in read_prompts(PROMPTS) if row.task in tasks]
    assert [rendered.render(task=row.task, text=row.text) for row in rows] == [row.prompt for row in rows]
