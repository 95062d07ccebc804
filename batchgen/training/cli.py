"""Command line of the recipe: `prompts` writes the held-out rows, `pair` makes target and drafter.

Parses and calls; no logic.
"""

import os
import time
from pathlib import Path

import click

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def main() -> None:
    """Makes the bundled pair and the prompts it is measured on."""


@main.command()
@click.option("--out", type=FILE, default="data/prompts.parquet", show_default=True, help="File to write.")
@click.option("--seed", default=2, show_default=True, help="Other seeds give other rows, held out all the same.")
def prompts(out: Path, seed: int) -> None:
    """Writes the held-out prompts."""
    from batchgen.training.prompts import write_prompts

    click.echo(f"{out}: {write_prompts(out, seed)} rows")


@main.command()
@click.option("--out", type=FOLDER, default="data", show_default=True, help="Gets tiny/, tiny-dflash2/, metrics.json.")
@click.option("--prompts", type=FILE, default="data/prompts.parquet", show_default=True, help="Rows to measure on.")
@click.option("--resume", type=FOLDER, help="Folder of a pair to go on with: its tokenizer, and weights if there.")
@click.option("--seed", default=0, show_default=True)
@click.option("--target-seconds", type=float, default=330.0, show_default=True, help="0 keeps the resumed target.")
@click.option("--target-steps", type=int, help="Ends the target's training sooner, at this step.")
@click.option("--target-rate", default=2.5e-3, show_default=True, help="Peak learning rate.")
@click.option("--drafter-seconds", type=float, default=150.0, show_default=True, help="0 keeps the resumed drafter.")
@click.option("--drafter-steps", type=int, help="Ends the drafter's training sooner, at this step.")
@click.option("--drafter-rate", default=1.5e-3, show_default=True, help="Peak learning rate.")
@click.option("--target-batch-tokens", default=65536, show_default=True, help="Padding included.")
@click.option("--drafter-batch-tokens", default=32768, show_default=True, help="Padding included.")
@click.option("--answers", default=16384, show_default=True, help="Prompts that the target answers for the drafter.")
@click.option("--anchors", default=16, show_default=True, help="Blocks per answer and step.")
@click.option("--workers", type=int, help="Processes that make samples; default: the cores less two; 0: this one.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True)
@click.option("--report-every", default=20.0, show_default=True, help="Seconds between progress lines.")
def pair(
    out: Path,
    prompts: Path,
    resume: Path | None,
    seed: int,
    target_seconds: float,
    target_steps: int | None,
    target_rate: float,
    drafter_seconds: float,
    drafter_steps: int | None,
    drafter_rate: float,
    target_batch_tokens: int,
    drafter_batch_tokens: int,
    answers: int,
    anchors: int,
    workers: int | None,
    dtype: str,
    report_every: float,
) -> None:
    """Trains target and drafter, measures them on the prompts, and writes all into one folder."""
    import batchgen.engine  # noqa: F401  before mlx

    import mlx.core as mx  # isort: skip

    from batchgen.training.pair import Recipe, make_pair
    from batchgen.training.schedule import Budget

    recipe = Recipe(
        out=out,
        prompts=prompts,
        seed=seed,
        target_budget=Budget(target_seconds, target_steps),
        drafter_budget=Budget(drafter_seconds, drafter_steps),
        target_rate=target_rate,
        drafter_rate=drafter_rate,
        target_batch_tokens=target_batch_tokens,
        drafter_batch_tokens=drafter_batch_tokens,
        num_answers=answers,
        num_anchors=anchors,
        num_workers=max(1, (os.cpu_count() or 1) - 2) if workers is None else workers,
        dtype=mx.bfloat16 if dtype == "bfloat16" else mx.float32,
        report_every_s=report_every,
        resume=resume,
    )
    started = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - started:6.1f} s] {line}")

    make_pair(recipe, time.monotonic, say)
