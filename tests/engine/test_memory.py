"""Never more rows than fit: what rows take is known beforehand, and a bound on it changes no token."""

from dataclasses import replace

import mlx.core as mx
import pytest

from batchgen.engine import EngineOptions, load
from batchgen.engine.memory import RowBytes, memory_for_rows, usable_memory
from batchgen.types import Request, RowKey
from tests.engine.builders import prompt_tokens, tiny_dense, tiny_drafter, tiny_hybrid

MAX_ROWS = 8


@pytest.fixture(scope="module", params=["hybrid", "qwen3"])
def engine(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("memory")
    target = tiny_hybrid(root / "target", 1) if request.param == "hybrid" else tiny_dense(root / "target", 2)
    drafter = tiny_drafter(root / "drafter", 3, target)
    return load(target, drafter, EngineOptions(frozenset(), lambda: 0.0, MAX_ROWS, 8, 64, "float32"))


def _requests(num_rows, length=100, max_tokens=40):
    return [Request(RowKey(row, 0), prompt_tokens(row, length), max_tokens) for row in range(num_rows)]


def _run(engine, requests, memory):
    """Tokens by row, and the most rows held at once."""
    engine.options = replace(engine.options, memory=memory)
    waiting, done, most = list(requests), {}, 0
    while waiting or engine.num_rows:
        num_free = engine.max_rows - engine.num_rows
        joining = waiting[: engine.num_fitting(waiting[:num_free])]
        assert joining or engine.num_rows
        engine.admit(joining)
        waiting = waiting[len(joining) :]
        most = max(most, engine.num_rows)
        done |= {one.key: one.tokens for one in engine.step()}
    return done, most


def test_a_bound_lowers_the_rows_and_changes_no_token(engine):
    unbounded, most = _run(engine, _requests(12), None)
    assert most == MAX_ROWS
    engine.options = replace(engine.options, memory=None)
    three = engine._bytes_needed(_requests(3))
    bounded, most = _run(engine, _requests(12), three)
    assert most == 3
    assert bounded == unbounded


def test_a_row_that_is_too_large_alone_fits_never(engine):
    small, large = _requests(1), _requests(1, length=4000, max_tokens=4000)
    engine.options = replace(engine.options, memory=engine._bytes_needed(small))
    assert engine.num_fitting(small) == 1
    assert engine.num_fitting(large) == 0
    assert engine.num_fitting([*small, *large]) == 1


def test_rows_take_no_more_than_was_reckoned(engine):
    requests = _requests(MAX_ROWS, length=600, max_tokens=200)
    engine.options = replace(engine.options, memory=None)
    reckoned = engine._bytes_needed(requests)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    _run(engine, requests, None)
    taken = mx.get_peak_memory() - before
    assert 0.1 * reckoned < taken < reckoned + 64_000_000  # activations of a prompt's pass are not a row's


def test_bytes_add_up():
    rows = RowBytes(10, 2, 3) + RowBytes(1, 1, 1)
    assert rows.total(4, 100, 8) == 4 * (11 + 300 + 32)


def test_what_the_models_take_is_not_left_for_rows():
    assert usable_memory() > 0
    assert memory_for_rows(1) == 0
    assert memory_for_rows(mx.get_active_memory() + 12_345) == 12_345
