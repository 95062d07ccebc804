"""Assembles the rooms for `batchgen run`: checks everything cheap first, decodes what is missing, merges, tells.

The order is the promise: nothing is written before the job, the input, the output and the pair of models are known to
be good, and no weight is read before the run folder says that rows are missing. Decides nothing about rows itself.
"""

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TextIO

from batchgen.backend import Backend, versions
from batchgen.errors import (
    EXIT_DONE,
    EXIT_ERROR_ROWS,
    EXIT_INTERRUPTED,
    PUT_BACK,
    EngineError,
    InputError,
    InputLostError,
    OutputError,
)
from batchgen.job.load import dump_job
from batchgen.journal import run_folder as journal
from batchgen.journal.disk import Disk
from batchgen.journal.run_folder import RunFolder, run_folder_path
from batchgen.output.final import FinalState, Mark, final_state, is_foreign, make_metadata
from batchgen.output.merge import merge
from batchgen.output.progress import Progress, make_progress
from batchgen.output.stats import Totals
from batchgen.plan import Plan, plan_job
from batchgen.schedule.loop import Loop, LoopOptions
from batchgen.schedule.stop import StopSignals
from batchgen.types import RowKey


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def _time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run takes from the world around it: where it talks to people, clocks, disk, chance."""

    console: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    clock: Callable[[], float] = time.monotonic
    time: Callable[[], str] = _time
    disk: Disk = field(default_factory=Disk)
    new_id: Callable[[], str] = _new_id

    def say(self, message: str) -> None:
        """One whole line, at once."""
        self.console.write(message + "\n")
        self.console.flush()

    def say_stopping(self) -> None:
        """What the first signal is answered with."""
        self.say("\nstopping after this round; once more to leave at once")

    def warn(self, message: str) -> None:
        """A line that is shown also where quiet is asked for."""
        self.say(f"warning: {message}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `totals`, `decode_s` and `decoder_facts` are of this run alone.

    `decoder_facts` is None if nothing had to be decoded.
    """

    state: Literal["finished", "already complete", "interrupted"]
    job_path: Path
    output: Path
    group_by: str | None
    drafter: str | None
    num_rows: int
    num_done: int
    num_errors: int
    totals: Totals
    decode_s: float
    decoder_facts: Mapping[str, str | int | float | None] | None

    @property
    def exit_code(self) -> int:
        if self.state == "interrupted":
            return EXIT_INTERRUPTED
        return EXIT_ERROR_ROWS if self.num_errors else EXIT_DONE


def run_job(job_path: Path, backend: Backend, surroundings: Surroundings) -> Outcome:
    """Starts the job or goes on with it, to the final file or to the first signal.

    Raises the errors of `errors.py`; rows that were committed before stay done whatever is raised.
    """
    plan = plan_job(job_path, backend)
    _require_own_file(plan.output)
    with (
        _open_folder(plan, backend, surroundings) as folder,
        StopSignals(surroundings.say_stopping) as stop,
        _input_in_use(),
    ):
        plan.codec.pin_time(folder.run.begun)
        final = _require_own_final(plan, folder)
        if not folder.run.num_rows:
            surroundings.warn(f"no row of the input takes part ({plan.table.num_rows} rows before input.where)")
        progress = make_progress(surroundings.console, surroundings.clock, surroundings.quiet)
        facts = None if _is_complete(folder) else _decode(plan, folder, backend, surroundings, progress, stop)
        if not _is_complete(folder):
            state: Literal["finished", "already complete", "interrupted"] = "interrupted"
        elif final == "current":
            state = "already complete"
        else:
            progress.phase(f"writing {plan.output}")
            _merge(plan, folder, surroundings)
            state = "finished"
        return Outcome(
            state=state,
            job_path=job_path,
            output=plan.output,
            group_by=plan.job.report.group_by,
            drafter=plan.job.drafter,
            num_rows=folder.run.num_rows,
            num_done=len(folder.done),
            num_errors=folder.num_errors,
            totals=progress.totals,
            decode_s=progress.decode_s,
            decoder_facts=facts,
        )


def require_startable(plan: Plan, backend: Backend) -> None:
    """Raises what `run_job` would raise of a plan before it writes anything: for `check`, which never writes."""
    _require_own_file(plan.output)
    journal.require_startable(plan.output, plan.fingerprint(backend), plan.input_records())


def _open_folder(plan: Plan, backend: Backend, surroundings: Surroundings) -> RunFolder:
    return RunFolder.open(
        plan.output,
        fingerprint=plan.fingerprint(backend),
        input_files=plan.input_records(),
        count_rows=plan.table.count_outputs,
        new_id=surroundings.new_id,
        now=surroundings.time(),
        disk=surroundings.disk,
        warn=surroundings.warn,
    )


@contextlib.contextmanager
def _input_in_use() -> Iterator[None]:
    """What is refused of the input now was good when the run began, and rows may be done: that is no refusal to run."""
    try:
        yield
    except InputError as error:
        advice = "" if PUT_BACK in str(error) else f"; {PUT_BACK}"
        raise InputLostError(f"{error}{advice}") from error


def _require_own_file(output: Path) -> None:
    """OutputError if something stands at the output path that its run did not make, before anything is written."""
    if is_foreign(output, journal.read_folder_id(output)):
        raise _foreign_file(output)


def _require_own_final(plan: Plan, folder: RunFolder) -> FinalState:
    """What stands at the output path; OutputError if this run did not make it."""
    state = final_state(plan.output, _mark(folder), plan.final_schema)
    if state == "foreign":
        raise _foreign_file(plan.output)
    return state


def _foreign_file(output: Path) -> OutputError:
    folder = run_folder_path(output)
    known = f"the run in {folder}" if folder.exists() else f"a run that is known here ({folder} is missing)"
    return OutputError(f"{output} exists and was not made by {known}; move it away, or choose another path")


def _is_complete(folder: RunFolder) -> bool:
    return len(folder.done) == folder.run.num_rows


def _decode(
    plan: Plan,
    folder: RunFolder,
    backend: Backend,
    surroundings: Surroundings,
    progress: Progress,
    stop: StopSignals,
) -> Mapping[str, str | int | float | None]:
    """Decodes the missing rows until none is left or a signal comes; returns what the engine says of itself."""
    progress.phase(f"loading {plan.job.model}" + (f" and {plan.job.drafter}" if plan.job.drafter else ""))
    decoder = backend.load_decoder(
        plan.models.model.path,
        plan.models.drafter_path,
        plan.job,
        plan.codec.eos_token_ids,
        surroundings.clock,
    )
    for hint in () if surroundings.quiet else decoder.hints():
        surroundings.say(f"hint: {hint}")
    run_id = surroundings.new_id()
    attempt = folder.begin_attempt(run_id, surroundings.time(), dump_job(plan.job))
    progress.start(len(folder.done), folder.num_errors, folder.run.num_rows)
    loop = Loop(
        prompts=plan.table.prompts(_is_done(plan, folder)),
        codec=plan.codec,
        decoder=decoder,
        journal=folder,
        progress=progress,
        options=LoopOptions(
            checkpoint_s=plan.job.output.checkpoint_every,
            attempt=attempt,
            run_id=run_id,
        ),
        clock=surroundings.clock,
        should_stop=lambda: stop.requested,
    )
    try:
        loop.run()
    finally:
        progress.close()
    if not stop.requested and not _is_complete(folder):
        num_lost = folder.run.num_rows - len(folder.done)
        raise EngineError(f"{num_lost} rows went into the engine and never came out; run the same job again")
    return decoder.summary()


def _is_done(plan: Plan, folder: RunFolder) -> Callable[[int], bool]:
    """Which input rows have all their samples."""

    def is_done(row: int) -> bool:
        return all(RowKey(row, sample) in folder.done for sample in range(plan.table.num_samples(row)))

    return is_done


def _merge(plan: Plan, folder: RunFolder, surroundings: Surroundings) -> None:
    facts = {
        "job": plan.job.model_dump(mode="json"),
        "model": dict(plan.models.model.identity),
        "drafter": None if plan.models.drafter is None else dict(plan.models.drafter.identity),
        "versions": versions(),
    }
    merge(
        plan.output,
        parts=folder.path / "parts",
        records=folder.records,
        kept=plan.table.kept(),
        schema=plan.final_schema,
        num_rows=folder.run.num_rows,
        num_samples=plan.table.num_samples,
        metadata=make_metadata(_mark(folder), facts),
        disk=surroundings.disk,
    )


def _mark(folder: RunFolder) -> Mark:
    return Mark(folder.run.folder_id, folder.parts_digest)
