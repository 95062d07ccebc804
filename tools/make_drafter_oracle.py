"""Runs the public DFlash implementation (PyPI `dflash`, which pins other mlx versions: install it with --no-deps) on
the tests' tiny models, and writes what it drafts as fixtures.

    python tools/make_drafter_oracle.py tests/engine/drafters/data

The tests compare with the fixtures, and with a live run where `dflash` is installed. One repair is made: its sliding
cache is kept in temporal order, since its mask takes buffer order for time order.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine import builders
from tests.engine.builders import FULL, SLIDING

LOGITS_FILE = "logits.npz"
GENERATIONS_FILE = "generations.json"
SEED = 11
MAX_TOKENS = 60
PROMPT_LENGTHS = (1, 9, 40)
BLOCK_SIZES = (4, 8)
# Context rows that arrive before each pass of the logits fixture: a prompt, then as many as a pass may accept.
ARRIVALS = (12, 1, 3, 1, 4)
LOGITS_BLOCK = 5


@dataclass(frozen=True)
class Pair:
    """A target and a drafter of the tests, by their recipe."""

    target: str
    version: int
    layer_types: tuple[str, ...]
    is_causal: bool | None = None

    @property
    def name(self) -> str:
        layers = "-".join(layer.split("_")[0] for layer in self.layer_types)
        causal = {None: "", True: "-causal", False: "-bidirectional"}[self.is_causal]
        return f"{self.target}-v{self.version}-{layers}{causal}"

    def build(self, folder: Path) -> tuple[Path, Path]:
        """Writes both under `folder`; returns the target's folder and the drafter's."""
        build_target = {"hybrid": builders.tiny_hybrid, "dense": builders.tiny_dense}[self.target]
        target = build_target(folder / "target", SEED)
        drafter = builders.tiny_drafter(
            folder / "drafter", SEED + 1, target, self.version, self.layer_types, is_causal=self.is_causal
        )
        return target, drafter


PAIRS = tuple(
    Pair(target, version, layer_types)
    for target in ("hybrid", "dense")
    for version in (1, 2)
    for layer_types in ((FULL, FULL), (SLIDING, FULL), (SLIDING, SLIDING))
) + tuple(Pair("dense", 2, (SLIDING, FULL), is_causal) for is_causal in (True, False))


@dataclass(frozen=True)
class Pass:
    """One verify pass: what was proposed, and how many of it the target accepted."""

    proposed: list[int]
    num_accepted: int


@dataclass(frozen=True)
class Reference:
    """The reference's loaded target and drafter. One generation per instance: it leaves hooks on the target."""

    target: Any
    drafter: Any

    @classmethod
    def load(cls, target: Path, drafter: Path) -> "Reference":
        from dflash import model_mlx
        from mlx_lm.utils import load_model

        with mock.patch.object(model_mlx, "snapshot_download", lambda folder, **_: folder):
            return cls(load_model(target)[0], model_mlx.load_draft(str(drafter)))

    def generate(self, prompt: Sequence[int], block_size: int, max_tokens: int) -> tuple[list[int], list[Pass]]:
        """The greedy completion of a prompt, no end token, and its passes."""
        import mlx.core as mx
        from dflash import model_mlx

        proposals: list[list[int]] = []
        tokens: list[int] = []
        passes: list[Pass] = []
        with temporal_order(), _recorded(self.drafter, proposals):
            for response in model_mlx.stream_generate(
                self.target, self.drafter, _no_tokenizer(), mx.array(prompt), block_size, max_tokens
            ):
                tokens += response.tokens
                if len(proposals) > len(passes):
                    passes.append(Pass(proposals[-1], _common_prefix(proposals[-1], response.tokens)))
        return tokens, passes

    def draft(self, arrivals: Sequence[Any], anchors: Sequence[int], block: int) -> tuple[list[Any], list[list[int]]]:
        """Logits [block - 1, V] and tokens of successive passes; arrivals[i] [1, S, ids * H] are the new features."""
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        self.drafter.bind(self.target)
        cache = make_prompt_cache(self.drafter)
        logits: list[Any] = []
        tokens: list[list[int]] = []
        with temporal_order():
            for features, anchor in zip(arrivals, anchors, strict=True):
                inputs = mx.array([[anchor] + [self.drafter.config.mask_token_id] * (block - 1)])
                hidden = self.drafter.hidden_states(inputs, mx.array(features), cache, logits_start=1)
                logits.append(self.drafter.compute_logits(hidden))
                tokens.append(self._choose(hidden, logits[-1], inputs[:, 0])[0].tolist())
        return [np.array(rows[0]) for rows in logits], tokens

    def _choose(self, hidden: Any, logits: Any, anchors: Any) -> Any:
        import mlx.core as mx

        if hasattr(self.drafter, "candidate_selector"):
            return self.drafter.candidate_selector.select(hidden, logits, anchors, 0.0)[0]
        return mx.argmax(logits, axis=-1)


@contextmanager
def temporal_order() -> Iterator[None]:
    """Makes the reference's sliding cache append in time order, whatever arrives."""
    from mlx_lm.models.cache import RotatingKVCache

    with mock.patch.object(RotatingKVCache, "update_and_fetch", RotatingKVCache._update_concat):
        yield


@contextmanager
def _recorded(drafter: Any, proposals: list[list[int]]) -> Iterator[None]:
    """Notes the tokens of every proposal: of `propose` in version 2, of the logits' argmax in version 1."""
    import mlx.core as mx

    draft_class = type(drafter)
    name = "propose" if hasattr(draft_class, "propose") else "__call__"
    original = getattr(draft_class, name)

    def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        tokens = result[0] if name == "propose" else mx.argmax(result, axis=-1)
        proposals.append(tokens[0].tolist())
        return result

    with mock.patch.object(draft_class, name, recording):
        yield


def _no_tokenizer() -> Any:
    """A tokenizer without an end token and without text."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    class NoTokenizer(TokenizerWrapper):  # type: ignore[misc]
        eos_token_ids: frozenset[int] = frozenset()
        detokenizer = mock.MagicMock()

        def __init__(self) -> None:
            pass

    return NoTokenizer()


def _common_prefix(proposed: Sequence[int], emitted: Sequence[int]) -> int:
    pairs = zip(proposed, emitted, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(proposed), len(emitted)))


def arrivals_and_anchors(seed: int) -> tuple[list[Any], list[int]]:
    """Seeded features [1, S, 2 * H] per pass of the logits fixture, and its anchors."""
    rng = np.random.default_rng(seed)
    features = [rng.uniform(-1, 1, (1, count, 2 * builders.HIDDEN)).astype(np.float32) for count in ARRIVALS]
    return features, builders.prompt_tokens(seed, len(ARRIVALS))


def make_logits(pair: Pair, folder: Path) -> tuple[Any, list[list[int]]]:
    """Reference logits [passes, block - 1, V] and tokens of a pair on the seeded arrivals."""
    logits, tokens = Reference.load(*pair.build(folder)).draft(*arrivals_and_anchors(SEED), LOGITS_BLOCK)
    return np.stack(logits), tokens


def make_generations(pair: Pair, folder: Path) -> list[dict[str, Any]]:
    """The reference's generations of a pair, for every prompt length and block size."""
    folders = pair.build(folder)
    made = []
    for length in PROMPT_LENGTHS:
        prompt = builders.prompt_tokens(SEED + length, length)
        for block_size in BLOCK_SIZES:
            tokens, passes = Reference.load(*folders).generate(prompt, block_size, MAX_TOKENS)
            made.append(
                {
                    "prompt": prompt,
                    "block_size": block_size,
                    "max_tokens": MAX_TOKENS,
                    "tokens": tokens,
                    "passes": [asdict(entry) for entry in passes],
                }
            )
    return made


def main(out: Path, names: Sequence[str], with_generations: bool) -> None:
    logits: dict[str, Any] = {}
    generations: dict[str, Any] = {}
    for pair in PAIRS:
        if names and pair.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows, tokens = make_logits(pair, Path(folder))
            logits[f"{pair.name}.logits"] = rows
            logits[f"{pair.name}.tokens"] = np.array(tokens, dtype=np.int32)
            if with_generations:
                generations[pair.name] = make_generations(pair, Path(folder))
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / LOGITS_FILE, **logits)
    if with_generations:
        (out / GENERATIONS_FILE).write_text(json.dumps(generations, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("pairs", nargs="*", help="names of pairs; all where none is given")
    parser.add_argument("--logits-only", action="store_true", help="leave the generations out")
    arguments = parser.parse_args()
    main(arguments.out, arguments.pairs, not arguments.logits_only)
