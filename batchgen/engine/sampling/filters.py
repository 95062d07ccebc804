"""Which tokens may be drawn: top_p, min_p and top_k, each a threshold on a token's log probability.

Definitions are those of mlx-lm's samplers (`apply_top_p`, `apply_min_p`, `apply_top_k`), each row with values of its
own. All three look at the same distribution, before temperature, so their order does not matter; tokens of equal
probability stand or fall together.
"""

from functools import reduce

import mlx.core as mx

NO_TOP_K = 0


def log_softmax(logits: mx.array) -> mx.array:
    """Natural logarithms of probabilities, over the last axis."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def keep(logprobs: mx.array, top_p: mx.array | None, min_p: mx.array | None, top_k: mx.array | None) -> mx.array:
    """True for the tokens of logprobs [R, S, V] that may be drawn.

    top_p [R] in (0, 1], min_p [R] in [0, 1], top_k [R] int32 with 0 for all tokens; None where no row has the filter.
    The most likely token is always kept.
    """
    thresholds = [mx.full((1, 1, 1), -mx.inf)]
    if min_p is not None:
        thresholds.append(logprobs.max(axis=-1, keepdims=True) + mx.log(min_p)[:, None, None])
    if top_p is not None or top_k is not None:
        ascending = mx.sort(logprobs, axis=-1)
        if top_p is not None:
            thresholds.append(_top_p_threshold(ascending, top_p[:, None, None]))
        if top_k is not None:
            thresholds.append(_top_k_threshold(ascending, top_k))
    return logprobs >= reduce(mx.maximum, thresholds)


def _top_p_threshold(ascending: mx.array, top_p: mx.array) -> mx.array:
    """A token is kept while the mass strictly above it is less than top_p of the whole; [R, S, 1]."""
    probabilities = mx.exp(ascending)
    above = mx.cumsum(probabilities, axis=-1, reverse=True, inclusive=False)
    total = above[..., :1] + probabilities[..., :1]
    # The most likely token has nothing above it, and still stays where top_p is too small for 32 bits.
    num_dropped = mx.minimum((above >= top_p * total).sum(axis=-1, keepdims=True), ascending.shape[-1] - 1)
    # With top_p 1 rounding could drop tokens of tiny probability, and nothing is to be dropped.
    return mx.where(top_p < 1, mx.take_along_axis(ascending, num_dropped, axis=-1), -mx.inf)


def _top_k_threshold(ascending: mx.array, top_k: mx.array) -> mx.array:
    vocab_size = ascending.shape[-1]
    is_on = (top_k > NO_TOP_K) & (top_k < vocab_size)
    index = mx.where(is_on, vocab_size - top_k, 0)[:, None, None]
    index = mx.broadcast_to(index, (*ascending.shape[:-1], 1))
    return mx.where(is_on[:, None, None], mx.take_along_axis(ascending, index, axis=-1), -mx.inf)
