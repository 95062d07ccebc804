"""Which waiting prompts enter the batch next. Pure policy: no tokens are made here and nothing is read or written.

First come, first served, with a bounded look-ahead: the oldest waiting prompt always goes, and the other free places go
to the prompts nearest to it in length, so that prompts read together are of similar length. A prompt goes with as many
of its samples as there are places; what is left of it goes before all others, so that never more than one prompt is
half in. As each round that begins prompts begins the oldest, a prompt that has `k` older ones before it waits for at
most `k` such rounds.

Once no more prompts will come, those that may make most tokens go first instead: a long row that begins last would
decode alone at the end.
"""

from collections.abc import Sequence
from typing import NamedTuple

LOOK_AHEAD_BATCHES = 4
MIN_LOOK_AHEAD = 16


class Waiting(NamedTuple):
    """A waiting prompt: its length in tokens, how many of its samples wait, whether others of them are in, and how many
    tokens each may make."""

    length: int
    num_samples: int = 1
    is_begun: bool = False
    max_tokens: int = 0


class Admitted(NamedTuple):
    """A position among the waiting prompts, and how many of its samples go."""

    position: int
    num_samples: int


def look_ahead(max_rows: int) -> int:
    """How many rows may wait, read and encoded, for a batch of `max_rows`."""
    return max(MIN_LOOK_AHEAD, LOOK_AHEAD_BATCHES * max_rows)


def choose(waiting: Sequence[Waiting], num_free: int, *, are_all: bool = False) -> list[Admitted]:
    """The prompts to admit, by position, at most `num_free` samples in all.

    `waiting` is the prompts from the oldest on, but one that is begun first; `are_all` says that no more will come.
    """
    if not waiting or num_free < 1:
        return []
    chosen: list[Admitted] = []
    for position in _longest_first(waiting) if are_all else _oldest_first(waiting):
        num_samples = min(num_free, waiting[position].num_samples)
        if num_samples == 0:
            break
        chosen.append(Admitted(position, num_samples))
        num_free -= num_samples
    return sorted(chosen)


def _oldest_first(waiting: Sequence[Waiting]) -> list[int]:
    """The oldest prompt, and the others by how near they are to it in length."""
    num_fixed = min(1 + waiting[0].is_begun, len(waiting))
    oldest = waiting[num_fixed - 1].length
    others = range(num_fixed, len(waiting))
    return [*range(num_fixed), *sorted(others, key=lambda at: (abs(waiting[at].length - oldest), at))]


def _longest_first(waiting: Sequence[Waiting]) -> list[int]:
    """By the tokens they may make; of those that may make as many, the oldest, and the others by how near in length."""
    oldest: dict[int, int] = {}
    for prompt in waiting:
        oldest.setdefault(prompt.max_tokens, prompt.length)

    def rank(at: int) -> tuple[bool, int, int, int]:
        prompt = waiting[at]
        return not prompt.is_begun, -prompt.max_tokens, abs(prompt.length - oldest[prompt.max_tokens]), at

    return sorted(range(len(waiting)), key=rank)
