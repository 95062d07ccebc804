"""What prompts share is read once: the same tokens, and less reading."""

import pytest

from batchgen.engine import EngineOptions, load
from batchgen.engine.prefix import LEAST_TOKENS, shared_beginning
from batchgen.types import Request, RowKey
from tests.engine.builders import FULL, SLIDING, prompt_tokens, tiny_dense, tiny_drafter, tiny_hybrid
from tests.engine.sampling.rows import decode

SHARED = prompt_tokens(77, 90)
OTHER = prompt_tokens(78, 50)


def _requests():
    """Rows of one long beginning, then rows of another, then rows of none; one prompt is nothing but the beginning."""
    tails = [prompt_tokens(seed, length) for seed, length in enumerate((1, 7, 40, 3, 300, 12))]
    prompts = [SHARED + tail for tail in tails] + [SHARED] + [OTHER + tail for tail in tails[:3]] + tails
    return [Request(RowKey(row, 0), prompt, 16) for row, prompt in enumerate(prompts)]


@pytest.fixture(scope="module", params=["hybrid", "qwen3"])
def pair(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("prefix")
    target = tiny_hybrid(root / "target", 1) if request.param == "hybrid" else tiny_dense(root / "target", 2)
    return target, tiny_drafter(root / "drafter", 3, target, layer_types=(SLIDING, FULL))


def _decoder(pair, max_rows, with_drafter=True):
    return load(pair[0], pair[1] if with_drafter else None, EngineOptions(frozenset(), lambda: 0.0, max_rows, 8, 64))


@pytest.mark.parametrize("with_drafter", [False, True])
@pytest.mark.parametrize("max_rows", [3, 8])
def test_rows_that_share_a_beginning_equal_those_alone(pair, max_rows, with_drafter):
    alone = decode(_decoder(pair, 1, with_drafter), _requests())
    together = decode(_decoder(pair, max_rows, with_drafter), _requests())
    assert {key: one.tokens for key, one in together.items()} == {key: one.tokens for key, one in alone.items()}
    assert {key: one.acceptance_counts for key, one in together.items()} == {
        key: one.acceptance_counts for key, one in alone.items()
    }
    assert all(one.cached_prompt_tokens == 0 for one in alone.values())
    cached = [together[RowKey(row, 0)].cached_prompt_tokens for row in range(6)]
    assert min(cached) >= len(SHARED) - 1
    assert set(cached) <= {len(SHARED) - 1, len(SHARED)}
    assert together[RowKey(8, 0)].cached_prompt_tokens in (0, len(OTHER))


def test_a_beginning_is_what_all_have_and_all_go_on_after():
    assert shared_beginning([[*SHARED, 1, 2], [*SHARED, 1, 3], [*SHARED, 4]]) == SHARED
    assert shared_beginning([SHARED, [*SHARED, 4]]) == SHARED[:-1]
    assert shared_beginning([SHARED, SHARED]) == SHARED[:-1]
    assert not shared_beginning([[*SHARED, 1]])
    assert not shared_beginning([SHARED, OTHER])
    assert shared_beginning([[*SHARED, 1], OTHER, [*SHARED, 2]]) == SHARED
    assert not shared_beginning([[*SHARED[: LEAST_TOKENS - 1], 90], [*SHARED[: LEAST_TOKENS - 1], 91]])
