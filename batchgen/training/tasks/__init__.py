"""The tasks that the bundled pair is made for: what each one's samples are, and endless streams of them.

A stream is a function of its seed. Samples of the held-out side never come out of a training stream, whatever the
seeds (see `sample`). No file and no token is known here.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random

from batchgen.training.tasks import arithmetic, functions, prose, summary
from batchgen.training.tasks.sample import Sample, Split

__all__ = ["GENERATORS", "TRAINING_MIX", "Sample", "Split", "task_stream", "training_stream"]

GENERATORS: Mapping[str, Callable[[Random], Sample]] = {
    "summary": summary.generate,
    "math": arithmetic.generate,
    "code": functions.generate,
    "prose": prose.generate,
}

# Share of each task among training samples.
TRAINING_MIX: Mapping[str, float] = {"summary": 0.5, "math": 0.25, "code": 0.1, "prose": 0.15}


def task_stream(task: str, split: Split, seed: int | str) -> Iterator[Sample]:
    """Samples of one task and side, without end. A sample may come again."""
    rng, generate = Random(f"{task} {seed}"), GENERATORS[task]
    while True:
        sample = generate(rng)
        if sample.split == split:
            yield sample


def training_stream(seed: int | str, mix: Mapping[str, float] = TRAINING_MIX) -> Iterator[Sample]:
    """Training samples of all tasks in the shares of `mix`, without end."""
    rng = Random(f"mix {seed}")
    streams = {task: task_stream(task, "train", seed) for task in mix}
    while True:
        [task] = rng.choices(list(mix), weights=list(mix.values()))
        yield next(streams[task])
