"""The test of the tests: p-values of known statistics, and counts that are and are not what they should be."""

import math

import numpy as np
import pytest

from tests.engine.sampling.chi_square import p_value, survival


@pytest.mark.parametrize(
    ("statistic", "degrees", "expected"),
    [(3.841459, 1, 0.05), (6.634897, 1, 0.01), (18.307038, 10, 0.05), (29.588298, 10, 0.001), (124.342113, 100, 0.05)],
)
def test_the_printed_tables(statistic, degrees, expected):
    assert survival(statistic, degrees) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("half", [1, 2, 5, 30, 150])
@pytest.mark.parametrize("x", [0.01, 0.5, 3.0, 20.0, 90.0, 300.0])
def test_even_degrees_have_a_closed_form(half, x):
    """Q(n, x) = exp(-x) sum over i < n of x^i / i!, down to probabilities of 1e-100."""
    terms = [math.exp(-x + i * math.log(x) - math.lgamma(i + 1)) for i in range(half)]
    assert survival(2 * x, 2 * half) == pytest.approx(math.fsum(terms), rel=1e-9)


def test_fair_counts_have_any_p_value_and_others_none():
    rng = np.random.default_rng(0)
    probabilities = np.array([0.4, 0.3, 0.2, 0.0999, 0.0001])
    fair = [p_value(rng.multinomial(5_000, probabilities), probabilities) for _ in range(400)]
    assert 0.4 < np.mean(fair) < 0.6
    assert 0.02 < np.mean(np.array(fair) < 0.05) < 0.09
    assert p_value(rng.multinomial(20_000, [0.45, 0.25, 0.2, 0.0999, 0.0001]), probabilities) < 1e-8


def test_what_cannot_be_must_not_be():
    assert p_value([5_000, 5_000, 1], [0.5, 0.5, 0.0]) == 0
    assert p_value([5_000, 5_000, 0], [0.5, 0.5, 0.0]) == 1


def test_a_test_that_cannot_fail_is_refused():
    with pytest.raises(AssertionError, match="nothing to test"):
        p_value([5_000, 0], [1.0, 0.0])
