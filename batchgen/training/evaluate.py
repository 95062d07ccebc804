"""How good a pair is on rows that it was not trained on: right answers, and how many drafts would be accepted.

Works on whole sequences at once and comes to the figures that decoding gives: a greedy answer equals the reference
exactly if each of the reference's tokens is the most likely one after those before it, and greedy speculation passes
over the target's own answer, one accepted run at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx import nn

from batchgen.engine.drafters.dflash2 import DFlash2Model
from batchgen.engine.drafters.selector import greedy_path
from batchgen.engine.target.layers import head, run_layers
from batchgen.training.data import Batch, Example, Ints, by_width, pad
from batchgen.training.drafter import BLOCK_SIZE, block_targets, draft_states, features_of

Bools = npt.NDArray[np.bool_]

# Rows and anchors looked at together.
NUM_ROWS = 64
NUM_ANCHORS = 32


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of one task: tokens per verify pass by selector and by plain top-1, and candidate recall per draft position."""

    selector_length: float
    top1_length: float
    recall: tuple[float, ...]


def exact_matches(model: nn.Module, examples: Sequence[Example]) -> list[bool]:
    """For each example, whether greedy decoding from its prompt would write exactly its response and end."""
    matches = [False] * len(examples)
    for width, indices in by_width(examples):
        for first in range(0, len(indices), NUM_ROWS):
            chosen = indices[first : first + NUM_ROWS]
            batch = pad([examples[index] for index in chosen], width)
            best = np.array(mx.argmax(head(model, run_layers(model, mx.array(batch.tokens)).final), axis=-1))
            for row, index in enumerate(chosen):
                start, end = batch.starts[row], batch.lengths[row]
                matches[index] = bool(np.array_equal(best[row, start - 1 : end - 1], batch.tokens[row, start:end]))
    return matches


def acceptance(
    model: DFlash2Model, target: nn.Module, config: dict[str, Any], answered: Sequence[Example]
) -> Acceptance:
    """Figures of blocks of BLOCK_SIZE over the target's own greedy answers, end tokens included."""
    passes, num_tokens = np.zeros(2, dtype=np.int64), 0
    hits, seen = np.zeros(BLOCK_SIZE - 1), np.zeros(BLOCK_SIZE - 1)
    for width, indices in by_width(answered):
        for first in range(0, len(indices), NUM_ROWS):
            batch = pad([answered[index] for index in indices[first : first + NUM_ROWS]], width)
            blocks = _all_blocks(model, target, config, batch)
            for row, num_anchors in enumerate(batch.lengths - 1 - batch.starts):
                selector, top1, recalled, inside = (part[row, :num_anchors] for part in blocks)
                passes += [_num_passes(np.cumprod(part, axis=1).sum(axis=1)) for part in (selector, top1)]
                hits, seen = hits + recalled.sum(axis=0), seen + inside.sum(axis=0)
                num_tokens += int(num_anchors)
    selector_length, top1_length = (float(num_tokens / count) if count else float("nan") for count in passes)
    return Acceptance(selector_length, top1_length, tuple(float(value) for value in hits / np.maximum(seen, 1)))


def _num_passes(accepted: Ints) -> int:
    """Verify passes over an answer whose pass at its i-th token accepts `accepted[i]` drafts."""
    position, passes = 0, 0
    while position < len(accepted):
        position += int(accepted[position]) + 1
        passes += 1
    return passes


def _all_blocks(model: DFlash2Model, target: nn.Module, config: dict[str, Any], batch: Batch) -> list[Bools]:
    """Blocks at every response token, [B, N, BLOCK_SIZE - 1] each: right by selector, right by top-1, true token among
    the candidates, and whether the draft stands within the answer. N covers the longest; what is past a row's last
    anchor means nothing."""
    tokens, lengths = mx.array(batch.tokens), mx.array(batch.lengths)
    features = features_of(target, config, tokens)
    last = batch.lengths[:, None] - 2
    parts = []
    for first in range(0, int((batch.lengths - 1 - batch.starts).max()), NUM_ANCHORS):
        anchors = np.minimum(batch.starts[:, None] + first + np.arange(NUM_ANCHORS), last).astype(np.int32)
        parts.append(_block_hits(model, target, tokens, features, lengths, mx.array(anchors)))
    return [np.concatenate(part, axis=1) for part in zip(*parts, strict=True)]


def _block_hits(
    model: DFlash2Model, target: nn.Module, tokens: mx.array, features: mx.array, lengths: mx.array, anchors: mx.array
) -> list[Bools]:
    truth, inside = block_targets(tokens, anchors, lengths)
    drafts, inside = truth[..., 1:], inside[..., 1:]
    hidden = draft_states(model, target, features, anchors, truth[..., 0])
    logits = model.logits(hidden, lambda states: head(target, states))
    flat = (-1, BLOCK_SIZE - 1)
    candidates, scores = model.candidate_selector.transitions(
        hidden.reshape(*flat, hidden.shape[-1]), logits.reshape(*flat, logits.shape[-1]), truth[..., 0].reshape(-1)
    )
    path = greedy_path(candidates, scores).reshape(drafts.shape)
    recalled = mx.any(candidates.reshape(*drafts.shape, -1) == drafts[..., None], axis=-1)
    hits = (path == drafts, mx.argmax(logits, axis=-1) == drafts, recalled)
    return [np.array(part) for part in (*(hit & inside for hit in hits), inside)]
