"""The candidate selector of DFlash2: chooses one path through the best few tokens of each draft position.

A token's score is its logit plus a low-rank bigram term with the token chosen before it, gated by the position's
hidden state. Candidates come in ascending token id, so equal scores resolve to the lowest id in any batch.
"""

import mlx.core as mx
import mlx.nn as nn

from batchgen.engine.drafters.config import DrafterConfig


class CandidateSelector(nn.Module):
    """The codebooks [V, rank] and the gate's projection. The codebooks are bare tensors, as they are on disk."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.top_k = config.selector_top_k
        self.predecessor_codebook = mx.zeros((config.vocab_size, config.selector_rank))
        self.successor_codebook = mx.zeros((config.vocab_size, config.selector_rank))
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)

    def candidates(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """The best tokens of logits [..., V] and their logits, as `top_candidates` gives them."""
        return top_candidates(logits, self.top_k)

    def scores(self, hidden: mx.array, predecessors: mx.array, tokens: mx.array, logits: mx.array) -> mx.array:
        """scores[..., p, c] of candidate c after predecessor p, in float32: bf16 would round the bigram term away.

        hidden [..., H]; predecessors [..., P] token ids; tokens and logits [..., k] as `candidates` gives them
        -> [..., P, k]. Training passes the true predecessor (P = 1).
        """
        gated = self.predecessor_codebook[predecessors] * self.hidden_projection(hidden)[..., None, :]
        edges = gated @ self.successor_codebook[tokens].swapaxes(-1, -2)
        return logits[..., None, :] + edges.astype(mx.float32)

    def transitions(self, hidden: mx.array, logits: mx.array, anchors: mx.array) -> tuple[mx.array, mx.array]:
        """Every step of the walk at once: candidate tokens [N, S, k] and scores [N, S, k, k].

        hidden [N, S, H], logits [N, S, V], anchors [N]. scores[n, j, p, c] is that of candidate c at position j when
        candidate p was chosen at j - 1; at position 0 each p stands for the anchor.
        """
        tokens, unary = self.candidates(logits)
        first = mx.broadcast_to(anchors.astype(mx.int32)[:, None, None], tokens[:, :1].shape)
        predecessors = mx.concatenate([first, tokens[:, :-1]], axis=1)
        return tokens, self.scores(hidden, predecessors, tokens, unary)


def top_candidates(logits: mx.array, top_k: int) -> tuple[mx.array, mx.array]:
    """The top_k token ids of logits [..., V] in ascending order [..., k] int32, and their logits, in float32."""
    first = logits.shape[-1] - top_k
    best = mx.argpartition(logits, first, axis=-1)[..., first:]
    tokens = mx.sort(best.astype(mx.int32), axis=-1)
    return tokens, mx.take_along_axis(logits, tokens, axis=-1).astype(mx.float32)


def walk(scores: mx.array) -> mx.array:
    """Which candidate each step takes, the best one given the step before: scores [N, S, k, k] -> [N, S]."""
    successors = mx.argmax(scores, axis=-1)
    choice = successors[:, 0, :1]
    path = [choice]
    for step in range(1, scores.shape[1]):
        choice = mx.take_along_axis(successors[:, step], choice, axis=-1)
        path.append(choice)
    return mx.concatenate(path, axis=1)


def greedy_path(tokens: mx.array, scores: mx.array) -> mx.array:
    """The path of best scores, each step given the one before: tokens [N, S, k], scores [N, S, k, k] -> [N, S]."""
    return mx.take_along_axis(tokens, walk(scores)[..., None], axis=-1)[..., 0]
