"""Which waiting prompts enter the batch next. Pure policy: no tokens are made here and nothing is read or written.

First come, first served, with a bounded look-ahead: the oldest waiting prompt always goes, and the other free places go
to the prompts nearest to it in length, so that prompts read together are of similar length. A prompt goes with as many
of its samples as there are places; what is left of it goes before all others, so that never more than one prompt is
half in. As each round that begins prompts begins the oldest, a prompt that has `k` older ones before it waits for at
most `k` such rounds.
"""

from collections.abc import Sequence
from typing import NamedTuple

LOOK_AHEAD_BATCHES = 4
MIN_LOOK_AHEAD = 16


class Waiting(NamedTuple):
    """A waiting prompt: its length in tokens, how many of its samples wait, whether others of them are in."""

    length: int
    num_samples: int = 1
    is_begun: bool = False


class Admitted(NamedTuple):
    """A position among the waiting prompts, and how many of its samples go."""

    position: int
    num_samples: int


def look_ahead(max_rows: int) -> int:
    """How many rows may wait, read and encoded, for a batch of `max_rows`."""
    return max(MIN_LOOK_AHEAD, LOOK_AHEAD_BATCHES * max_rows)


def choose(waiting: Sequence[Waiting], num_free: int) -> list[Admitted]:
    """The prompts to admit, by position, at most `num_free` samples in all.

    `waiting` is the prompts from the oldest on, but one that is begun first.
    """
    if not waiting or num_free < 1:
        return []
    num_fixed = min(1 + waiting[0].is_begun, len(waiting))
    oldest = waiting[num_fixed - 1].length
    others = range(num_fixed, len(waiting))
    by_likeness = sorted(others, key=lambda position: (abs(waiting[position].length - oldest), position))
    chosen: list[Admitted] = []
    for position in (*range(num_fixed), *by_likeness):
        num_samples = min(num_free, waiting[position].num_samples)
        if num_samples == 0:
            break
        chosen.append(Admitted(position, num_samples))
        num_free -= num_samples
    return sorted(chosen)
