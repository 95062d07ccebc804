"""Batched equals alone equals mlx-lm, with and without drafter: the engine's promise, in float32 on tiny models."""

import itertools
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from batchgen.engine import EngineOptions, load
from batchgen.engine.decoder import BatchDecoder
from batchgen.types import Generation, Request, RowKey
from tests.engine.builders import FULL, SLIDING, VOCAB, prompt_tokens, tiny_dense, tiny_drafter, tiny_hybrid

MAX_TOKENS = 24
EOS = frozenset({7, 8, 23, 30})
LENGTHS = (1, 2, 3, 600, 40, 41, 64, 65, 5, 300, 513, 20, 1)
PROMPTS = [prompt_tokens(seed, length) for seed, length in enumerate(LENGTHS)]
KINDS = ("hybrid", "qwen3", "llama", "qwen2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets by kind, and their drafters as `<kind>-<drafter>`."""
    root = tmp_path_factory.mktemp("models")
    made = {kind: tiny_dense(root / kind, 2, kind) for kind in KINDS[1:]}
    made["hybrid"] = tiny_hybrid(root / "hybrid", 1)
    for kind in KINDS:
        made[f"{kind}-v2"] = tiny_drafter(root / f"{kind}-v2", 3, made[kind])
        made[f"{kind}-v1"] = tiny_drafter(root / f"{kind}-v1", 4, made[kind], version=1)
        made[f"{kind}-window"] = tiny_drafter(root / f"{kind}-window", 5, made[kind], layer_types=(SLIDING, FULL))
    return made


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[list[int]]]:
    """What mlx-lm generates greedily, one prompt at a time, cut behind the first end token."""
    return {kind: [_alone(folders[kind], prompt) for prompt in PROMPTS] for kind in KINDS}


def _alone(folder: Path, prompt: list[int]) -> list[int]:
    model, _ = load_model(folder)
    tokens: list[int] = []
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=MAX_TOKENS):
        tokens.append(int(token))
        if tokens[-1] in EOS:
            break
    return tokens


def _decoder(
    folders: dict[str, Path], kind: str, drafter: str | None, max_rows: int, block: int | None = None, chunk: int = 512
) -> BatchDecoder:
    ticks = itertools.count()
    options = EngineOptions(EOS, lambda: float(next(ticks)), max_rows, block, chunk, "float32")
    return load(folders[kind], None if drafter is None else folders[f"{kind}-{drafter}"], options)


def _run(decoder: BatchDecoder, order: list[int], per_step: int = 100) -> dict[int, Generation]:
    """Decodes the prompts in `order`, letting at most `per_step` join between two steps."""
    waiting, done = list(order), {}
    while waiting or decoder.num_rows:
        joining = waiting[: min(per_step, decoder.max_rows - decoder.num_rows)]
        waiting = waiting[len(joining) :]
        decoder.admit([Request(RowKey(row, 0), PROMPTS[row], MAX_TOKENS) for row in joining])
        for generation in decoder.step():
            assert generation.key.row not in done
            done[generation.key.row] = generation
    return done


def _tokens(done: dict[int, Generation]) -> list[list[int]]:
    return [list(done[row].tokens) for row in sorted(done)]


def test_the_expected_texts_are_worth_comparing(expected):
    for texts in expected.values():
        assert len({token for text in texts for token in text}) > 15
        assert max(len(text) for text in texts) == MAX_TOKENS
    assert sum(len(text) < MAX_TOKENS for texts in expected.values() for text in texts) > 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_rows", [1, 3, 8])
@pytest.mark.parametrize("drafter", [None, "v2"])
def test_rows_equal_mlx_lm(folders, expected, kind, max_rows, drafter):
    """Prompts of 1 to 600 tokens; one row joins between two steps, so rows meet at every stage."""
    done = _run(_decoder(folders, kind, drafter, max_rows), list(range(len(PROMPTS))), per_step=1)
    assert _tokens(done) == expected[kind]


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
@pytest.mark.parametrize("drafter", ["v1", "window"])
@pytest.mark.parametrize("block", [2, 5, 11])
def test_neither_drafter_nor_block_changes_tokens(folders, expected, kind, drafter, block):
    done = _run(_decoder(folders, kind, drafter, 5, block), list(range(len(PROMPTS))), per_step=2)
    assert _tokens(done) == expected[kind]


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
@pytest.mark.parametrize("drafter", [None, "v2"])
@pytest.mark.parametrize("per_step", [1, 4])
@pytest.mark.parametrize("bucket_slots", [False, True])
def test_rounds_launched_ahead_change_nothing(folders, expected, kind, drafter, per_step, bucket_slots):
    """The next round is launched before this one is read: tokens, and statistics too, are those without that."""
    decoder, order = _decoder(folders, kind, drafter, 6, 8), list(range(len(PROMPTS)))
    behind = _run(decoder, order, per_step)
    decoder.options = replace(decoder.options, ahead=True, bucket_slots=bucket_slots)
    ahead = _run(decoder, order, per_step)
    assert _tokens(ahead) == expected[kind]
    for row, one in behind.items():
        assert ahead[row].verify_passes == one.verify_passes
        assert ahead[row].drafted_tokens == one.drafted_tokens
        assert ahead[row].acceptance_counts == one.acceptance_counts


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_short_prefill_chunks_and_another_order(folders, expected, kind):
    order = [int(row) for row in mx.random.permutation(len(PROMPTS), key=mx.random.key(0)).tolist()]
    done = _run(_decoder(folders, kind, "v2", 4, chunk=48), order, per_step=3)
    assert _tokens(done) == expected[kind]


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_a_rows_statistics_do_not_depend_on_its_neighbours(folders, kind):
    """Each row advances by its own acceptance: passes, drafts and acceptances are those of the row alone."""

    def counters(done):
        return [
            (g.verify_passes, g.drafted_tokens, g.accepted_tokens, g.acceptance_counts) for _, g in sorted(done.items())
        ]

    alone = _run(_decoder(folders, kind, "v2", 1, 8), list(range(len(PROMPTS))))
    together = _run(_decoder(folders, kind, "v2", 8, 8), list(reversed(range(len(PROMPTS)))), per_step=2)
    assert counters(alone) == counters(together)
    assert sum(g.accepted_tokens for g in alone.values()) > 20
    for generation in alone.values():
        assert len(generation.tokens) == 1 + generation.accepted_tokens + generation.verify_passes


def test_rows_advance_on_their_own(folders):
    """Two rows of one round with different acceptance: the better one does not wait for the other."""
    decoder = _decoder(folders, "hybrid", "v2", 8)
    decoder.admit([Request(RowKey(row, 0), PROMPTS[row], MAX_TOKENS) for row in range(8)])
    rounds: list[set[int]] = []
    while decoder.num_rows:
        decoder.step()
        rounds.append({row.verify_passes - row.accepted_tokens for row in decoder._rows if row is not None})
    assert max(len(differences) for differences in rounds) > 1


def test_without_drafter_every_pass_yields_one_token(folders):
    done = _run(_decoder(folders, "qwen3", None, 4), [0, 1, 2, 3])
    for generation in done.values():
        assert (generation.drafted_tokens, generation.accepted_tokens) == (0, 0)
        assert generation.acceptance_counts == (generation.verify_passes,)
        assert len(generation.tokens) == 1 + generation.verify_passes


def test_max_rows_is_kept(folders):
    decoder = _decoder(folders, "qwen3", "v2", 3)
    with pytest.raises(AssertionError):
        decoder.admit([Request(RowKey(row, 0), [1, 2], 4) for row in range(4)])
    decoder.admit([Request(RowKey(row, 0), [1, 2], 4) for row in range(3)])
    assert decoder.num_rows == 3


def test_a_budget_of_one_token_needs_no_verify_pass(folders, expected):
    decoder = _decoder(folders, "hybrid", "v2", 2)
    decoder.admit([Request(RowKey(0, 0), PROMPTS[4], 1)])
    (generation,) = decoder.step()
    assert list(generation.tokens) == expected["hybrid"][4][:1]
    assert (generation.verify_passes, generation.decode_s) == (0, 0.0)
    assert decoder.num_rows == 0


def test_decoding_on_after_all_rows_left(folders, expected):
    """The decoder is used again: nothing of the rows before is left in its caches."""
    decoder = _decoder(folders, "hybrid", "v2", 4)
    first = _run(decoder, [3, 4])
    second = _run(decoder, [9, 0, 4])
    assert list(first[4].tokens) == list(second[4].tokens) == expected["hybrid"][4]
    assert list(second[0].tokens) == expected["hybrid"][0]


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_one_long_row_is_not_paid_for_after_it_left(folders, kind):
    """Capacity follows the rows that are there; the rows beside a long one, and after it, decode as they do alone."""
    prompts = [prompt_tokens(90, 3000), *(prompt_tokens(91 + row, 8) for row in range(9))]

    def decode(rows):
        decoder, done, capacities = _decoder(folders, kind, "v2", 3), {}, []
        waiting = list(rows)
        while waiting or decoder.num_rows:
            joining = waiting[: decoder.max_rows - decoder.num_rows]
            waiting = waiting[len(joining) :]
            budgets = [30 + 5 * (row % 3) for row in joining]
            decoder.admit(
                [Request(RowKey(row, 0), prompts[row], budget) for row, budget in zip(joining, budgets, strict=True)]
            )
            done |= {generation.key.row: generation.tokens for generation in decoder.step()}
            capacities.append(decoder._slots.state.capacity)
        return done, capacities

    together, capacities = decode(range(10))
    assert max(capacities) >= 3000
    assert max(capacities[-5:]) <= 512
    for row in (0, 1, 5, 9):
        assert decode([row])[0][row] == together[row]


def test_bfloat16_runs(folders):
    options = EngineOptions(EOS, lambda: 0.0, 4, None, 512, "bfloat16")
    done = _run(load(folders["hybrid"], folders["hybrid-v2"], options), [0, 3, 4, 9])
    assert sorted(done) == [0, 3, 4, 9]
    assert all(0 <= token < VOCAB for generation in done.values() for token in generation.tokens)
