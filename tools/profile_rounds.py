"""Where a round's time goes on a CUDA machine: `python -m tools.profile_rounds qwen3.5-27b --batch 1,32`.

Runs rounds of a geometry with random weights under torch's profiler, which sees every kernel of the process, and
prints the kernels that take most of the device's time, and how much of the wall time the device was busy. Needs torch
with CUDA beside MLX's.
"""

import time
from collections import defaultdict

import click
import mlx.core as mx
import torch

from batchgen.bench.geometry_models import RandomPair, make_pair
from batchgen.bench.geometry_specs import GEOMETRIES
from batchgen.engine.arrays import int_array
from batchgen.engine.sampling.rules import Rules
from batchgen.engine.speculative import Slots, launch_round

_NUM_ROUNDS = 8
_NUM_KERNELS = 18
_CONTEXT = 256


@click.command()
@click.argument("geometry", type=click.Choice(sorted(GEOMETRIES)))
@click.option("--batch", default="1", help="Numbers of rows, a comma between them.")
@click.option("--block", default=8, help="Block length; 1 decodes plainly.")
@click.option("--no-profile", is_flag=True, help="Times only.")
def main(geometry: str, batch: str, block: int, no_profile: bool) -> None:
    """Profiles rounds of a geometry."""
    pair = make_pair(GEOMETRIES[geometry], block, mx.bfloat16)
    for num_rows in map(int, batch.split(",")):
        for length in dict.fromkeys((1, block)):
            _report(pair, num_rows, length, is_profiled=not no_profile)


def _report(pair: RandomPair, num_rows: int, block: int, *, is_profiled: bool) -> None:
    slots, rules = _filled(pair, num_rows), Rules([None] * num_rows)

    def rounds() -> float:
        started = time.perf_counter()
        for _ in range(_NUM_ROUNDS):
            launch_round(pair.target, pair.drafter if block > 1 else None, slots, block, rules, "shared")
        mx.synchronize()
        return (time.perf_counter() - started) / _NUM_ROUNDS

    rounds()
    wall = min(rounds() for _ in range(3))
    print(f"\n{num_rows} rows, block {block}: {1e3 * wall:.2f} ms a round", flush=True)
    if is_profiled:
        _profile(rounds)


def _filled(pair: RandomPair, num_rows: int) -> Slots:
    state, context = pair.target.make_state(num_rows), pair.drafter.make_context(num_rows)
    counts = int_array([_CONTEXT] * num_rows)
    hidden = pair.target.prefill(state, mx.zeros((num_rows, _CONTEXT), mx.int32), counts)
    assert hidden.features is not None
    pair.drafter.extend(context, hidden.features, counts)
    nothing = mx.zeros((num_rows,), mx.int32)
    slots = Slots(state, context, nothing, nothing + 100_000)
    mx.eval(slots.arrays())
    return slots


def _profile(rounds: object) -> None:
    assert callable(rounds)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        rounds()
    total: dict[str, float] = defaultdict(float)
    number: dict[str, int] = defaultdict(int)
    for event in profile.events():
        total[event.name] += event.device_time
        number[event.name] += 1
    busy = sum(total.values()) / _NUM_ROUNDS / 1e3
    print(f"device busy {busy:.2f} ms a round, {sum(number.values()) / _NUM_ROUNDS:.0f} launches")
    for name in sorted(total, key=lambda name: -total[name])[:_NUM_KERNELS]:
        each = total[name] / _NUM_ROUNDS / 1e3
        print(f"  {each:8.3f} ms {number[name] / _NUM_ROUNDS:7.1f} x  {name[:150]}")


if __name__ == "__main__":
    main()
