"""The commands: parse, call, say the result, set the exit code. Holds no logic of its own.

Every BatchgenError is caught once, here, and becomes `error: ...` and its exit code.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

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

    Exit codes: 0 all rows done, 1 finished with error rows, 2 bad job, input or model (nothing ran), 3 the run failed
    and can be resumed, 130 interrupted and can be resumed.
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
    from batchgen.job.load import load_job
    from batchgen.plan import make_plan
    from batchgen.run import require_startable

    backend = MlxBackend()
    plan = make_plan(load_job(job), backend)
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

    click.echo(status_text(Path(load_job(job).output.path), job))


@main.command()
@job_argument
@click.option("--rows", type=click.IntRange(min=1), help="Measure on the first ROWS rows only.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Turns of each side.")
@click.option(
    "--batch",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    help="Rows at once for mlx-lm; may be repeated.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here too."
)
def bench(job: Path, rows: int | None, repeats: int, batch_sizes: tuple[int, ...], json_path: Path | None) -> None:
    """Time a job's rows with its drafter, without it, and with mlx_lm.batch_generate, as ratios.

    \b
    Example:
      batchgen bench jobs/summarize.yaml --rows 60 --batch 8 --batch 32

    All sides decode the same rows in turn in one process. No run folder and no output is touched.
    """
    from batchgen.bench.job import bench_job

    if json_path is not None and not json_path.parent.is_dir():
        raise OutputError(f"--json: {json_path} cannot be written, for {json_path.parent} is not a folder")
    report = bench_job(
        job, max_rows=rows, repeats=repeats, batch_sizes=batch_sizes, say=lambda line: click.echo(line, err=True)
    )
    click.echo("\n".join(report.lines()))
    if json_path is not None:
        json_path.write_text(json.dumps(report.to_json(), indent=2) + "\n")


@main.command()
def schema() -> None:
    """Print the JSON schema of a job file, for editors.

    \b
    Example:
      batchgen schema > batchgen.schema.json
    """
    from batchgen.job.load import job_schema

    click.echo(json.dumps(job_schema(), indent=2))
