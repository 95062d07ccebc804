"""Tiny targets and drafters for all tests of sampling in the engine."""

from pathlib import Path

import pytest

from tests.engine.builders import tiny_dense, tiny_drafter, tiny_hybrid


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets `hybrid` and `qwen3`, and the drafters `<target>-v2` and `<target>-v1`.

    The seeds are of targets whose texts differ from row to row and end at many lengths.
    """
    root = tmp_path_factory.mktemp("models")
    made = {"hybrid": tiny_hybrid(root / "hybrid", 1), "qwen3": tiny_dense(root / "qwen3", 11)}
    for kind in ("hybrid", "qwen3"):
        made[f"{kind}-v2"] = tiny_drafter(root / f"{kind}-v2", 3, made[kind])
        made[f"{kind}-v1"] = tiny_drafter(root / f"{kind}-v1", 4, made[kind], version=1)
    return made
