"""mlx-lm's own batched decoding, with as much of a row's sampling as it has: samplers, penalties, bias, end tokens."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, StopSequences
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from batchgen.bench.sides import Tokens, end_token_ids
from batchgen.types import Request, Sampling

_SEED = 0


def left_out(request: Request) -> list[str]:
    """The job's keys that this row asks for and mlx-lm does not have."""
    sampling = request.sampling
    keys = {
        "stop": bool(sampling.stop),
        "min_tokens": sampling.min_tokens > 0,
        "thinking_budget": request.thinking_limit is not None,
    }
    if sampling.grammar is not None:
        keys[sampling.grammar.kind] = True
    return [key for key, is_used in keys.items() if is_used]


@dataclass(frozen=True, slots=True)
class MlxLmSide:
    """`mlx_lm.batch_generate` with `batch_size` rows at once.

    What that function does, on the same `BatchGenerator`: only there each row can have a sampler, logits processors
    and end tokens of its own.
    """

    model: nn.Module
    batch_size: int
    eos_token_ids: frozenset[int]
    vocab_size: int
    logprobs: bool

    @property
    def name(self) -> str:
        return f"mlx_lm.batch_generate, {self.batch_size} rows"

    @property
    def acceptance_length(self) -> float | None:
        return None

    def is_comparable(self, request: Request) -> bool:
        return request.sampling.temperature == 0 and not left_out(request)

    def run(self, requests: Sequence[Request]) -> Tokens:
        mx.random.seed(_SEED)  # so that every repeat makes the same tokens
        generator = BatchGenerator(
            self.model,
            completion_batch_size=self.batch_size,
            prefill_batch_size=min(8, self.batch_size),
        )
        with closing(generator):
            ids = generator.insert(
                [list(request.tokens) for request in requests],
                [request.max_tokens for request in requests],
                samplers=[self._sampler(request.sampling) for request in requests],
                logits_processors=[_processors(request.sampling) for request in requests],
                stop_sequences=[_stops(end_token_ids(request, self.eos_token_ids)) for request in requests],
            )
            tokens: dict[int, list[int]] = {one: [] for one in ids}
            while responses := generator.next_generated():
                for response in responses:
                    if response.finish_reason != "stop":
                        tokens[response.uid].append(response.token)
                        if self.logprobs:
                            response.logprobs[response.token].item()
        return {request.key: tuple(tokens[one]) for request, one in zip(requests, ids, strict=True)}

    def _sampler(self, sampling: Sampling) -> Callable[[mx.array], mx.array]:
        if sampling.temperature == 0:
            return _make_sampler(0.0, 1.0, 0.0, 0)
        top_k = sampling.top_k if sampling.top_k < self.vocab_size else 0  # mlx-lm refuses one that keeps all
        return _make_sampler(sampling.temperature, sampling.top_p, sampling.min_p, top_k)


# mlx-lm draws for a whole batch at once if its rows have one and the same sampler object.
@cache
def _make_sampler(temperature: float, top_p: float, min_p: float, top_k: int) -> Callable[[mx.array], mx.array]:
    sampler: Callable[[mx.array], mx.array] = make_sampler(temp=temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    return sampler


@cache
def _stops(ends: frozenset[int]) -> Any:
    return StopSequences([[token] for token in sorted(ends)])


def _processors(sampling: Sampling) -> list[Any]:
    processors: list[Any] = make_logits_processors(
        logit_bias=dict(sampling.logit_bias),
        repetition_penalty=None if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        repetition_context_size=sampling.repetition_context_size,
        presence_penalty=sampling.presence_penalty,
        presence_context_size=sampling.presence_context_size,
        frequency_penalty=sampling.frequency_penalty,
        frequency_context_size=sampling.frequency_context_size,
    )
    return processors
