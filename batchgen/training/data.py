"""Training batches of fixed shapes, made from task streams by worker processes.

The batches are a function of the seed alone, however many workers make them. Knows nothing of models.
"""

import multiprocessing
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from batchgen.training.tasks import TRAINING_MIX, Sample, training_stream
from batchgen.training.tokenizer import TURN_END, load_tokenizer, render_chat

Ints = npt.NDArray[np.int32]

# Few widths, since every new shape costs a compilation; the widest holds all but the
# rarest samples, which are left out.
WIDTHS = (80, 128, 192)
CHUNK_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Example:
    """A sample as tokens: the rendered prompt, the response, the end of the turn. The response starts at `start`."""

    tokens: Ints
    start: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of like length, padded at their end: tokens [B, W]; starts and lengths [B]."""

    tokens: Ints
    starts: Ints
    lengths: Ints

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths.sum())


def encode(tokenizer: Tokenizer, samples: Sequence[Sample]) -> list[Example]:
    """Samples as the chat template renders them."""
    prompts = tokenizer.encode_batch([render_chat(sample.prompt) for sample in samples])
    responses = tokenizer.encode_batch([sample.response for sample in samples])
    end = tokenizer.token_to_id(TURN_END)
    return [
        Example(np.array([*prompt.ids, *response.ids, end], dtype=np.int32), len(prompt.ids))
        for prompt, response in zip(prompts, responses, strict=True)
    ]


def pad(examples: Sequence[Example], width: int) -> Batch:
    """One batch of the given width; token 0 fills up."""
    tokens = np.zeros((len(examples), width), dtype=np.int32)
    for row, example in zip(tokens, examples, strict=True):
        row[: len(example.tokens)] = example.tokens
    starts = np.array([example.start for example in examples], dtype=np.int32)
    return Batch(tokens, starts, np.array([len(example.tokens) for example in examples], dtype=np.int32))


def width_of(length: int) -> int:
    """The narrowest of WIDTHS that holds this many tokens."""
    return next(width for width in WIDTHS if length <= width)


def by_width(examples: Sequence[Example]) -> Iterator[tuple[int, list[int]]]:
    """The widths in use, each with the indices of its examples."""
    indices: dict[int, list[int]] = {}
    for index, example in enumerate(examples):
        indices.setdefault(width_of(len(example.tokens)), []).append(index)
    yield from sorted(indices.items())


def batches(chunks: Iterator[list[Example]], tokens_per_batch: int) -> Iterator[Batch]:
    """Batches of about `tokens_per_batch` padded tokens, each of one width, from a stream of examples."""
    waiting: dict[int, list[Example]] = {width: [] for width in WIDTHS}
    for chunk in chunks:
        for example in chunk:
            width = width_of(len(example.tokens))
            waiting[width].append(example)
            if len(waiting[width]) == rows_per_batch(width, tokens_per_batch):
                yield pad(waiting[width], width)
                waiting[width] = []


def rows_per_batch(width: int, tokens_per_batch: int) -> int:
    """Rows in a batch of this width."""
    return max(1, tokens_per_batch // width)


def example_chunks(
    tokenizer_folder: Path, seed: int, num_workers: int, mix: Mapping[str, float] = TRAINING_MIX
) -> Generator[list[Example], None, None]:
    """Endless chunks of training examples, made ahead by `num_workers` processes (0: here, when asked for)."""
    if num_workers == 0:
        for index in count():
            yield _make_chunk(tokenizer_folder, f"{seed}/{index}", dict(mix))
    # Workers are started afresh: a fork of a process that has touched a GPU is not safe.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_one_thread) as pool:
        pending: list[Future[list[Example]]] = []
        try:
            for index in count():
                pending.append(pool.submit(_make_chunk, tokenizer_folder, f"{seed}/{index}", dict(mix)))
                if len(pending) > 2 * num_workers:
                    yield pending.pop(0).result()
        finally:
            for future in pending:
                future.cancel()


def _one_thread() -> None:
    # Every worker's tokenizer would otherwise start a thread for each core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _make_chunk(tokenizer_folder: Path, seed: str, mix: Mapping[str, float]) -> list[Example]:
    samples = list(islice(training_stream(seed, mix), CHUNK_SAMPLES))
    examples = encode(_tokenizer(tokenizer_folder), samples)
    return [example for example in examples if len(example.tokens) <= WIDTHS[-1]]


@cache
def _tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)
