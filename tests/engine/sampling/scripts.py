"""Matchers that follow a script, for rows with a grammar or stop strings; they note all that the engine tells them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from batchgen.types import Generation
from tests.engine.builders import VOCAB

Script = Callable[[Sequence[int]], npt.NDArray[np.bool_]]
IDS = np.arange(VOCAB)


def even_then_odd(num_even: int) -> Script:
    """Even tokens for as long, then odd ones."""
    is_odd = IDS % 2 > 0
    return lambda tokens: is_odd == (len(tokens) >= num_even)


def no_thirds(tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
    """What may come depends on the token before: no two in a row whose sum is a multiple of 3."""
    return (IDS + tokens[-1]) % 3 != 0 if tokens else IDS % 3 == 1


def ends_after(num_tokens: int, end: int) -> Script:
    """Anything but the end token, then nothing else."""
    is_end = np.isin(IDS, [end])
    return lambda tokens: is_end == (len(tokens) >= num_tokens)


@dataclass
class ScriptedGrammar:
    """Allows what its script says of the completion so far."""

    script: Script
    taken: list[int] = field(default_factory=list)
    num_refused: int = 0

    def fill(self, drafts: Sequence[int], masks: npt.NDArray[np.uint32]) -> int:
        assert masks.shape == (len(drafts) + 1, VOCAB // 32)
        tokens = list(self.taken)
        for place, draft in enumerate([*drafts, None]):
            allowed = self.script(tokens)
            masks[place] = np.packbits(allowed, bitorder="little").view("<u4")
            if draft is None:
                break
            if not allowed[draft]:
                self.num_refused += 1
                return place
            tokens.append(draft)
        return len(drafts)

    def advance(self, tokens: Sequence[int]) -> None:
        self.taken += tokens

    def failure(self, num_tokens: int) -> str | None:
        return None

    def allows(self, tokens: Sequence[int]) -> bool:
        """Whether a whole completion follows the script."""
        return all(self.script(tokens[:place])[token] for place, token in enumerate(tokens))


@dataclass
class StopAt:
    """Stops where these tokens have come one behind the other, as a stop string does that spans several tokens."""

    wanted: tuple[int, ...]
    pushed: list[int] = field(default_factory=list)
    is_complete: bool = False

    def push(self, token: int) -> bool:
        assert not self.is_complete, "asked again after the stop"
        self.pushed.append(token)
        self.is_complete = tuple(self.pushed[-len(self.wanted) :]) == self.wanted
        return self.is_complete

    def finish(self) -> bool:
        assert not self.is_complete
        return False


def counts_hold(generation: Generation) -> bool:
    """What is true of every row's counts, wherever it was cut."""
    counts, passes = generation.acceptance_counts, generation.verify_passes
    return (
        len(generation.tokens) == 1 + generation.accepted_tokens + passes
        and sum(counts) == passes
        and sum(accepted * times for accepted, times in enumerate(counts)) == generation.accepted_tokens
        and generation.accepted_tokens <= generation.drafted_tokens <= passes * max(0, len(counts) - 1)
    )
