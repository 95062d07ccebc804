"""A target and a drafter that are tables, decoded by the engine's own rounds over thousands of rows at once.

What a token follows decides its logits, in both. The drafter has a few candidates at each position, as DFlash2 has.
`exact` is what two successive tokens are distributed like, found with numpy alone.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from batchgen.engine.drafters.drawing import draw_drafts
from batchgen.engine.row import Row
from batchgen.engine.sampling.coupling import Coupling, decide
from batchgen.engine.sampling.rules import Rules
from batchgen.types import Request, RowKey, Sampling

VOCAB = 8
PROMPT = (5, 1, 6, 1)
Array = npt.NDArray[np.float64]

# Flat enough that every setting leaves many outcomes, and a drafter that is often wrong.
_RNG = np.random.default_rng(0)
TARGET = _RNG.normal(0, 1.1, (VOCAB, VOCAB)).astype(np.float32)
DRAFTER = (0.7 * TARGET + _RNG.normal(0, 0.8, (VOCAB, VOCAB))).astype(np.float32)
# Candidates of even and odd tokens of the completion: some tokens can only come from the target itself.
FEW = np.array([[0, 1, 2, 4, 7], [0, 2, 3, 5, 6]], np.int32)
EVERY = np.tile(np.arange(VOCAB, dtype=np.int32), (2, 1))


@dataclass(frozen=True)
class Draws:
    """counts[a, b] of the rows' first two tokens; how each row's tokens came to be, over all rows: drafts that stood,
    tokens in the place of a rejected draft, tokens behind a whole accepted block; and whether the first draft stood."""

    counts: npt.NDArray[np.int64]
    num_accepted: int
    num_replaced: int
    num_behind: int
    first_stood: npt.NDArray[np.bool_]


def keys(count: int, seed: int = 0) -> list[int]:
    return [int(key) for key in np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)]


def draw(
    sampling: Sampling,
    coupling: Coupling,
    num_drafts: int,
    noise_keys: list[int],
    candidates: npt.NDArray[np.int32] = FEW,
    draft_coupling: Coupling | None = None,
) -> Draws:
    """Decodes one row for each key until all have two tokens, in blocks of num_drafts drafts.

    `draft_coupling` draws the drafts as the other coupling would.
    """
    rows = [row(sampling, key) for key in noise_keys]
    rules = Rules(rows)
    anchors = mx.full((len(rows),), PROMPT[-1], mx.int32)
    lengths = mx.full((len(rows),), num_drafts + 1, mx.int32)
    pairs = np.full((len(rows), 2), -1)
    num_tokens = np.zeros(len(rows), np.int64)
    tally = np.zeros(3, np.int64)
    first_stood = None
    while num_tokens.min() < 2:
        tokens, scores = _candidates(rules, anchors, num_drafts, candidates)
        proposal = draw_drafts(rules, draft_coupling or coupling, tokens, scores)
        block = mx.concatenate([anchors[:, None], proposal.drafts], axis=1)
        decision = decide(rules, coupling, mx.array(TARGET)[block], anchors, proposal, lengths)
        rules.advance(block, decision.num_accepted + 1)
        anchors = mx.take_along_axis(decision.tokens, decision.num_accepted[:, None], axis=1)[:, 0]
        accepted, chosen = np.array(decision.num_accepted), np.array(decision.tokens)
        first_stood = accepted > 0 if first_stood is None else first_stood
        for step in range(num_drafts + 1):
            taken = np.flatnonzero((num_tokens < 2) & (step <= accepted))
            pairs[taken, num_tokens[taken]] = chosen[taken, step]
            num_tokens[taken] += 1
            is_draft = step < accepted[taken]
            num_own = len(taken) - is_draft.sum()
            tally += [is_draft.sum(), 0, num_own] if step == num_drafts else [is_draft.sum(), num_own, 0]
    assert first_stood is not None
    counts = np.zeros((VOCAB, VOCAB), np.int64)
    np.add.at(counts, tuple(pairs.T), 1)
    return Draws(counts, *map(int, tally), first_stood)


def exact(sampling: Sampling) -> Array:
    """P(first token a, second token b) under the row's rules, [V, V]."""
    first = probabilities(sampling, TARGET[PROMPT[-1]], list(PROMPT))
    rows = [first[a] * probabilities(sampling, TARGET[a], [*PROMPT, a]) for a in range(VOCAB)]
    return np.stack(rows)


def probabilities(sampling: Sampling, logits: npt.ArrayLike, before: list[int]) -> Array:
    """What one token is drawn from: bias, penalties, filters at temperature 1, then temperature; [V]."""
    values = np.array(logits, np.float64)
    for token, value in sampling.logit_bias:
        values[token] += value
    for token in set(before[-sampling.repetition_context_size :]):
        scale = sampling.repetition_penalty
        values[token] *= scale if values[token] < 0 else 1 / scale
    for token in set(before[-sampling.presence_context_size :]):
        values[token] -= sampling.presence_penalty
    for token in before[-sampling.frequency_context_size :]:
        values[token] -= sampling.frequency_penalty
    mass = _softmax(values)
    order = np.argsort(-mass)
    above = np.cumsum(mass[order]) - mass[order]
    stays = mass >= sampling.min_p * mass.max()
    stays[order[above >= sampling.top_p]] = False
    if sampling.top_k:
        stays[order[sampling.top_k :]] = False
    return _softmax(np.where(stays, values / sampling.temperature, -np.inf))


def drafter_probabilities(temperature: float) -> Array:
    """What the first draft is drawn from if every token is a candidate, [V]."""
    return _softmax(DRAFTER[PROMPT[-1]].astype(np.float64) / temperature)


def _softmax(values: Array) -> Array:
    mass = np.exp(values - values.max())
    return mass / mass.sum()


def row(sampling: Sampling, key: int) -> Row:
    """A row that has read the prompt and has no token yet."""
    request = Request(RowKey(0, 0), PROMPT, 1000, sampling, noise_key=key)
    return Row(request, 0.0, 0.0, frozenset())


def _candidates(
    rules: Rules, anchors: mx.array, num_drafts: int, candidates: npt.NDArray[np.int32]
) -> tuple[mx.array, mx.array]:
    """Candidates [R, S, k] of the positions, and their scores [R, S, k, k] behind each candidate before them."""
    tokens = mx.array(candidates)[rules.block_positions(num_drafts) % 2]
    first = mx.broadcast_to(anchors[:, None, None], tokens[:, :1].shape)
    before = mx.concatenate([first, tokens[:, :-1]], axis=1)
    return tokens, mx.array(DRAFTER)[before[..., :, None], tokens[..., None, :]]
