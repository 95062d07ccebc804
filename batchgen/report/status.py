"""Where a run stands, told from its folder alone; safe to ask while the run goes on."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from batchgen.errors import InputError
from batchgen.journal.record import InputRecord, input_changes
from batchgen.journal.run_folder import RunState, read_state
from batchgen.prompts.files import find_files, record_file
from batchgen.report.table import counted


def status_text(output: Path, job_path: Path, inputs: Sequence[str]) -> str:
    """Rows done, errors, starts, who is at work, and where the files are.

    `inputs` are the job's input paths: where rows are missing or the output is, the files there must be as they were.
    """
    state = read_state(output)
    if state is None:
        return (
            f"Not started: {output} has no run folder (paths are relative to {Path.cwd()}).\n"
            f"Start with: batchgen run {job_path}"
        )
    lines = [
        f"{state.num_done:,} of {counted(state.num_rows, 'row')} done, {counted(state.num_errors, 'error')}",
        f"Started {_times(state.num_starts)}" + (f", last at {state.last_start}" if state.last_start else ""),
        _activity(state, output, job_path, inputs),
        f"Run folder: {state.path}",
    ]
    return "\n".join(lines)


def _activity(state: RunState, output: Path, job_path: Path, inputs: Sequence[str]) -> str:
    if state.holder is not None:
        return f"Running now: process {state.holder.pid} on {state.holder.host} since {state.holder.since}"
    is_complete = state.num_done >= state.num_rows
    if is_complete and output.exists():
        return f"Complete: {output}"
    found = f"Complete, but {output} is not there yet" if is_complete else "Not running"
    how = f"{'Make it' if is_complete else 'Go on'} with: batchgen run {job_path}"
    changes = _changes(state, inputs)
    if not changes:
        return f"{found}. {how}"
    return f"{found}, and the input is not as it was: {'; '.join(changes)}. Put the original file back. {how}"


def _changes(state: RunState, inputs: Sequence[str]) -> list[str]:
    """How the input files differ from those that the run began with; a run without rows is not held to them."""
    if not state.num_done:
        return []
    try:
        files = [record_file(path)[0] for path in find_files(inputs)]
    except InputError as error:
        return [str(error)]
    return input_changes(state.input_files, [InputRecord(**asdict(file) | {"path": str(file.path)}) for file in files])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
