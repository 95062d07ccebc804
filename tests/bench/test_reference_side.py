"""The DFlash authors' decoding as a side of the bench, where it is installed."""

import dataclasses

import mlx.core as mx
import pytest

from batchgen.bench.reference_side import ReferenceSide, is_served
from batchgen.bench.sides import EngineSide
from batchgen.engine import EngineOptions, load
from batchgen.types import Request, RowKey, Sampling
from tests.engine.builders import prompt_tokens, tiny_dense, tiny_drafter, tiny_hybrid

ENDS = frozenset({7, 8, 23})


def _requests():
    return [Request(RowKey(row, 0), prompt_tokens(row, 5 + 9 * row), 24) for row in range(4)]


@pytest.mark.parametrize("build", [tiny_hybrid, tiny_dense])
def test_the_reference_makes_the_same_tokens(tmp_path, build):
    pytest.importorskip("dflash")
    target = build(tmp_path / "target", 1)
    drafter = tiny_drafter(tmp_path / "drafter", 3, target)
    decoder = load(target, drafter, EngineOptions(ENDS, lambda: 0.0, 4, 8, 512, "float32"))
    side = ReferenceSide(target, drafter, mx.float32, 8, ENDS)
    expected = EngineSide("", decoder.target, None, dataclasses.replace(decoder.options, block_size=1), ENDS)
    assert side.run(_requests()) == expected.run(_requests())
    assert side.acceptance_length is not None
    assert 1 < side.acceptance_length < 8


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.5),
        Sampling(repetition_penalty=1.2),
        Sampling(stop_token_ids=(5,)),
        Sampling(min_tokens=3),
        Sampling(logit_bias=((3, 1.0),)),
    ],
)
def test_rows_that_it_has_no_keys_for_are_not_asked_of_it(sampling):
    (request, *_) = _requests()
    assert is_served(request)
    assert not is_served(dataclasses.replace(request, sampling=sampling))
