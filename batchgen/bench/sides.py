"""The sides of a comparison: each decodes the same requests and returns their tokens. No side times itself."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from batchgen.engine.decoder import BatchDecoder, DecoderOptions
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.target.model import Target
from batchgen.schedule.loop import Loop, LoopOptions
from batchgen.schema import acceptance_length
from batchgen.types import Generation, Prompt, Request, Result, RowKey, Sampling

Tokens = dict[RowKey, tuple[int, ...]]


class Side(Protocol):
    """One way to decode. `name` says which, for the table."""

    @property
    def name(self) -> str: ...

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verify pass of the last run; None without speculation."""
        ...

    def is_comparable(self, request: Request) -> bool:
        """Whether the row's tokens must be those of the engine without a drafter."""
        ...

    def run(self, requests: Sequence[Request]) -> Tokens:
        """Completion tokens by row, without the end token. Requests serve one run, for their matchers move."""
        ...


@dataclass(slots=True)
class EngineSide:
    """This project's engine, fed by a run's own loop."""

    name: str
    target: Target
    drafter: Drafter | None
    options: DecoderOptions
    eos_token_ids: frozenset[int]
    generations: list[Generation] = field(default_factory=list)

    def is_comparable(self, request: Request) -> bool:
        is_greedy = request.sampling.temperature == 0
        return self.drafter is None or is_greedy or self.options.coupling == "shared"

    def run(self, requests: Sequence[Request]) -> Tokens:
        decoder = BatchDecoder(self.target, self.drafter, self.options, self.eos_token_ids, time.monotonic)
        self.generations = decode(decoder, requests)
        ends = {request.key: end_token_ids(request, self.eos_token_ids) for request in requests}
        return {one.key: _without_end(one.tokens, ends[one.key]) for one in self.generations}

    @property
    def acceptance_length(self) -> float | None:
        if self.drafter is None:
            return None
        return acceptance_length(
            sum(generation.accepted_tokens for generation in self.generations),
            sum(generation.verify_passes for generation in self.generations),
        )


def decode(decoder: BatchDecoder, requests: Sequence[Request]) -> list[Generation]:
    """Decodes requests in the order in which a run would: samples from 0 on, those of a prompt one after the other."""
    by_row: dict[int, list[Request]] = {}
    for request in requests:
        by_row.setdefault(request.key.row, []).append(request)
    sink = _Sink()
    Loop(
        prompts=(Prompt(row, sampling=Sampling(n=len(samples))) for row, samples in by_row.items()),
        codec=_ReadyCodec(by_row),
        decoder=decoder,
        journal=sink,
        progress=sink,
        options=LoopOptions(checkpoint_s=float("inf"), attempt=1, run_id=""),
        clock=time.monotonic,
        should_stop=lambda: False,
    ).run()
    return sink.generations


def end_token_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """Tokens that end this row."""
    sampling = request.sampling
    return (frozenset() if sampling.ignore_eos else eos_token_ids) | frozenset(sampling.stop_token_ids)


def _without_end(tokens: tuple[int, ...], ends: frozenset[int]) -> tuple[int, ...]:
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


@dataclass(frozen=True, slots=True)
class _ReadyCodec:
    """Hands the loop requests that were made before, since making them is not timed."""

    by_row: dict[int, list[Request]]

    def requests(self, prompt: Prompt, samples: Sequence[int]) -> list[Request]:
        return [self.by_row[prompt.row][sample] for sample in samples]

    def completion(self, request: Request, tokens: Sequence[int]) -> tuple[str, str | None]:
        return "", None


@dataclass(slots=True)
class _Sink:
    """Stands in for journal and progress: keeps what was decoded, writes and shows nothing."""

    done: frozenset[RowKey] = frozenset()
    generations: list[Generation] = field(default_factory=list)

    def commit(self, results: Sequence[Result]) -> None:
        self.generations += [result.generation for result in results if result.generation is not None]

    def advance(self, results: Sequence[Result]) -> None:
        pass
