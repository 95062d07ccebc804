"""Sampled rows for tests: a mix of settings in one batch, and ways to decode it."""

from collections.abc import Sequence
from pathlib import Path

from batchgen.engine import EngineOptions, load
from batchgen.engine.decoder import BatchDecoder
from batchgen.types import Generation, Request, RowKey, Sampling
from tests.engine.builders import prompt_tokens

EOS = frozenset({30})
MAX_TOKENS = 24

BIAS = ((3, 2.5), (11, -50.0), (40, 1.0), (41, -2.0))
# Greedy, hot and cold rows, every filter and penalty, alone and together: neighbours in one batch.
SETTINGS = (
    Sampling(temperature=0.7),
    Sampling(temperature=1.3),
    Sampling(),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.3, min_p=0.1),
    Sampling(temperature=1.0, top_k=5),
    Sampling(repetition_penalty=1.4, repetition_context_size=30),
    Sampling(temperature=0.7, presence_penalty=1.5, frequency_penalty=0.6, presence_context_size=12),
    Sampling(temperature=1.3, top_p=0.9, min_p=0.02, top_k=40, repetition_penalty=1.2, logit_bias=BIAS),
    Sampling(
        temperature=0.7,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        frequency_context_size=50,
        logit_bias=BIAS,
        min_tokens=10,
    ),
    Sampling(logit_bias=((3, 100.0),)),
    Sampling(temperature=1.0, ignore_eos=True, stop_token_ids=(20, 21), min_tokens=4),
)
NUM_ROWS = 20


def requests(num_rows: int = NUM_ROWS, seed: int = 0, max_tokens: int = MAX_TOKENS) -> list[Request]:
    """Rows of many prompt lengths that go through SETTINGS in turn, each with a key of its own."""
    return [
        Request(
            RowKey(row, 0),
            prompt_tokens(100 * seed + row, 1 + row * 13 % 60),
            max_tokens,
            SETTINGS[row % len(SETTINGS)],
            noise_key=(seed * 1_000_003 + row) * 0x9E3779B97F4A7C15 % 2**64,
        )
        for row in range(num_rows)
    ]


def decoder(
    target: Path, drafter: Path | None, max_rows: int, block: int | None = None, coupling: str = "shared"
) -> BatchDecoder:
    options = EngineOptions(EOS, lambda: 0.0, max_rows, block, 512, "float32", coupling, True)  # type: ignore[arg-type]
    return load(target, drafter, options)


def decode(engine: BatchDecoder, asked: Sequence[Request], per_step: int = 100) -> dict[RowKey, Generation]:
    """Decodes all requests in their order, at most `per_step` joining between two steps."""
    waiting, done = list(asked), {}
    while waiting or engine.num_rows:
        joining = waiting[: min(per_step, engine.max_rows - engine.num_rows)]
        waiting = waiting[len(joining) :]
        engine.admit(joining)
        for generation in engine.step():
            assert generation.key not in done
            done[generation.key] = generation
    return done


def texts(done: dict[RowKey, Generation]) -> list[tuple[int, ...]]:
    return [done[key].tokens for key in sorted(done)]
