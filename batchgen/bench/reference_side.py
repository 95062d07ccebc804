"""The DFlash authors' own decoding on MLX (`dflash` of PyPI, where it is installed): one row after the other, greedy.

It hooks the model that it decodes with, so it gets a copy of its own.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import load_tokenizer

from batchgen.bench.sides import Tokens, end_token_ids
from batchgen.engine.target.model import read_model
from batchgen.types import Request, Sampling


def is_installed() -> bool:
    """Whether there is a `dflash` to compare with."""
    return importlib.util.find_spec("dflash") is not None


def is_served(request: Request) -> bool:
    """Whether the reference can be asked for this row: greedy, with nothing that changes logits or ends it early."""
    sampling = request.sampling
    plain = Sampling(max_tokens=sampling.max_tokens, seed=sampling.seed, n=sampling.n)
    return sampling == plain and request.stop_matcher is None and request.thinking_limit is None


def _as_it_is(folder: str, **_: Any) -> str:
    return folder


class ReferenceSide:
    """`dflash.model_mlx.stream_generate` over the same folders, in the same arithmetic."""

    def __init__(self, model: Path, drafter: Path, dtype: mx.Dtype, block: int, eos_token_ids: frozenset[int]) -> None:
        reference: Any = importlib.import_module("dflash.model_mlx")
        self._model: nn.Module = read_model(model, dtype, None)
        mx.eval(self._model.parameters())
        # The reference takes Hub ids alone, and asks the Hub for them.
        reference.snapshot_download = _as_it_is
        self._reference, self._draft = reference, reference.load_draft(str(drafter))
        self._draft.set_dtype(dtype)
        self._tokenizer = load_tokenizer(model)
        self._tokenizer.eos_token_ids = set(eos_token_ids)
        self._block, self._eos_token_ids = block, eos_token_ids
        self._num_passes, self._num_tokens = 0, 0

    @property
    def name(self) -> str:
        return "dflash, 1 row"

    @property
    def acceptance_length(self) -> float | None:
        return self._num_tokens / self._num_passes if self._num_passes else None

    def is_comparable(self, request: Request) -> bool:
        return True

    def run(self, requests: Sequence[Request]) -> Tokens:
        self._num_passes, self._num_tokens = 0, 0
        return {request.key: self._row(request) for request in requests}

    def _row(self, request: Request) -> tuple[int, ...]:
        tokens: list[int] = []
        arguments = (self._model, self._draft, self._tokenizer, list(request.tokens))
        for response in self._reference.stream_generate(
            *arguments, block_size=self._block, max_tokens=request.max_tokens
        ):
            tokens += response.tokens
            if response.accepted:
                self._num_passes += 1
                self._num_tokens += response.accepted
        ends = end_token_ids(request, self._eos_token_ids)
        return tuple(tokens[:-1] if tokens and tokens[-1] in ends else tokens)
