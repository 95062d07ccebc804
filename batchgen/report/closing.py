"""The closing words of a run: what came out, how fast, how well drafts were accepted, and where the file is."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from batchgen.output.progress import clock_text
from batchgen.output.stats import TOTALS_COLUMNS, Totals, tokens_per_s
from batchgen.report.table import counted, figure, format_table
from batchgen.run import Outcome

# More groups than this make no table to look at, and could be as many as rows.
MAX_GROUPS = 50
OTHER_GROUPS = "(other)"

# Below this acceptance length, after this many passes, the drafter costs more than it brings.
POOR_ACCEPTANCE = 1.05
MIN_PASSES = 200


def closing(outcome: Outcome) -> str:
    """The text for a run that was finished, was already complete, or was interrupted."""
    if outcome.state == "interrupted":
        return (
            f"Interrupted: {outcome.num_done:,} of {counted(outcome.num_rows, 'row')} done and kept.\n"
            f"Go on with: batchgen run {outcome.job_path}"
        )
    overall, groups = read_totals(outcome.output, outcome.group_by)
    complete = "Already complete: " if outcome.state == "already complete" else ""
    lines = [f"{complete}{_rows_line(overall)}", *_run_lines(outcome), ""]
    lines += [_groups_table(outcome.group_by, overall, groups), "", f"Written to {outcome.output}"]
    return "\n".join(lines)


def read_totals(path: Path, group_by: str | None) -> tuple[Totals, dict[str, Totals]]:
    """Totals of the final file over all rows, and for each value of a column in order of appearance."""
    overall, groups = Totals(), dict[str, Totals]()
    for values in _rows(path, group_by):
        overall.add(values)
        if group_by is not None:
            _group_of(groups, values[group_by]).add(values)
    return overall, groups


def _rows(path: Path, group_by: str | None) -> Iterator[dict[str, object]]:
    columns = list(dict.fromkeys([*TOTALS_COLUMNS, *([] if group_by is None else [group_by])]))
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024, columns=columns):
            yield from batch.to_pylist()


def _group_of(groups: dict[str, Totals], value: object) -> Totals:
    name = "(null)" if value is None else str(value)
    if name not in groups and len(groups) >= MAX_GROUPS:
        name = OTHER_GROUPS
    return groups.setdefault(name, Totals())


def _rows_line(totals: Totals) -> str:
    text = f"{counted(totals.num_rows, 'row')}: {totals.num_ok:,} ok, {counted(totals.num_errors, 'error')}"
    if totals.num_errors:
        text += f" ({', '.join(f'{kind} {number:,}' for kind, number in totals.errors.most_common())})"
    return f"{text}, {counted(totals.num_empty, 'empty completion')}"


def _run_lines(outcome: Outcome) -> Iterator[str]:
    """What this run did itself; nothing if there was nothing left to decode."""
    if outcome.decoder_facts is None:
        return
    totals, seconds = outcome.totals, outcome.decode_s
    speed = figure(tokens_per_s(totals.completion_tokens, seconds), 1)
    yield (
        f"This run: {counted(totals.num_rows, 'row')}, {counted(totals.completion_tokens, 'completion token')} "
        f"in {clock_text(seconds)}, {speed} tokens/s"
    )
    yield _drafter_line(outcome.drafter, totals)
    if outcome.decoder_facts:
        yield "Engine: " + ", ".join(f"{name} {value}" for name, value in outcome.decoder_facts.items())


def _drafter_line(drafter: str | None, totals: Totals) -> str:
    if drafter is None:
        return "Drafter: none (the job names none)"
    if totals.drafted_tokens == 0:
        return f"Drafter: {drafter}, inactive: no row went on after its first token, or none was left to decode"
    length = totals.acceptance_length
    text = f"Drafter: {drafter}, active, acceptance length {figure(length, 2)}"
    if length is not None and length < POOR_ACCEPTANCE and totals.verify_passes >= MIN_PASSES:
        text += "; hardly any draft was accepted, so check that this drafter was made for this model"
    return text


def _groups_table(group_by: str | None, overall: Totals, groups: dict[str, Totals]) -> str:
    header = [group_by or "", "rows", "errors", "prompt tokens", "completion tokens", "acceptance length"]
    rows = [_table_row(name, totals) for name, totals in groups.items()]
    return format_table(header, [*rows, _table_row("all", overall)])


def _table_row(name: str, totals: Totals) -> list[str]:
    return [
        name,
        f"{totals.num_rows:,}",
        f"{totals.num_errors:,}",
        f"{totals.prompt_tokens:,}",
        f"{totals.completion_tokens:,}",
        figure(totals.acceptance_length, 2),
    ]
