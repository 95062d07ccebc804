"""Where a run stands, told from its folder alone; safe to ask while the run goes on."""

from pathlib import Path

from batchgen.journal.run_folder import RunState, read_state
from batchgen.report.table import counted


def status_text(output: Path, job_path: Path) -> str:
    """Rows done, errors, starts, who is at work, and where the files are."""
    state = read_state(output)
    if state is None:
        return (
            f"Not started: {output} has no run folder (paths are relative to {Path.cwd()}).\n"
            f"Start with: batchgen run {job_path}"
        )
    lines = [
        f"{state.num_done:,} of {counted(state.num_rows, 'row')} done, {counted(state.num_errors, 'error')}",
        f"Started {_times(state.num_starts)}" + (f", last at {state.last_start}" if state.last_start else ""),
        _activity(state, output, job_path),
        f"Run folder: {state.path}",
    ]
    return "\n".join(lines)


def _activity(state: RunState, output: Path, job_path: Path) -> str:
    if state.holder is not None:
        return f"Running now: process {state.holder.pid} on {state.holder.host} since {state.holder.since}"
    if state.num_done < state.num_rows:
        return f"Not running. Go on with: batchgen run {job_path}"
    if not output.exists():
        return f"Complete, but {output} is not there yet. Make it with: batchgen run {job_path}"
    return f"Complete: {output}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
