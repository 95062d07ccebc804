"""Greedy answers of the target to many prompts at once, for drafter data: every row at the same position.

A step reads one token per row, the prompt's own while it lasts, so that no row needs an offset or a mask of its own.
Simple and fast on a GPU; the engine is what decodes for users.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import ArraysCache

from batchgen.training.data import Example

# Rows decoded together, and how often the host looks whether all of them have ended.
NUM_ROWS = 8192
CHECK_EVERY = 16


class FixedCache:
    """Keys and values in buffers of one size, so that every step has the same shapes."""

    def __init__(self, num_rows: int, num_heads: int, capacity: int, dim: int, dtype: mx.Dtype) -> None:
        self.keys = mx.zeros((num_rows, num_heads, capacity, dim), dtype)
        self.values = mx.zeros((num_rows, num_heads, capacity, dim), dtype)
        self.offset = mx.array(0, mx.int32)

    def make_mask(self, length: int, **_: Any) -> mx.array:
        """What the one new token sees: itself and all before it."""
        return (mx.arange(self.keys.shape[2]) <= self.offset)[None]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Writes one token's keys and values at `offset` and returns the whole buffers."""
        here = (mx.arange(self.keys.shape[2]) == self.offset)[:, None]
        self.keys, self.values = mx.where(here, keys, self.keys), mx.where(here, values, self.values)
        return self.keys, self.values


class Stepper:
    """The target's step from one token per row to the next, compiled for one number of rows and one capacity."""

    def __init__(self, model: nn.Module, config: dict[str, Any], num_rows: int, capacity: int) -> None:
        text = config["text_config"]
        dtype = model.model.norm.weight.dtype
        key_dim = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        value_dim = text["linear_num_value_heads"] * text["linear_value_head_dim"]
        heads = (text["linear_num_value_heads"], text["linear_value_head_dim"], text["linear_key_head_dim"])
        self._caches: list[Any] = []
        for layer in model.layers:
            if layer.is_linear:
                cache = ArraysCache(size=2)
                cache[0] = mx.zeros((num_rows, text["linear_conv_kernel_dim"] - 1, 2 * key_dim + value_dim), dtype)
                cache[1] = mx.zeros((num_rows, *heads), mx.float32)
            else:
                cache = FixedCache(num_rows, text["num_key_value_heads"], capacity, text["head_dim"], dtype)
            self._caches.append(cache)
        self._fresh = self._state()
        self._model = model
        self._step = mx.compile(self._advance)

    def _advance(self, tokens: mx.array, offset: mx.array, state: list[tuple[mx.array, mx.array]]) -> Any:
        for cache, (first, second) in zip(self._caches, state, strict=True):
            if isinstance(cache, FixedCache):
                cache.keys, cache.values, cache.offset = first, second, offset
            else:
                cache[0], cache[1] = first, second
        logits = self._model(tokens[:, None], cache=self._caches)
        return mx.argmax(logits[:, -1], axis=-1).astype(mx.int32), self._state()

    def _state(self) -> list[tuple[mx.array, mx.array]]:
        return [
            (cache.keys, cache.values) if isinstance(cache, FixedCache) else (cache[0], cache[1])
            for cache in self._caches
        ]

    def run(self, tokens: mx.array, starts: mx.array, end_token: int) -> mx.array:
        """Rows [R, W] whose prompts take the first `starts` [R] tokens, told on until all have ended or W is full."""
        state, current = self._fresh, tokens[:, 0]
        columns, ended = [current], mx.zeros(current.shape, mx.bool_)
        for position in range(tokens.shape[1] - 1):
            following, state = self._step(current, mx.array(position, mx.int32), state)
            in_prompt = position + 1 < starts
            current = mx.where(in_prompt, tokens[:, position + 1], following)
            ended = ended | (~in_prompt & (current == end_token))
            columns.append(current)
            mx.async_eval(current, state)
            if position % CHECK_EVERY == 0 and mx.all(ended).item():
                break
        return mx.stack(columns, axis=1)


def answer(
    model: nn.Module,
    config: dict[str, Any],
    prompts: Sequence[Example],
    end_token: int,
    width: int,
    num_rows: int = NUM_ROWS,
) -> list[Example]:
    """The prompts (an example's tokens before its start) with the target's own answers, end token included.

    A row that has not ended within `width` tokens is cut there. Rows of like prompt length are decoded together.
    """
    order = sorted(range(len(prompts)), key=lambda index: prompts[index].start)
    answered: dict[int, Example] = {}
    num_rows = min(num_rows, len(prompts))
    stepper = Stepper(model, config, num_rows, width)
    for first in range(0, len(order), num_rows):
        chosen = order[first : first + num_rows]
        tokens = np.zeros((num_rows, width), dtype=np.int32)
        starts = np.full(num_rows, 1, dtype=np.int32)
        for row, index in enumerate(chosen):
            start = prompts[index].start
            tokens[row, :start], starts[row] = prompts[index].tokens[:start], start
        rows = np.array(stepper.run(mx.array(tokens), mx.array(starts), end_token))
        for row, index in enumerate(chosen):
            answered[index] = Example(_until_end(rows[row], starts[row], end_token), int(starts[row]))
    return [answered[index] for index in range(len(prompts))]


def _until_end(tokens: np.ndarray[Any, np.dtype[np.int32]], start: int, end_token: int) -> Any:
    ends = np.flatnonzero(tokens[start:] == end_token)
    return tokens[: start + ends[0] + 1] if len(ends) else tokens
