"""Drafts against those of the public DFlash implementation, as written by tools/make_drafter_oracle.py.

Where that package is installed, it is also run anew, in a process of its own: it changes classes of mlx-lm.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.drafters.conftest import bind
from tools import make_drafter_oracle as oracle

DATA = Path(__file__).parent / "data"
SOURCES = ["stored"] + (["live"] if importlib.util.find_spec("dflash") else [])
LIVE_GENERATIONS = "hybrid-v2-sliding-full"


def _run_oracle(out, *arguments):
    command = [sys.executable, oracle.__file__, str(out), *arguments]
    subprocess.run(command, check=True, timeout=120, cwd=Path(oracle.__file__).parents[1])


@pytest.fixture(scope="module", params=SOURCES)
def reference_logits(request, tmp_path_factory):
    folder = DATA
    if request.param == "live":
        folder = tmp_path_factory.mktemp("oracle")
        _run_oracle(folder, "--logits-only")
    with np.load(folder / oracle.LOGITS_FILE) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("pair", oracle.PAIRS, ids=lambda pair: pair.name)
def test_logits_and_drafts_equal_the_references(reference_logits, tmp_path, pair):
    drafter = bind(*pair.build(tmp_path))
    context = drafter.make_context(1)
    logits, tokens = [], []
    for features, anchor in zip(*oracle.arrivals_and_anchors(oracle.SEED), strict=True):
        drafter.extend(context, mx.array(features), mx.array([features.shape[1]]))
        block = oracle.LOGITS_BLOCK
        args = (context.keys_values(), context.lengths, mx.array([anchor]), mx.array([block]), block)
        logits.append(np.array(drafter.hidden_and_logits(*args)[1][0]))
        tokens.append(drafter.propose(context, mx.array([anchor]), block)[0].tolist())
    np.testing.assert_allclose(np.stack(logits), reference_logits[f"{pair.name}.logits"], rtol=0, atol=1e-4)
    assert tokens == reference_logits[f"{pair.name}.tokens"].tolist()


@pytest.fixture(scope="module", params=SOURCES)
def generations(request, tmp_path_factory):
    folder = DATA
    if request.param == "live":
        folder = tmp_path_factory.mktemp("oracle")
        _run_oracle(folder, LIVE_GENERATIONS)
    return json.loads((folder / oracle.GENERATIONS_FILE).read_text())


def test_generations_add_up_and_are_those_stored(generations):
    stored = json.loads((DATA / oracle.GENERATIONS_FILE).read_text())
    assert sorted(stored) == sorted(pair.name for pair in oracle.PAIRS)
    for name, runs in generations.items():
        assert runs == stored[name]
        for run in runs:
            num_accepted = sum(entry["num_accepted"] for entry in run["passes"])
            assert len(run["tokens"]) == run["max_tokens"]
            # The last pass's own token falls away where its drafts already fill the budget.
            assert 1 + num_accepted + len(run["passes"]) - run["max_tokens"] in (0, 1)


@pytest.mark.parametrize("block_size", oracle.BLOCK_SIZES)
def test_stored_generations_are_neither_all_hits_nor_all_misses(block_size):
    """They are what the whole loop is held against."""
    stored = json.loads((DATA / oracle.GENERATIONS_FILE).read_text())
    runs = [run for runs in stored.values() for run in runs if run["block_size"] == block_size]
    counts = sorted({entry["num_accepted"] for run in runs for entry in run["passes"]})
    assert counts[:4] == [0, 1, 2, 3]
    assert counts[-1] == block_size - 1
