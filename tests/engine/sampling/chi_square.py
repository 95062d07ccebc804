"""Pearson's chi-square test, for tests of draws against exact probabilities. Plain Python and numpy."""

import math

import numpy as np
import numpy.typing as npt

# Cells that expect fewer draws than this are tested as one, where the distribution of the statistic would not hold.
_LEAST_EXPECTED = 10.0
_TINY = 1e-300


def p_value(counts: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """How likely counts as uneven as these are under `probabilities` (of the same shape, in sum 1).

    Refuses what could not fail: probabilities that leave one outcome.
    """
    observed = np.asarray(counts, np.float64).ravel()
    expected = np.asarray(probabilities, np.float64).ravel() * observed.sum()
    if np.any(observed[expected == 0] > 0):
        return 0.0
    rare = expected < _LEAST_EXPECTED
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    is_there = expected > 0
    assert is_there.sum() > 1, "one outcome only: nothing to test"
    statistic = float(np.sum((observed[is_there] - expected[is_there]) ** 2 / expected[is_there]))
    return survival(statistic, int(is_there.sum()) - 1)


def survival(statistic: float, degrees: int) -> float:
    """P(X > statistic) of a chi-square variable: the regularised upper incomplete gamma function Q(degrees / 2, x / 2).

    By its power series below the mean and by Legendre's continued fraction above, so that small values are exact too.
    """
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    return 1.0 - scale * _series(a, x) if x < a + 1 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    term = total = 1 / a
    n = a
    while abs(term) > abs(total) * 1e-16:
        n += 1
        term *= x / n
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...)), evaluated forward (Lentz)."""
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    value = d
    for n in range(1, 10_000):
        numerator = -n * (n - a)
        b += 2
        d = 1 / _away_from_zero(numerator * d + b)
        c = _away_from_zero(b + numerator / c)
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
