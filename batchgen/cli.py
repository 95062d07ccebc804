"""The commands: parse, call, say the result, set the exit code. Holds no logic of its own.

Every BatchgenError is caught once, here, and becomes `error: ...` and its exit code.
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import click
from click.core import ParameterSource

from batchgen import __version__
from batchgen.errors import EXIT_DONE, EXIT_ERROR_ROWS, EXIT_FAILED, EXIT_INTERRUPTED, BatchgenError, OutputError

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}

job_argument = click.argument("job", type=click.Path(path_type=Path), metavar="JOB")


class Commands(click.Group):
    """The one place where errors and a user's interrupt become exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BatchgenError as error:
            click.echo("\n".join(f"error: {line}" for line in str(error).splitlines()), err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("\ninterrupted; run the same command again to go on", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            os._exit(EXIT_FAILED)  # nobody is left to tell, and closing the streams would fail again
        except Exception:
            # A fault of batchgen's own. Exit code 1 would say that the job finished.
            traceback.print_exc()
            click.echo("error: batchgen failed unexpectedly; what was committed is kept", err=True)
            sys.exit(EXIT_FAILED)


@click.group(cls=Commands, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Generate a completion for every row of a Parquet file.

    \b
    Example:
      batchgen run jobs/summarize.yaml

    Exit codes: 0 all rows done, 1 finished with error rows, 2 bad job, input, model, output or run folder (nothing
    ran), 3 the run failed and can be resumed, 130 interrupted and can be resumed.
    """


@main.command()
@job_argument
@click.option("--quiet", "-q", is_flag=True, help="Show no progress; warnings and the closing table stay.")
def run(job: Path, quiet: bool) -> None:
    """Start a job, or go on with it where it was stopped or killed.

    \b
    Example:
      batchgen run jobs/summarize.yaml

    Rows that are done are never decoded again. Ctrl-C once keeps what is finished and stops; twice stops at once.
    """
    from batchgen.backend import MlxBackend
    from batchgen.report.closing import closing
    from batchgen.run import Surroundings, run_job

    outcome = run_job(job, MlxBackend(), Surroundings(quiet=quiet))
    click.echo(closing(outcome))
    sys.exit(outcome.exit_code)


@main.command()
@job_argument
def check(job: Path) -> None:
    """Look at everything short of loading weights: input, bad rows, lengths, models, output.

    \b
    Example:
      batchgen check jobs/summarize.yaml

    Exits with 1 if some rows can have no completion.
    """
    from batchgen import check as check_room
    from batchgen.backend import MlxBackend
    from batchgen.plan import plan_job
    from batchgen.run import require_startable

    backend = MlxBackend()
    plan = plan_job(job, backend)
    require_startable(plan, backend)
    report = check_room.check(plan)
    click.echo("\n".join(report.lines()))
    sys.exit(EXIT_ERROR_ROWS if report.num_errors else EXIT_DONE)


@main.command()
@job_argument
def status(job: Path) -> None:
    """Say how far a job is, and whether it is running.

    \b
    Example:
      batchgen status jobs/summarize.yaml
    """
    from batchgen.job.load import load_job
    from batchgen.report.status import status_text

    loaded = load_job(job)
    click.echo(status_text(Path(loaded.output.path), job, loaded.input.paths))


class Report(Protocol):
    """What `bench` found, for people and as JSON."""

    def lines(self) -> list[str]: ...

    def to_json(self) -> dict[str, object]: ...


class CommaList(click.ParamType[Any]):
    """`1,8,32` as a tuple of numbers, all of them at least `least`."""

    name = "list"

    def __init__(self, kind: type[int] | type[float], least: int) -> None:
        self._kind, self._least = kind, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self._kind(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(self._least <= number < math.inf for number in numbers):
            what = "whole numbers" if self._kind is int else "numbers"
            self.fail(f"{value!r} is not a list of {what} of at least {self._least} with commas between them")
        return numbers


@main.command()
@click.argument("job", type=click.Path(path_type=Path), metavar="[JOB]", required=False)
@click.option("--rows", type=click.IntRange(min=1), help="Measure on the first ROWS rows of the job only.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Turns of each side.")
@click.option(
    "--batch",
    "batch_sizes",
    type=CommaList(int, 1),
    multiple=True,
    metavar="N,N,...",
    help="Rows at once: with JOB mlx-lm's, with --geometry every side's [there 1,8,32].",
)
@click.option("--geometry", metavar="NAME", help="Measure a model's shape with random weights in place of a job.")
@click.option(
    "--acceptance",
    "acceptances",
    type=CommaList(float, 1),
    default="5.33",
    show_default=True,
    metavar="X,X,...",
    help="With --geometry: tokens per row and round to draw.",
)
@click.option(
    "--block", type=click.IntRange(min=2), default=8, show_default=True, help="With --geometry: anchor and drafts."
)
@click.option(
    "--context", type=click.IntRange(min=2), default=256, show_default=True, help="With --geometry: prompt tokens."
)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=64, show_default=True, help="With --geometry: tokens timed per row."
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="With --geometry: of the weights.",
)
@click.option(
    "--prefill",
    "lengths",
    type=CommaList(int, 2),
    metavar="N,N,...",
    help="With --geometry: time nothing but reading prompts of these lengths.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here too."
)
@click.pass_context
def bench(
    ctx: click.Context, /, job: Path | None, geometry: str | None, json_path: Path | None, **options: Any
) -> None:
    """Time a job's rows with its drafter, without it, and with mlx_lm.batch_generate, as ratios.

    \b
    Examples:
      batchgen bench jobs/summarize.yaml --rows 60 --batch 8,32
      batchgen bench --geometry qwen3-4b --batch 1,8 --acceptance 3,5.33

    All sides decode the same rows in turn in one process. No run folder and no output is touched. With --geometry no
    model is needed: weights are random, and so is how many drafts are accepted.
    """
    _check_bench_options(ctx, job, geometry)
    if json_path is not None and not json_path.parent.is_dir():
        raise OutputError(f"--json: {json_path} cannot be written, for {json_path.parent} is not a folder")
    batch_sizes = [int(size) for sizes in options["batch_sizes"] for size in sizes]
    report = _bench_job(job, batch_sizes, options) if job else _bench_geometry(geometry or "", batch_sizes, options)
    click.echo("\n".join(report.lines()))
    if json_path is not None:
        json_path.write_text(json.dumps(report.to_json(), indent=2) + "\n")


_GEOMETRY_ONLY = ("acceptances", "block", "context", "tokens", "dtype", "lengths")
_NOT_WITH_PREFILL = ("batch_sizes", "acceptances", "context", "tokens")


def _check_bench_options(ctx: click.Context, job: Path | None, geometry: str | None) -> None:
    """Raises a usage error for options that do not go together."""
    if (job is None) == (geometry is None):
        raise click.UsageError("bench measures either a JOB or a --geometry; give one of them.")
    names = {param.name: param.opts[0] for param in ctx.command.params}

    def refuse(options: Sequence[str], why: str) -> None:
        given = [name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if given:
            raise click.UsageError(f"{names[given[0]]} {why}.")

    if job is not None:
        refuse(_GEOMETRY_ONLY, "goes with --geometry only")
    else:
        refuse(["rows"], "goes with a JOB only")
    if ctx.params["lengths"] is not None:
        refuse(_NOT_WITH_PREFILL, "does not go with --prefill")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _bench_job(job: Path, batch_sizes: Sequence[int], options: Mapping[str, Any]) -> Report:
    from batchgen.bench.job import bench_job

    return bench_job(job, max_rows=options["rows"], repeats=options["repeats"], batch_sizes=batch_sizes, say=_say)


def _bench_geometry(name: str, batch_sizes: Sequence[int], options: Mapping[str, Any]) -> Report:
    from batchgen.bench.geometry import bench_geometry
    from batchgen.bench.geometry_prefill import PrefillPlan, bench_prefill
    from batchgen.bench.geometry_report import GeometryPlan
    from batchgen.bench.geometry_specs import GEOMETRIES

    if name not in GEOMETRIES:
        raise click.UsageError(f"--geometry {name!r} is not known; known are {', '.join(GEOMETRIES)}.")
    block, repeats, dtype = (options[key] for key in ("block", "repeats", "dtype"))
    if options["lengths"]:
        return bench_prefill(PrefillPlan(name, options["lengths"], block, repeats, dtype), _say)
    batches, acceptances = tuple(batch_sizes) or (1, 8, 32), options["acceptances"]
    if max(acceptances) > block:
        raise click.UsageError(f"--acceptance: a block of {block} gives at most {block} tokens a round.")
    context, tokens = options["context"], options["tokens"]
    return bench_geometry(GeometryPlan(name, batches, acceptances, block, context, tokens, repeats, dtype), _say)


@main.command()
def schema() -> None:
    """Print the JSON schema of a job file, for editors.

    \b
    Example:
      batchgen schema > batchgen.schema.json
    """
    from batchgen.job.load import job_schema

    click.echo(json.dumps(job_schema(), indent=2))
