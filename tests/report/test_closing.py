"""The closing text: counts, speed, acceptance by group, whether drafts were used, where the file is."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.output.stats import Totals
from batchgen.report.closing import MAX_GROUPS, OTHER_GROUPS, closing, read_totals
from batchgen.run import Outcome
from batchgen.schema import part_schema, result_values
from batchgen.types import Generation, Result, RowKey
from tests.fakes import make_error, make_result


def with_acceptance(row: int, passes: int, accepted: int) -> Result:
    tokens = tuple(range(1 + passes + accepted))
    generation = Generation(RowKey(row, 0), tokens, "length", 4, 0, passes, 7 * passes, accepted, (), 0.5, 0.5)
    return make_result(row, generation=generation)


def write_final(path: Path, results: list[Result], **columns: list[Any]) -> None:
    table = pa.Table.from_pylist([result_values(result) for result in results], schema=part_schema())
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table.drop_columns(["row"]), path)


def outcome(path: Path, **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "state": "finished",
        "job_path": Path("jobs/x.yaml"),
        "output": path,
        "group_by": None,
        "drafter": None,
        "num_rows": 4,
        "num_done": 4,
        "num_errors": 0,
        "totals": Totals(),
        "decode_s": 2.0,
        "decoder_facts": {"device": "cpu"},
    }
    return Outcome(**(values | changes))


def totals_of(results: list[Result]) -> Totals:
    totals = Totals()
    for result in results:
        totals.add_result(result)
    return totals


def test_the_whole_text(tmp_path: Path) -> None:
    path = tmp_path / "o.parquet"
    results = [
        with_acceptance(0, 3, 6),
        with_acceptance(1, 1, 0),
        make_error(2),
        make_result(3, completion=""),
    ]
    write_final(path, results, task=["math", "prose", "math", "math"])
    text = closing(outcome(path, group_by="task", num_errors=1, drafter="tiny-dflash2", totals=totals_of(results[:2])))
    assert text == "\n".join(
        [
            "4 rows: 3 ok, 1 error (missing_prompt 1), 1 empty completion",
            "This run: 2 rows, 12 completion tokens in 0:00:02, 6.0 tokens/s",
            "Drafter: tiny-dflash2, active, acceptance length 2.50",
            "Engine: device cpu",
            "",
            "task   rows  errors  prompt tokens  completion tokens  acceptance length",
            "math      3       1              8                 13               2.75",
            "prose     1       0              4                  2               1.00",
            "all       4       1             12                 15               2.40",
            "",
            f"Written to {path}",
        ]
    )


def test_a_finished_run_that_is_run_again_says_so(tmp_path: Path) -> None:
    write_final(tmp_path / "o.parquet", [make_result(0)])
    text = closing(outcome(tmp_path / "o.parquet", state="already complete", decoder_facts=None))
    assert text.startswith("Already complete: 1 row: 1 ok, 0 errors")
    assert "This run" not in text
    assert text.endswith(f"Written to {tmp_path / 'o.parquet'}")


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    text = closing(outcome(tmp_path / "o.parquet", state="interrupted", num_done=3))
    assert text == "Interrupted: 3 of 4 rows done and kept.\nGo on with: batchgen run jobs/x.yaml"


@pytest.mark.parametrize(
    ("drafter", "passes", "accepted", "line"),
    [
        (None, 10, 0, "Drafter: none (the job names none)"),
        ("d", 0, 0, "Drafter: d, inactive: no row went on after its first token, or none was left to decode"),
        ("d", 300, 3, "Drafter: d, active, acceptance length 1.01; hardly any draft was accepted"),
        ("d", 10, 0, "Drafter: d, active, acceptance length 1.00"),
    ],
)
def test_whether_drafts_were_used(tmp_path: Path, drafter: str | None, passes: int, accepted: int, line: str) -> None:
    write_final(tmp_path / "o.parquet", [make_result(0)])
    totals = totals_of([with_acceptance(0, passes, accepted)])
    text = closing(outcome(tmp_path / "o.parquet", drafter=drafter, totals=totals))
    assert next(found for found in text.splitlines() if found.startswith("Drafter")).startswith(line)
    assert ("hardly any" in text) == (passes == 300)


def test_a_run_without_time_or_passes_has_no_rates(tmp_path: Path) -> None:
    write_final(tmp_path / "o.parquet", [make_error(0)])
    text = closing(outcome(tmp_path / "o.parquet", decode_s=0.0))
    assert "- tokens/s" in text
    assert "nan" not in text


def test_groups_of_any_type_and_not_too_many(tmp_path: Path) -> None:
    path = tmp_path / "o.parquet"
    num_rows = MAX_GROUPS + 10
    write_final(path, [make_result(row) for row in range(num_rows)], n=[None, *range(1, num_rows)])
    overall, groups = read_totals(path, "n")
    assert overall.num_rows == num_rows
    assert list(groups)[:3] == ["(null)", "1", "2"]
    assert len(groups) == MAX_GROUPS + 1
    assert groups[OTHER_GROUPS].num_rows == 10
    assert sum(group.num_rows for group in groups.values()) == num_rows


def test_columns_of_the_group_may_be_nested(tmp_path: Path) -> None:
    path = tmp_path / "o.parquet"
    write_final(path, [make_result(0), make_result(1)], tags=[["a", "b"], None])
    _, groups = read_totals(path, "tags")
    assert list(groups) == ["['a', 'b']", "(null)"]
