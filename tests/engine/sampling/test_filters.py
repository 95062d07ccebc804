"""top_p, min_p and top_k keep the tokens that mlx-lm's samplers keep, each row by values of its own."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from batchgen.engine.sampling.filters import keep, log_softmax
from batchgen.engine.sampling.rules import Filters
from batchgen.types import Sampling

VOCAB = 24
# Rows of logits: smooth, with many equal ones (multiples of 1/4), all equal, one far above, and barred tokens.
LOGITS = st.one_of(
    st.lists(st.floats(-30, 30, width=32), min_size=VOCAB, max_size=VOCAB),
    st.lists(st.integers(-12, 12).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB),
    st.just([0.0] * VOCAB),
    st.just([1e4] + [0.0] * (VOCAB - 1)),
    st.integers(1, VOCAB - 1).map(lambda n: [float(i) for i in range(n)] + [-np.inf] * (VOCAB - n)),
)
TOP_P = st.one_of(st.just(1.0), st.floats(1e-6, 0.999999), st.sampled_from([0.1, 0.5, 0.9, 0.95]))
MIN_P = st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-6, 0.999), st.sampled_from([0.02, 0.1, 0.3]))
TOP_K = st.integers(0, VOCAB + 3)
ROW = st.tuples(LOGITS, TOP_P, MIN_P, TOP_K)


@pytest.fixture(scope="module", autouse=True)
def no_compilation():
    """mlx-lm compiles its filters anew for every value, which takes seconds on a CPU."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def expected(logprobs, top_p, min_p, top_k):
    """What mlx-lm leaves of logprobs [V], in the order of its `make_sampler`; [V] bool."""
    left = logprobs[None]
    if top_p < 1:
        left = apply_top_p(left, top_p)
    if min_p > 0:
        left = apply_min_p(left, min_p)
    if 0 < top_k < logprobs.size:
        left = apply_top_k(left, top_k)
    return np.array(left[0] > -mx.inf)


def kept(logprobs, top_p, min_p, top_k):
    """The same by `keep`, for rows [R, V]."""
    result = keep(logprobs[:, None], mx.array(top_p), mx.array(min_p), mx.array(top_k, dtype=mx.int32))
    return np.array(result[:, 0])


def same_but_for_ties(mine, theirs, logprobs, top_k):
    """Equal sets; or more here, if top_k had to choose among tokens of one probability: here they stand together."""
    if (mine == theirs).all():
        return True
    extra = mine & ~theirs
    is_tied = logprobs[extra] == logprobs[theirs].min()
    return bool((mine >= theirs).all() and is_tied.all() and theirs.sum() == top_k)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=6))
def test_rows_of_many_settings_keep_what_mlx_lm_keeps(rows):
    logits, top_p, min_p, top_k = zip(*rows, strict=True)
    logprobs = log_softmax(mx.array(logits))
    mine = kept(logprobs, top_p, min_p, top_k)
    for row, values in enumerate(zip(top_p, min_p, top_k, strict=True)):
        theirs = expected(logprobs[row], *values)
        theirs &= np.array(logits[row]) > -np.inf
        is_there = mine[row] & (np.array(logits[row]) > -np.inf)
        assert same_but_for_ties(is_there, theirs, np.array(logprobs[row]), values[2])
        assert mine[row][int(np.argmax(logits[row]))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["top_p", "min_p", "top_k"])
def test_each_filter_alone(name, seed):
    """On a vocabulary of 5,000 at several positions, and other rows' values change nothing."""
    rng = np.random.default_rng(seed)
    logprobs = log_softmax(mx.array(rng.normal(0, 4, (6, 3, 5_000)).astype(np.float32)))
    values = {
        "top_p": [0.01, 0.3, 0.8, 0.95, 0.999, 1.0],
        "min_p": [0.0, 0.001, 0.02, 0.1, 0.5, 1.0],
        "top_k": [0, 1, 2, 40, 4_999, 6_000],
    }[name]
    nothing = {"top_p": 1.0, "min_p": 0.0, "top_k": 0}
    arguments = {"top_p": None, "min_p": None, "top_k": None}
    arguments[name] = mx.array(values)
    mine = np.array(keep(logprobs, **arguments))
    for row, value in enumerate(values):
        for position in range(3):
            theirs = expected(logprobs[row, position], **{**nothing, name: value})
            np.testing.assert_array_equal(mine[row, position], theirs)
    assert len({int(count) for count in mine[:, 0].sum(axis=-1)}) >= 5


def test_equal_probabilities_stand_or_fall_together():
    logprobs = log_softmax(mx.array([[2.0, 2.0, 1.0, 1.0, 1.0, 0.0]]))
    assert kept(logprobs, [1.0], [0.0], [3]).tolist() == [[True] * 5 + [False]]
    assert kept(logprobs, [0.6], [0.0], [0]).tolist() == [[True, True, False, False, False, False]]
    assert kept(logprobs, [0.62], [0.0], [0]).tolist() == [[True] * 5 + [False]]
    assert kept(logprobs, [1.0], [0.3], [0]).tolist() == [[True] * 5 + [False]]


@pytest.mark.parametrize("top_p", [1e-6, 1e-30, 1e-46, 0.0])
def test_the_best_token_stays_however_small_top_p_is(top_p):
    """Also in the last row, behind which nothing stands, and whatever its neighbours are."""
    logprobs = log_softmax(mx.array(np.random.default_rng(5).normal(0, 1, (3, 40)).astype(np.float32)))
    mine = kept(logprobs, [0.9, top_p, top_p], [0.0] * 3, [0] * 3)
    for row in (1, 2):
        assert np.flatnonzero(mine[row]).tolist() == [int(mx.argmax(logprobs[row]))]
    np.testing.assert_array_equal(kept(logprobs[2:], [top_p], [0.0], [0])[0], mine[2])


def test_filters_look_at_the_distribution_before_temperature():
    """As mlx-lm's do: the same tokens are left at any temperature."""
    logits = mx.array(np.random.default_rng(0).normal(0, 2, (1, 1, 40)).astype(np.float32))
    left = [
        np.array(Filters.of([Sampling(temperature=temperature, top_p=0.8, min_p=0.05)]).apply(logits) > -mx.inf)
        for temperature in (0.1, 1.0, 5.0)
    ]
    np.testing.assert_array_equal(left[0], left[1])
    np.testing.assert_array_equal(left[1], left[2])
    assert 1 < left[0].sum() < 40


def test_filters_nobody_has_cost_nothing():
    """Nor does a greedy row's filter, which could change nothing."""
    filters = Filters.of([Sampling(), Sampling(temperature=0.0, top_p=0.5, min_p=0.1, top_k=3)])
    assert (filters.top_p, filters.min_p, filters.top_k) == (None, None, None)
    logits = mx.zeros((2, 1, 4))
    assert filters.apply(logits) is logits
