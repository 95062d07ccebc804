"""Figures taken over whole sequences are the figures that decoding gives."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import batchgen.engine
from batchgen.engine import EngineOptions
from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.loading import load_model
from batchgen.training import drafter as drafters
from batchgen.training import target as targets
from batchgen.training.data import Example, encode
from batchgen.training.evaluate import acceptance, exact_matches
from batchgen.training.greedy import answer
from batchgen.training.loops import Progress, Settings, train_drafter
from batchgen.training.schedule import Budget
from batchgen.training.tasks import task_stream
from batchgen.training.tokenizer import load_tokenizer
from batchgen.types import Request, RowKey

Target = tuple[nn.Module, dict[str, Any]]
NO_TOKEN = 1023


def learn(
    model: DFlash2Model, target: nn.Module, config: dict[str, Any], answered: list[Example], num_steps: int
) -> list[float | None]:
    """Trains on the answers; returns the losses of its reports."""
    settings = Settings(Budget(None, num_steps), 3e-3, tokens_per_batch=480, dtype=mx.float32, report_every_s=0.0)
    reports: list[Progress] = []
    train_drafter(model, target, config, answered, 8, settings, 0, time.monotonic, reports.append)
    return [progress.loss for progress in reports]


@pytest.fixture
def eager() -> Iterator[None]:
    """No compiled steps: each would cost a run of the C++ compiler, more than it saves."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def prompts(tokenizer_folder: Path) -> list[Example]:
    samples = list(islice(task_stream("math", "train", 3), 3)) + list(islice(task_stream("code", "train", 3), 3))
    return encode(load_tokenizer(tokenizer_folder), samples)


def test_greedy_answers_are_argmax_after_argmax(small_target: Target, prompts: list[Example]) -> None:
    model, config = small_target
    for prompt, answered in zip(prompts, answer(model, config, prompts, NO_TOKEN, width=64, num_rows=4), strict=True):
        tokens = prompt.tokens[: prompt.start].tolist()
        while len(tokens) < 64:
            tokens.append(int(mx.argmax(model(mx.array([tokens]))[0, -1]).item()))
        assert answered.start == prompt.start
        assert answered.tokens.tolist() == tokens


def test_answers_stop_at_the_end_token(small_target: Target, prompts: list[Example]) -> None:
    model, config = small_target
    [whole] = answer(model, config, prompts[:1], NO_TOKEN, width=64)
    end = int(whole.tokens[whole.start + 5])
    [cut] = answer(model, config, prompts[:1], end, width=64)
    expected = whole.tokens.tolist()
    expected = expected[: expected.index(end, whole.start) + 1]
    assert cut.tokens.tolist() == expected


def test_match_is_what_greedy_decoding_would_write(small_target: Target, prompts: list[Example]) -> None:
    model, config = small_target
    right = answer(model, config, prompts, NO_TOKEN, width=64)
    wrong = [Example(np.where(np.arange(64) == 63, 5, item.tokens).astype(np.int32), item.start) for item in right]
    assert exact_matches(model, [*right, *wrong, *prompts]) == [True] * 6 + [False] * 12


def test_acceptance_is_the_engines(
    eager: None,
    small_target: Target,
    small_drafter: tuple[DFlash2Model, dict[str, Any]],
    prompts: list[Example],
    tmp_path: Path,
) -> None:
    """Verify passes counted over whole answers equal those of the real decoder on the saved checkpoints."""
    (fresh, config), (draft_model, draft_config) = small_target, small_drafter
    targets.save_target(fresh, config, tmp_path / "target")
    model, _ = targets.load_target(tmp_path / "target")
    model.set_dtype(mx.float32)
    answered = answer(model, config, prompts, NO_TOKEN, width=64)
    learn(draft_model, model, draft_config, answered, num_steps=40)
    drafters.save_drafter(draft_model, tmp_path)
    found = acceptance(load_model(tmp_path, mx.float32), model, draft_config, answered)

    options = EngineOptions(frozenset({NO_TOKEN}), time.monotonic, dtype="float32", max_rows=8, block_size=8)
    decoder = batchgen.engine.load(tmp_path / "target", tmp_path, options)
    decoder.admit(
        [
            Request(RowKey(row, 0), prompt.tokens[: prompt.start].tolist(), 64 - prompt.start)
            for row, prompt in enumerate(prompts)
        ]
    )
    finished = []
    while len(finished) < len(prompts):
        finished += decoder.step()
    passes, tokens = sum(row.verify_passes for row in finished), sum(len(row.tokens) - 1 for row in finished)
    assert {row.key.row: list(row.tokens) for row in finished} == {
        row: item.tokens[item.start :].tolist() for row, item in enumerate(answered)
    }
    assert found.selector_length == pytest.approx(tokens / passes)
    assert 1.0 < found.selector_length < 8.0
