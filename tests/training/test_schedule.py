"""Budgets and the learning rate over them."""

import pytest

from batchgen.training.schedule import Budget, learning_rate


def test_budget_ends_with_whichever_is_first() -> None:
    budget = Budget(seconds=100.0, steps=10)
    assert budget.fraction(50.0, 1) == 0.5
    assert budget.fraction(10.0, 9) == 0.9
    assert budget.fraction(101.0, 0) == 1.0
    assert budget.fraction(0.0, 12) == 1.0


@pytest.mark.parametrize("budget", [Budget(0.0, None), Budget(None, 0)])
def test_empty_budget_is_used_up_at_once(budget: Budget) -> None:
    assert budget.fraction(0.0, 0) == 1.0


def test_rate_rises_then_falls_to_its_floor() -> None:
    assert learning_rate(1.0, 0.0) == pytest.approx(0.05)
    assert learning_rate(1.0, 0.01) == pytest.approx(0.5)
    assert learning_rate(1.0, 0.02) == pytest.approx(1.0)
    assert learning_rate(1.0, 0.51) == pytest.approx(0.505)
    assert learning_rate(1.0, 1.0) == pytest.approx(0.01)
