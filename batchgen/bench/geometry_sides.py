"""The sides of a geometry's measurement: each decodes rows of random tokens and times its own rounds and prefill.

Rounds are timed in windows, without waiting for the device in between, since a side may have begun a round before the
last one is read. Only the first window begins and only the last one ends with an idle device.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.generate import BatchGenerator, generate_step, generation_stream, wired_limit

from batchgen.bench.geometry_models import RandomPair, within_memory
from batchgen.bench.geometry_verdicts import DrawnVerdicts, draw_counts
from batchgen.engine import EngineOptions
from batchgen.engine.compiling import on_gpu
from batchgen.engine.decoder import BatchDecoder, DecoderOptions
from batchgen.types import Request, RowKey, Sampling

WINDOW = 8
_WARM_UP_ROUNDS = 8
_ENDLESS = 1 << 30

Prompts = Sequence[Sequence[int]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds per round of each window, tokens per row and round, and the rows' mean length half-way."""

    round_s: tuple[float, ...]
    tokens_per_round: float
    mean_length: float


class GeometrySide(Protocol):
    """One way to decode; `acceptance` is the wanted tokens per row and round, None without a drafter."""

    @property
    def name(self) -> str: ...

    @property
    def acceptance(self) -> float | None: ...

    def decode(self, prompts: Prompts, num_rounds: int) -> Timed:
        """Reads the prompts, goes through some rounds for warming up, and times `num_rounds` (whole windows)."""
        ...

    def prefill(self, prompts: Prompts) -> float:
        """Seconds until each prompt's first token is known, decoding nothing after it."""
        ...


def random_prompts(num_rows: int, length: int, vocab_size: int) -> Prompts:
    """Prompts of `length` tokens, the same in every run; the last token id, the drafter's mask, is not among them."""
    tokens: list[list[int]] = np.random.default_rng(0).integers(0, vocab_size - 1, (num_rows, length)).tolist()
    return tokens


def measure_peak(side: GeometrySide, pair: RandomPair, work: Callable[[], Result]) -> tuple[Result, int]:
    """What `work` of a side returns, and the most bytes in use during it, the weights that it needs among them."""
    mx.clear_cache()
    mx.reset_peak_memory()
    with within_memory(f"{pair.name}, {side.name},"):
        result = work()
    # The drafter lies in memory beside every side, but is a cost of those that use it only.
    unused = pair.drafter_bytes if side.acceptance is None else 0
    return result, mx.get_peak_memory() - unused


def time_rounds(step: Callable[[], object], synchronize: Callable[[], None], num_rounds: int) -> tuple[float, ...]:
    """Seconds per round of each window of rounds."""
    synchronize()
    marks = [time.perf_counter()]
    for number in range(1, num_rounds + 1):
        step()
        if number == num_rounds:
            synchronize()
        if number % WINDOW == 0:
            marks.append(time.perf_counter())
    return tuple((end - start) / WINDOW for start, end in pairwise(marks))


@dataclass(frozen=True, slots=True)
class EngineDecoding:
    """This engine: with the drafter at an acceptance length, or without it."""

    pair: RandomPair
    block: int
    acceptance: float | None

    @property
    def name(self) -> str:
        return "without drafter" if self.acceptance is None else f"with drafter, {self.acceptance:g} a round"

    def decode(self, prompts: Prompts, num_rounds: int) -> Timed:
        verdicts = self._verdicts(num_rounds, len(prompts))
        decoder = self._decoder(len(prompts), verdicts)
        decoder.admit(_requests(prompts, _ENDLESS))
        while verdicts.num_live < len(prompts):
            decoder.step()
        for _ in range(_WARM_UP_ROUNDS):
            decoder.step()
        before, started = verdicts.tokens() / len(prompts), verdicts.num_rounds
        round_s = time_rounds(decoder.step, mx.synchronize, num_rounds)
        timed = verdicts.tokens(started) / len(prompts)
        rounds = verdicts.num_rounds - started
        return Timed(round_s, timed / rounds, len(prompts[0]) + before + timed / 2)

    def prefill(self, prompts: Prompts) -> float:
        decoder = self._decoder(len(prompts), DrawnVerdicts(None))
        requests = _requests(prompts, 1)
        mx.synchronize()
        started = time.perf_counter()
        decoder.admit(requests)
        while decoder.num_rows:
            decoder.step()
        return time.perf_counter() - started

    def _verdicts(self, num_rounds: int, num_rows: int) -> DrawnVerdicts:
        if self.acceptance is None:
            return DrawnVerdicts(None)
        return DrawnVerdicts(draw_counts(self.acceptance, self.block, num_rounds, num_rows))

    def _decoder(self, num_rows: int, verdicts: DrawnVerdicts) -> BatchDecoder:
        defaults = EngineOptions(frozenset(), time.monotonic)
        options = DecoderOptions(
            max_rows=num_rows,
            block_size=1 if self.acceptance is None else self.block,
            prefill_chunk=defaults.prefill_chunk,
            bucket_slots=on_gpu(),
            ahead=on_gpu(),
        )
        drafter = None if self.acceptance is None else self.pair.drafter
        return BatchDecoder(self.pair.target, drafter, options, frozenset(), time.monotonic, verdicts)


def _requests(prompts: Prompts, max_tokens: int) -> list[Request]:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    return [Request(RowKey(number, 0), tokens, max_tokens, sampling) for number, tokens in enumerate(prompts)]


@dataclass(frozen=True, slots=True)
class MlxLmBatch:
    """mlx-lm's `BatchGenerator`, greedy."""

    model: nn.Module

    @property
    def name(self) -> str:
        return "mlx_lm BatchGenerator"

    @property
    def acceptance(self) -> float | None:
        return None

    def decode(self, prompts: Prompts, num_rounds: int) -> Timed:
        with closing(self._generator(prompts, _ENDLESS)) as generator:
            rounds = 1
            while len(generator.next_generated()) < len(prompts):
                rounds += 1
            for _ in range(_WARM_UP_ROUNDS):
                generator.next_generated()
            round_s = time_rounds(generator.next_generated, _synchronize, num_rounds)
            _synchronize()
        return Timed(round_s, 1.0, len(prompts[0]) + rounds + _WARM_UP_ROUNDS + num_rounds / 2)

    def prefill(self, prompts: Prompts) -> float:
        _synchronize()
        started = time.perf_counter()
        with closing(self._generator(prompts, 1)) as generator:
            missing = len(prompts)
            while missing:
                missing -= len(generator.next_generated())
            seconds = time.perf_counter() - started
            _synchronize()
        return seconds

    def _generator(self, prompts: Prompts, max_tokens: int) -> BatchGenerator:
        num_rows = len(prompts)
        generator = BatchGenerator(self.model, completion_batch_size=num_rows, prefill_batch_size=min(8, num_rows))
        generator.insert([list(tokens) for tokens in prompts], [max_tokens] * num_rows)
        return generator


@dataclass(frozen=True, slots=True)
class MlxLmSingle:
    """mlx-lm's loop for one row, `generate_step`, greedy."""

    model: nn.Module

    @property
    def name(self) -> str:
        return "mlx_lm generate_step"

    @property
    def acceptance(self) -> float | None:
        return None

    def decode(self, prompts: Prompts, num_rounds: int) -> Timed:
        (prompt,) = prompts
        with wired_limit(self.model, [generation_stream]):
            tokens = generate_step(mx.array(list(prompt)), self.model, max_tokens=-1)
            for _ in range(1 + _WARM_UP_ROUNDS):
                next(tokens)
            round_s = time_rounds(lambda: next(tokens), _synchronize, num_rounds)
            tokens.close()
        return Timed(round_s, 1.0, len(prompt) + 1 + _WARM_UP_ROUNDS + num_rounds / 2)

    def prefill(self, prompts: Prompts) -> float:
        (prompt,) = prompts
        with wired_limit(self.model, [generation_stream]):
            _synchronize()
            started = time.perf_counter()
            list(generate_step(mx.array(list(prompt)), self.model, max_tokens=0))
            return time.perf_counter() - started


def _synchronize() -> None:
    mx.synchronize(generation_stream)
