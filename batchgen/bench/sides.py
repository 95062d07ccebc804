"""The sides of a comparison: each decodes the same requests and returns their tokens. No side times itself."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlx import nn
from mlx_lm.generate import batch_generate

from batchgen.engine.decoder import BatchDecoder, DecoderOptions
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.target.model import Target
from batchgen.schedule.admission import choose, look_ahead
from batchgen.schema import acceptance_length
from batchgen.types import Generation, Request

Tokens = dict[int, tuple[int, ...]]


class Side(Protocol):
    """One way to decode. `name` says which, for the table."""

    @property
    def name(self) -> str: ...

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verify pass of the last run; None without speculation."""
        ...

    def run(self, requests: Sequence[Request]) -> Tokens:
        """Completion tokens by row number, without the end token."""
        ...


@dataclass(slots=True)
class EngineSide:
    """This project's engine, fed as a run feeds it."""

    name: str
    target: Target
    drafter: Drafter | None
    options: DecoderOptions
    eos_token_ids: frozenset[int]
    generations: list[Generation] = field(default_factory=list)

    def run(self, requests: Sequence[Request]) -> Tokens:
        decoder = BatchDecoder(self.target, self.drafter, self.options, self.eos_token_ids, time.monotonic)
        waiting, self.generations = list(requests), []
        while waiting or decoder.num_rows:
            ahead = waiting[: look_ahead(decoder.max_rows)]
            chosen = set(choose([len(request.tokens) for request in ahead], decoder.max_rows - decoder.num_rows))
            decoder.admit([request for position, request in enumerate(ahead) if position in chosen])
            waiting = [request for position, request in enumerate(waiting) if position not in chosen]
            self.generations += decoder.step()
        return {
            generation.key.row: tuple(token for token in generation.tokens if token not in self.eos_token_ids)
            for generation in self.generations
        }

    @property
    def acceptance_length(self) -> float | None:
        if self.drafter is None:
            return None
        return acceptance_length(
            sum(generation.accepted_tokens for generation in self.generations),
            sum(generation.verify_passes for generation in self.generations),
        )


@dataclass(frozen=True, slots=True)
class _StopTokens:
    """The part of a tokenizer that `batch_generate` asks for."""

    eos_token_ids: frozenset[int]

    def decode(self, tokens: Any) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class MlxLmSide:
    """`mlx_lm.batch_generate` with `batch_size` rows at once."""

    model: nn.Module
    batch_size: int
    eos_token_ids: frozenset[int]

    @property
    def name(self) -> str:
        return f"mlx_lm.batch_generate, {self.batch_size} rows"

    @property
    def acceptance_length(self) -> float | None:
        return None

    def run(self, requests: Sequence[Request]) -> Tokens:
        response = batch_generate(
            self.model,
            _StopTokens(self.eos_token_ids),
            [list(request.tokens) for request in requests],
            max_tokens=[request.max_tokens for request in requests],
            return_token_ids=True,
            completion_batch_size=self.batch_size,
            prefill_batch_size=min(8, self.batch_size),
        )
        assert response.token_ids is not None
        return {request.key.row: tuple(tokens) for request, tokens in zip(requests, response.token_ids, strict=True)}
