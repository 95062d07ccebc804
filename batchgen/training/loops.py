"""The two training loops: the target on task samples, then the drafter on the target's own answers.

Each ends with its budget and reports to a `watch` as it goes; neither reads or writes a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.training.data import Batch, Example, batches
from batchgen.training.drafter import drafter_loss, features_of, sample_anchors
from batchgen.training.optimiser import Trainer
from batchgen.training.schedule import Budget, Clock, learning_rate
from batchgen.training.target import target_loss, token_weights

CHUNK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a loop is; `loss` is the mean since the last report, `waited_s` the time spent waiting for data."""

    step: int
    fraction: float
    elapsed_s: float
    waited_s: float
    num_tokens: int
    loss: float | None


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one loop may use: its budget, its peak rate, padded tokens in a batch, the dtype, reports this often."""

    budget: Budget
    peak_rate: float
    tokens_per_batch: int
    dtype: mx.Dtype
    report_every_s: float


def train_target(
    model: nn.Module, chunks: Iterator[list[Example]], settings: Settings, clock: Clock, watch: Watch
) -> None:
    """Trains `model` in place; at each report and at the end it carries the weights so far in `dtype`."""
    trainer = Trainer(model, lambda tokens, weights: target_loss(model, tokens, weights), settings.dtype)

    def step(rate: float, batch: Batch) -> mx.array:
        return trainer.step(rate, mx.array(batch.tokens), token_weights(batch))

    _run(trainer, step, batches(chunks, settings.tokens_per_batch), settings, clock, watch)


def train_drafter(
    model: DFlash2Model,
    target: nn.Module,
    config: dict[str, Any],
    answered: Sequence[Example],
    num_anchors: int,
    settings: Settings,
    seed: int,
    clock: Clock,
    watch: Watch,
) -> None:
    """Trains `model` in place on sequences that the target wrote, `num_anchors` random blocks in each."""
    rng = np.random.default_rng(seed)

    def loss(tokens: mx.array, anchors: mx.array, lengths: mx.array) -> mx.array:
        return drafter_loss(model, target, tokens, features_of(target, config, tokens), anchors, lengths)

    trainer = Trainer(model, loss, settings.dtype)

    def step(rate: float, batch: Batch) -> mx.array:
        anchors = sample_anchors(rng, batch, num_anchors)
        return trainer.step(rate, mx.array(batch.tokens), mx.array(anchors), mx.array(batch.lengths))

    stream = batches(_epochs(answered, rng), settings.tokens_per_batch)
    _run(trainer, step, stream, settings, clock, watch)


def _epochs(examples: Sequence[Example], rng: np.random.Generator) -> Iterator[list[Example]]:
    """The examples in a new random order each time, without end."""
    while True:
        order = rng.permutation(len(examples))
        for first in range(0, len(order), CHUNK_ROWS):
            yield [examples[index] for index in order[first : first + CHUNK_ROWS]]


def _run(
    trainer: Trainer,
    step: Callable[[float, Batch], mx.array],
    stream: Iterator[Batch],
    settings: Settings,
    clock: Clock,
    watch: Watch,
) -> None:
    started, reported = clock(), clock()
    number, num_tokens, waited_s = 0, 0, 0.0
    losses: list[mx.array] = []
    while (fraction := settings.budget.fraction(clock() - started, number)) < 1.0:
        asked = clock()
        batch = next(stream)
        waited_s += clock() - asked
        losses.append(step(learning_rate(settings.peak_rate, fraction), batch))
        number, num_tokens = number + 1, num_tokens + batch.num_tokens
        if len(losses) > 1:
            mx.eval(losses[-2])  # one step ahead of the host and no more, or the budget's clock would run behind
        if clock() - reported >= settings.report_every_s:
            trainer.publish(settings.dtype)
            watch(Progress(number, fraction, clock() - started, waited_s, num_tokens, _mean(losses)))
            losses, reported = [], clock()
    trainer.publish(settings.dtype)
    watch(Progress(number, 1.0, clock() - started, waited_s, num_tokens, _mean(losses)))


def _mean(losses: Sequence[mx.array]) -> float | None:
    return float(np.mean([np.array(loss) for loss in losses])) if losses else None
