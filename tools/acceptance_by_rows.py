"""Tokens per row and round against the number of rows, same prompts and block: `python -m tools.acceptance_by_rows`.

Speculation that keeps its gain in a batch has one figure in every line. Prints a table for the docs, with the most
memory that rounds took beside the models.
"""

import time
from dataclasses import replace
from pathlib import Path

import click
import mlx.core as mx

from batchgen import engine
from batchgen.backend import MlxBackend, engine_options
from batchgen.bench.sides import EngineSide
from batchgen.job.load import load_job
from batchgen.plan import open_models
from batchgen.prompts.read import InputTable
from batchgen.types import Request, RowError


@click.command()
@click.argument("job_path", type=click.Path(path_type=Path), default=Path("jobs/summarize.yaml"))
@click.option("--prompts", default=128, help="Prompts to decode at each number of rows.")
@click.option("--rows", default="1,2,4,8,16,32,64", help="Numbers of rows, a comma between them.")
@click.option("--block", default=8)
def main(job_path: Path, prompts: int, rows: str, block: int) -> None:
    """Decodes the same prompts at several numbers of rows."""
    job = load_job(job_path)
    models = open_models(job, MlxBackend())
    codec = models.codec
    options = replace(engine_options(job, codec.eos_token_ids, time.monotonic), block_size=block)
    decoder = engine.load(models.model.path, models.drafter_path, options)
    asked: list[Request] = []
    for prompt in InputTable.open(job.input, job.sampling).prompts():
        made = codec.requests(prompt, [0])
        if not isinstance(made, RowError) and len(asked) < prompts:
            asked += made
    print("| rows | tokens per row and round | rounds, all rows together | memory beside the models, MB |")
    print("|---|---|---|---|")
    expected = None
    for num_rows in map(int, rows.split(",")):
        own = replace(decoder.options, max_rows=num_rows)
        side = EngineSide("", decoder.target, decoder.drafter, own, codec.eos_token_ids)
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        tokens = side.run(asked)
        assert expected is None or tokens == expected
        expected = tokens
        rounds = sum(one.verify_passes for one in side.generations)
        made_tokens = sum(one.accepted_tokens + one.verify_passes for one in side.generations)
        peak = (mx.get_peak_memory() - before) / 1e6
        print(f"| {num_rows} | {made_tokens / rounds:.3f} | {rounds} | {peak:.1f} |", flush=True)


if __name__ == "__main__":
    main()
