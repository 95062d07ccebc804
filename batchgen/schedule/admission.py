"""Which waiting rows enter the batch next. Pure policy: no tokens are made here and nothing is read or written.

First come, first served, with a bounded look-ahead: the oldest waiting row always goes, and the other free places go
to the rows nearest to it in prompt length, so that prompts prefilled together are of similar length. As each round
with a free place takes the oldest, a row that has `k` older ones before it waits for at most `k` such rounds.
"""

from collections.abc import Sequence

LOOK_AHEAD_BATCHES = 4
MIN_LOOK_AHEAD = 16


def look_ahead(max_rows: int) -> int:
    """How many rows may wait, read and encoded, for a batch of `max_rows`."""
    return max(MIN_LOOK_AHEAD, LOOK_AHEAD_BATCHES * max_rows)


def choose(lengths: Sequence[int], num_free: int) -> list[int]:
    """Positions of the waiting rows to admit, oldest first.

    `lengths` are the prompt lengths in tokens of the waiting rows, oldest first; at most `num_free` are chosen.
    """
    if not lengths or num_free < 1:
        return []
    by_likeness = sorted(range(1, len(lengths)), key=lambda position: (abs(lengths[position] - lengths[0]), position))
    return sorted([0, *by_likeness[: num_free - 1]])
