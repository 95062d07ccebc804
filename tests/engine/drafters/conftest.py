"""Loads drafters of tiny seeded pairs; the target lends its embedding and head straight from its file."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from batchgen.engine.drafters import load_drafter
from batchgen.engine.drafters.dflash import DFlashDrafter
from tests.engine import builders


def bind(target: Path, drafter: Path, **options) -> DFlashDrafter:
    """The drafter of a pair on disk, in float32."""
    weights = mx.load(str(target / "model.safetensors"))
    prefix = "language_model." if "language_model.lm_head.weight" in weights else ""
    embedding, head = weights[f"{prefix}model.embed_tokens.weight"], weights[f"{prefix}lm_head.weight"]
    return load_drafter(drafter, lambda tokens: embedding[tokens], lambda hidden: hidden @ head.T, **options)


@pytest.fixture
def make_drafter(tmp_path) -> Callable[..., DFlashDrafter]:
    """Builds and loads a drafter for a dense target; arguments are `builders.tiny_drafter`'s."""

    def make(version=2, layer_types=(builders.FULL, builders.FULL), *, compiled=False, **options) -> DFlashDrafter:
        target = builders.tiny_dense(tmp_path / "target", 3)
        folder = builders.tiny_drafter(tmp_path / "drafter", 4, target, version, layer_types, **options)
        return bind(target, folder, compiled=compiled)

    return make
