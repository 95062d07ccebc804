"""Stop strings in real decoding: the row is the one without them up to the stop, however drafts are made."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from batchgen.engine import EngineOptions, load
from batchgen.prompts.encode import Codec
from batchgen.types import Generation, Prompt, Request, RowKey, Sampling
from tests.prompts.builders import decoded_text

ROOT = Path(__file__).parents[2]
MODEL, DRAFTER = ROOT / "data" / "tiny", ROOT / "data" / "tiny-dflash2"
PER_TASK, MAX_TOKENS = 2, 40
NEVER = "never written"

Done = dict[RowKey, Generation]


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load(MODEL, system=None, chat=None)


def requests_of(codec: Codec, prompts: Sequence[Prompt]) -> list[Request]:
    made: list[Request] = []
    for prompt in prompts:
        requests = codec.requests(prompt, [0])
        assert isinstance(requests, list)
        made += requests
    return made


def decode(codec: Codec, prompts: Sequence[Prompt], block_size: int | None) -> Done:
    """All prompts in one batch; without a drafter where there is no block size."""
    drafter = None if block_size is None else DRAFTER
    options = EngineOptions(codec.eos_token_ids, lambda: 0.0, len(prompts), block_size, dtype="float32")
    engine = load(MODEL, drafter, options)
    engine.admit(requests_of(codec, prompts))
    done: Done = {}
    while engine.num_rows:
        done |= {generation.key: generation for generation in engine.step()}
    return done


def texts() -> list[str]:
    rows = pl.read_parquet(ROOT / "data" / "prompts.parquet").sort("id")
    lead = {"summary": "Summarize:\n", "prose": "Continue the story: "}
    chosen = rows.group_by("task", maintain_order=True).head(PER_TASK)
    return [lead.get(task, "") + text for task, text in chosen.select("task", "text").iter_rows()]


def edges(codec: Codec, generation: Generation) -> list[int]:
    """How many characters there are after each token of a completion."""
    return [len(decoded_text(codec, generation.tokens[:count])) for count in range(len(generation.tokens) + 1)]


def stops_of(text: str, ends: Sequence[int], rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Stop strings of several kinds, taken from the middle, a token's edge, and the end of a text."""
    middle = rng.randrange(len(text) // 4, len(text) // 2)
    edge = rng.choice([end for end in ends if 2 < end < len(text) - 2])
    last = rng.randrange(len(text) // 2, len(text) - 3)
    return {
        "middle": (text[middle : middle + rng.randint(1, 5)],),
        "edge": (text[edge - 2 : edge + 2],),
        "end": (text[-rng.randint(1, 9) :],),
        "several": (text[last : last + 3], text[middle : middle + 7], NEVER, text[middle + 2 : middle + 5]),
        "never": (NEVER, text[-4:] + "§"),
    }


def plain_starts(text: str, stops: Sequence[str]) -> list[int]:
    return [text.index(stop) for stop in stops if stop in text]


def test_a_stopped_row_is_the_plain_one_up_to_its_stop(codec: Codec) -> None:
    samplings = [Sampling(max_tokens=MAX_TOKENS), Sampling(max_tokens=MAX_TOKENS, temperature=0.8, seed=3)]
    bare = [Prompt(row, text=text) for row, text in enumerate(texts())]
    prompts = [replace(prompt, sampling=sampling) for prompt in bare for sampling in samplings]
    prompts = [replace(prompt, row=row, id=row) for row, prompt in enumerate(prompts)]
    plain = decode(codec, prompts, None)
    rng = random.Random(5)
    stopped: list[Prompt] = []
    kinds: dict[int, tuple[str, Prompt]] = {}
    for prompt in prompts:
        generation = plain[RowKey(prompt.row, 0)]
        for kind, stops in stops_of(decoded_text(codec, generation.tokens), edges(codec, generation), rng).items():
            row = len(stopped)
            # The id makes the chance, so that each is its prompt's.
            stopped.append(replace(prompt, row=row, sampling=replace(prompt.sampling, stop=stops)))
            kinds[row] = kind, prompt
    done = {block_size: decode(codec, stopped, block_size) for block_size in (None, 2, 4, 8)}

    for one in requests_of(codec, stopped):
        kind, prompt = kinds[one.key.row]
        whole = plain[RowKey(prompt.row, 0)]
        text, stops = decoded_text(codec, whole.tokens), one.sampling.stop
        rows = [generations[one.key] for generations in done.values()]
        tokens = rows[0].tokens
        told = (kind, text, stops, decoded_text(codec, tokens))
        assert [row.tokens for row in rows] == [tokens] * len(rows), told
        assert tokens == whole.tokens[: len(tokens)], told
        starts = plain_starts(text, stops)
        assert bool(starts) == (kind != "never"), told
        if not starts:
            assert [(row.tokens, row.finish_reason) for row in rows] == [(whole.tokens, whole.finish_reason)] * 4, told
            assert codec.completion(one, tokens)[0] == text, told
            continue
        assert {row.finish_reason for row in rows} == {"stop"}, told
        assert plain_starts(decoded_text(codec, tokens), stops), told
        assert not plain_starts(decoded_text(codec, tokens[:-1]), stops), told
        first_complete = min(plain_starts(decoded_text(codec, tokens), stops))
        assert codec.completion(one, tokens)[0] == text[:first_complete], told
        if len(stops) == 1:
            assert first_complete == text.index(stops[0]), told

    assert len(stopped) >= 60
    cut = [generation for key, generation in done[8].items() if kinds[key.row][0] in ("middle", "edge")]
    passes, accepted = (sum(getattr(one, name) for one in cut) for name in ("verify_passes", "accepted_tokens"))
    assert accepted > passes, "blocks were too short for stops within them"


def test_end_tokens_that_the_model_does_not_have_change_nothing(codec: Codec, tmp_path: Path) -> None:
    """Under min_tokens end tokens are barred by their place among the logits, and these have none."""
    shutil.copytree(MODEL, tmp_path, dirs_exist_ok=True)
    named = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    ends = [*(named if isinstance(named, list) else [named]), -1, -5000, 1024, 5000, 100_000]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    prompts = [
        Prompt(row, text=text, sampling=Sampling(max_tokens=24, min_tokens=12, temperature=row % 2))
        for row, text in enumerate(texts()[:4])
    ]
    other = Codec.load(tmp_path, system=None, chat=None)
    assert {key: one.tokens for key, one in decode(other, prompts, 8).items()} == {
        key: one.tokens for key, one in decode(codec, prompts, 8).items()
    }
