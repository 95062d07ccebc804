"""Whole generations against the public DFlash implementation: what is proposed and accepted in every pass.

Its outputs are fixtures made by tools/make_drafter_oracle.py. All prompts of a pair are decoded in one batch here,
where the reference decodes one at a time.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import pytest

from batchgen.engine import EngineOptions, load
from batchgen.engine.decoder import BatchDecoder
from batchgen.engine.sampling.coupling import decide
from batchgen.types import Request, RowKey
from tools.make_drafter_oracle import BLOCK_SIZES, GENERATIONS_FILE, PAIRS, Pair

FIXTURE = json.loads((Path(__file__).parent / "drafters" / "data" / GENERATIONS_FILE).read_text())


@dataclass
class Recorder:
    """A decoder whose rounds are watched: per prompt, what each pass proposed and how many of it stood."""

    decoder: BatchDecoder
    passes: dict[int, list[tuple[list[int], int]]] = field(default_factory=lambda: defaultdict(list))

    def judge(self, rules, coupling, logits, anchors, proposal, block_lengths, allowed):
        decision = decide(rules, coupling, logits, anchors, proposal, block_lengths, allowed)
        if proposal is not None:
            proposed, lengths, num_accepted = (
                array.tolist() for array in (proposal.drafts, block_lengths, decision.num_accepted)
            )
            for slot, row in enumerate(self.decoder._rows):
                if row is not None:
                    self.passes[row.request.key.row].append((proposed[slot][: lengths[slot] - 1], num_accepted[slot]))
        return decision

    def run(self, prompts, max_tokens) -> dict[int, list[int]]:
        self.decoder._judge = self.judge
        self.decoder.admit([Request(RowKey(row, 0), prompt, max_tokens) for row, prompt in enumerate(prompts)])
        tokens = {}
        while self.decoder.num_rows:
            tokens |= {generation.key.row: list(generation.tokens) for generation in self.decoder.step()}
        return tokens


def _recorder(tmp_path, pair: Pair, block_size: int) -> Recorder:
    return Recorder(load(*pair.build(tmp_path), EngineOptions(frozenset(), lambda: 0.0, 8, block_size, 512, "float32")))


def _full_blocks(entry) -> list[tuple[list[int], int]]:
    """The reference's passes whose block was not shortened by the budget, which it reaches one token later than we."""
    passes, emitted = [], 1
    for one in entry["passes"]:
        if emitted + entry["block_size"] > entry["max_tokens"]:
            break
        passes.append((one["proposed"], one["num_accepted"]))
        emitted += one["num_accepted"] + 1
    return passes


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_every_pass_proposes_and_accepts_what_the_reference_does(tmp_path, pair: Pair, block_size: int):
    entries = [entry for entry in FIXTURE[pair.name] if entry["block_size"] == block_size]
    recorder = _recorder(tmp_path, pair, block_size)
    tokens = recorder.run([entry["prompt"] for entry in entries], entries[0]["max_tokens"])
    assert [tokens[row] for row in range(len(entries))] == [entry["tokens"] for entry in entries]
    compared = []
    for row, entry in enumerate(entries):
        theirs = _full_blocks(entry)
        assert recorder.passes[row][: len(theirs)] == theirs
        compared += theirs
    assert len(compared) > 20
    assert sum(num_accepted for _, num_accepted in compared) > 10


def test_a_wrong_context_would_be_seen(tmp_path, monkeypatch):
    """The comparison can fail: a drafter whose context misses its last token drafts otherwise."""
    entry = FIXTURE[PAIRS[0].name][0]
    recorder = _recorder(tmp_path, PAIRS[0], entry["block_size"])
    drafter = recorder.decoder.drafter
    extend = drafter.extend
    drafter.extend = lambda context, features, counts: extend(context, features, mx.maximum(counts - 1, 0))
    tokens = recorder.run([entry["prompt"]], entry["max_tokens"])
    assert tokens[0] == entry["tokens"]
    theirs = _full_blocks(entry)
    assert recorder.passes[0][: len(theirs)] != theirs
