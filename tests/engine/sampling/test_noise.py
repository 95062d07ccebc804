"""Noise is even, finite, unrelated to its neighbours in any direction, and the same whatever it is asked along with."""

import math
from itertools import combinations

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.sampling import noise
from batchgen.engine.sampling.noise import Stream, gumbel, key_words, uniform
from tests.engine.sampling.chi_square import p_value

SIDE = 256
GOOD = 1e-4
BROKEN = 1e-8
STREAMS = tuple(Stream)
# Axes of a noise array [keys, positions, tokens], and shapes that are long in one of them.
AXES = {"keys": (4096, 4, 4), "positions": (4, 4096, 4), "tokens": (4, 4, 4096)}


def random_keys(count, seed=0):
    numbers = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    return mx.array([key_words(int(number)) for number in numbers], dtype=mx.uint32)


def counted_keys(count, shift=0):
    """1, 2, 3, ...: in the low word, or with `shift` 32 in the high one."""
    return mx.array([key_words(number << shift) for number in range(1, count + 1)], dtype=mx.uint32)


def quantiles(shape, stream=Stream.TOKEN, keys=None, first=0):
    """What should be uniform in (0, 1): the distribution function of the noise at each place, in float64."""
    num_keys, num_positions, num_tokens = shape
    keys = counted_keys(num_keys) if keys is None else keys
    positions = mx.broadcast_to(first + mx.arange(num_positions)[None, :], (num_keys, num_positions))
    values = np.array(gumbel(keys, positions, mx.arange(num_tokens)[None, None, :], stream), np.float64)
    assert values.shape == shape
    assert np.isfinite(values).all()
    return np.exp(-np.exp(-values))


def evenness(values):
    counts, _ = np.histogram(values, SIDE, (0, 1))
    return p_value(counts, np.full(SIDE, 1 / SIDE))


def independence(a, b, side=16):
    """p-value of pairs being spread evenly over a square."""
    counts, _, _ = np.histogram2d(a.ravel(), b.ravel(), side, ((0, 1), (0, 1)))
    return p_value(counts, np.full((side, side), 1 / side**2))


def correlation(a, b):
    """Pearson's r of pairs, in its own standard deviations."""
    return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size)


def neighbours(values, axis):
    """Values and those next to them along one axis."""
    length = values.shape[axis]
    return np.take(values, range(length - 1), axis), np.take(values, range(1, length), axis)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("axis", AXES)
def test_noise_is_even_along_every_axis(axis, stream):
    assert evenness(quantiles(AXES[axis], stream)) > GOOD
    uniforms = np.array(uniform(random_keys(256), mx.broadcast_to(mx.arange(256)[None, :], (256, 256)), stream))
    assert evenness(uniforms) > GOOD
    assert uniforms.min() > 0
    assert uniforms.max() < 1


@pytest.mark.parametrize("keys", [random_keys(4096), counted_keys(4096, 32)], ids=["random", "high word"])
def test_noise_is_even_whatever_the_keys(keys):
    assert evenness(quantiles((4096, 4, 4), keys=keys)) > GOOD
    assert evenness(quantiles((4096, 1, 1), keys=keys, first=100_000)) > GOOD


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("axis", range(3), ids=list(AXES))
def test_neighbours_are_unrelated(axis, stream):
    for shape in ((64, 32, 32), list(AXES.values())[axis]):
        values = quantiles(shape, stream)
        assert correlation(*neighbours(values, axis)) < 4.5
        assert independence(*neighbours(values, axis)) > GOOD


def test_streams_are_unrelated():
    for one, other in combinations(STREAMS, 2):
        a, b = quantiles((64, 32, 32), one), quantiles((64, 32, 32), other)
        assert correlation(a, b) < 4.5
        assert independence(a, b) > GOOD


def test_a_place_is_unrelated_to_its_mirror_image():
    """Token a at position b and token b at position a; key a at position b and key b at position a."""
    values = quantiles((2, 256, 256))
    upper = np.triu_indices(256, 1)
    for key in range(2):
        assert independence(values[key][upper], values[key].T[upper]) > GOOD
    values = quantiles((256, 257, 1))[:, 1:, 0]  # keys and positions from 1
    assert independence(values[upper], values.T[upper]) > GOOD


@pytest.mark.parametrize("bit", [0, 1, 7, 31, 32, 40, 63])
def test_keys_that_differ_in_one_bit_are_unrelated(bit):
    numbers = [int(number) for number in np.random.default_rng(1).integers(0, 2**64, 4096, dtype=np.uint64)]
    one = mx.array([key_words(number) for number in numbers], dtype=mx.uint32)
    other = mx.array([key_words(number ^ 1 << bit) for number in numbers], dtype=mx.uint32)
    a, b = quantiles((4096, 2, 2), keys=one), quantiles((4096, 2, 2), keys=other)
    assert correlation(a, b) < 4.5
    assert independence(a, b) > GOOD


def test_no_two_places_share_noise():
    """Every key, position and token has noise of its own: float32 lets about 1 in 100 of these be equal by chance."""
    values = quantiles((64, 64, 64))
    assert values.size - len(np.unique(values)) < 0.02 * values.size


@pytest.mark.parametrize("mix", ["weak", "none"])
def test_poor_mixing_is_seen(monkeypatch, mix):
    """The tests above can fail: a multiplication alone leaves neighbours related."""
    poor = {"weak": lambda x: x * mx.array(0x9E3779B1, mx.uint32), "none": lambda x: x}[mix]
    monkeypatch.setattr(noise, "_mix", poor)
    values = quantiles((64, 32, 32))
    worst = min(independence(*neighbours(values, axis)) for axis in range(3))
    assert worst < BROKEN


def test_the_tails_are_those_of_a_gumbel_variable():
    """A million values, in bins down to one of 20,000 at the end that decides which rare tokens are drawn."""
    values = -np.log(-np.log(quantiles((256, 64, 64))))
    edges = np.array([0, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99995, 1])
    counts, _ = np.histogram(np.exp(-np.exp(-values)), edges)
    assert p_value(counts, np.diff(edges)) > GOOD
    assert abs(values.mean() - 0.5772157) < 4 * math.pi / math.sqrt(6 * values.size)
    assert values.var() == pytest.approx(math.pi**2 / 6, rel=0.01)


def test_noise_is_finite_for_every_word(monkeypatch):
    """Including the words that would give uniforms of 0 and 1."""
    words = np.array([0, 1, 2, 2**31, 2**32 - 2**8, 2**32 - 2, 2**32 - 1], np.uint32)
    monkeypatch.setattr(noise, "_hash", lambda *_: mx.array(words)[None, None, :])
    values = np.array(gumbel(counted_keys(1), mx.zeros((1, 1)), mx.zeros((1, 1, 7)), Stream.TOKEN))
    assert np.isfinite(values).all()
    # 0 is the smallest uniform, so the largest noise, and none is repeated there.
    assert list(np.argsort(-values[0, 0, :4])) == [0, 1, 2, 3]
    uniforms = np.array(noise._uniforms(mx.array(words)))
    assert uniforms.min() > 0
    assert uniforms.max() < 1


def test_noise_is_the_same_in_any_shape():
    keys, vocab_size = random_keys(7), 96
    positions = mx.array(np.random.default_rng(2).integers(0, 10_000, (7, 5)).astype(np.int32))
    every = np.array(gumbel(keys, positions, mx.arange(vocab_size)[None, None, :], Stream.TOKEN))
    candidates = mx.array(np.random.default_rng(3).integers(0, vocab_size, (7, 5, 6)).astype(np.int32))
    few = np.array(gumbel(keys, positions, candidates, Stream.TOKEN))
    np.testing.assert_array_equal(few, np.take_along_axis(every, np.array(candidates), axis=2))
    for row in range(7):
        for step in range(5):
            one = gumbel(
                keys[row : row + 1],
                positions[row : row + 1, step : step + 1],
                mx.arange(vocab_size)[None, None, :],
                Stream.TOKEN,
            )
            np.testing.assert_array_equal(np.array(one)[0, 0], every[row, step])
    together = np.array(uniform(keys, positions, Stream.ACCEPT))
    alone = [np.array(uniform(keys[row : row + 1], positions[row : row + 1], Stream.ACCEPT))[0] for row in range(7)]
    np.testing.assert_array_equal(together, alone)


def test_key_words_are_the_whole_key():
    assert key_words(0x0123456789ABCDEF) == (0x01234567, 0x89ABCDEF)
    assert key_words(2**64 - 1) == (2**32 - 1, 2**32 - 1)
