"""The target's row states: a block with a count of its own per row, warm starts, and rows that come and go."""

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from batchgen.engine.arrays import int_array
from batchgen.engine.target.model import Target
from tests.engine.builders import prompt_tokens, tiny_dense, tiny_hybrid

LENGTHS = (1, 30, 7, 64)


@pytest.fixture(scope="module", params=["hybrid", "qwen3"])
def target(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    made = tiny_hybrid(folder, 1) if request.param == "hybrid" else tiny_dense(folder, 2)
    return Target(load_model(made)[0], tap=(0, 2))


def _filled(target, lengths=LENGTHS, garbage=5):
    """A state whose rows hold prompts of those lengths, read in one pass with padding that is not zeros."""
    width = max(lengths) + garbage
    tokens = mx.array([prompt_tokens(row, width) for row in range(len(lengths))])
    state = target.make_state(len(lengths))
    target.prefill(state, tokens, int_array(lengths))
    return state, [prompt_tokens(row, width)[:length] for row, length in enumerate(lengths)]


def _logits(target, tokens):
    """Logits of the whole sequence, from nothing."""
    state = target.make_state(1)
    hidden = target.prefill(state, mx.array([tokens]), int_array([len(tokens)]))
    return target.logits(hidden.final)[0]


def _close(found, expected):
    return mx.abs(found - expected).max().item() < 1e-4


def test_a_block_on_a_warm_cache_equals_a_cold_run(target):
    state, texts = _filled(target)
    block = [prompt_tokens(50 + row, 6) for row in range(4)]
    logits, features = target.verify(state, mx.array(block))
    for row, text in enumerate(texts):
        assert _close(logits[row], _logits(target, text + block[row])[-6:])
    assert features is not None
    assert features.shape == (4, 6, 2 * 64)


def test_each_row_commits_its_own_count(target):
    """Replay of each row's prefix equals having read that prefix, however much of the block the others keep."""
    state, texts = _filled(target)
    for round_number in range(3):
        block = [prompt_tokens(70 + 10 * round_number + row, 5) for row in range(4)]
        target.verify(state, mx.array(block))
        counts = [(row + round_number) % 6 for row in range(4)]
        target.commit(state, int_array(counts), 5)
        texts = [text + tokens[:count] for text, tokens, count in zip(texts, block, counts, strict=True)]
    assert state.lengths.tolist() == [len(text) for text in texts]
    probe = [prompt_tokens(5, 4)] * 4
    logits, _ = target.verify(state, mx.array(probe))
    for row, text in enumerate(texts):
        assert _close(logits[row], _logits(target, text + probe[row])[-4:])


def test_a_count_of_zero_leaves_a_row_to_the_bit(target):
    state, _ = _filled(target)
    probe = mx.array([prompt_tokens(5, 4)] * 4)
    before, _ = target.verify(state, probe)
    target.commit(state, int_array([0, 0, 0, 0]), 4)
    after, _ = target.verify(state, probe)
    assert mx.array_equal(before, after)


def test_a_prompt_in_chunks_equals_the_prompt_at_once(target):
    text = prompt_tokens(9, 50)
    state = target.make_state(1)
    for start in range(0, 50, 16):
        piece = text[start : start + 16]
        hidden = target.prefill(state, mx.array([piece]), int_array([len(piece)]))
    assert _close(target.logits(hidden.final)[0, -1], _logits(target, text)[-1])


def test_rows_move_between_states(target):
    """put, take, resize and release: a row's next logits are the same wherever it stands."""
    state, texts = _filled(target)
    other, _ = _filled(target, (300, 2))
    other.resize(5)
    other.put([4, 1], state, [3, 1])
    other.take([4, 0, 1])
    other.release([1])
    probe = prompt_tokens(5, 4)
    logits, _ = target.verify(other, mx.array([probe] * 3))
    assert _close(logits[0], _logits(target, texts[3] + probe)[-4:])
    assert _close(logits[2], _logits(target, texts[1] + probe)[-4:])
    assert other.lengths.tolist() == [64, 0, 30]


def test_capacity_grows_over_a_step(target):
    state, texts = _filled(target, (250, 3))
    block = [prompt_tokens(60 + row, 8) for row in range(2)]
    for _ in range(3):
        target.verify(state, mx.array(block))
        target.commit(state, int_array([8, 8]), 8)
        texts = [text + tokens for text, tokens in zip(texts, block, strict=True)]
    logits, _ = target.verify(state, mx.array([[1], [1]]))
    for row, text in enumerate(texts):
        assert _close(logits[row], _logits(target, [*text, 1])[-1:])


def test_capacity_comes_back_when_the_longest_row_left(target):
    state, texts = _filled(target, (3000, 40, 7))
    assert state.capacity >= 3000
    state.release([0])
    state.settle(40)
    assert state.capacity == 512
    probe = prompt_tokens(5, 4)
    logits, _ = target.verify(state, mx.array([probe] * 3))
    for row in (1, 2):
        assert _close(logits[row], _logits(target, texts[row] + probe)[-4:])


def test_nothing_of_a_row_before_is_left(target):
    """A slot used again reads as if it were fresh, also where its old row was longer."""
    state, _ = _filled(target, (200, 200))
    fresh, texts = _filled(target, (3, 5))
    state.release([0])
    state.put([0], fresh, [1])
    probe = prompt_tokens(5, 4)
    logits, _ = target.verify(state, mx.array([probe] * 2))
    assert _close(logits[0], _logits(target, texts[1] + probe)[-4:])
