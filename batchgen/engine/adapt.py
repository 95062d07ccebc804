"""How long a block the next round should have: as long as brings most tokens per second, down to plain decoding.

Rests on two things that are measured while rows decode: how often a draft at each place stands, and what a round of
each length costs at the present number of slots. Pure Python, no arrays; chooses, and never looks at a row.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

# Before anything is known a draft stands with this probability if those before it do, with the weight of so many.
_PRIOR_RATE, _PRIOR_WEIGHT = 0.8, 4.0
# What was seen loses half its weight in so many passes of rows.
_HALF_LIFE = 512
# Times of one length that are kept, and how many are wanted before it is believed. The first one of a shape is never
# counted: a device plans and compiles for it.
_KEPT, _WANTED = 7, 2
# The ends of the range are measured again from time to time: caches grow, and text changes. Not before so many rounds,
# and not oftener than costs this share of the time.
_STALE_ROUNDS, _PROBE_SHARE = 256, 0.01


@dataclass(slots=True)
class Acceptance:
    """How often drafts stand, by their place in the block, over all rows."""

    size: int
    _stood: list[float] = field(init=False)
    _judged: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._stood = [_PRIOR_RATE * _PRIOR_WEIGHT] * self.size
        self._judged = [_PRIOR_WEIGHT] * self.size

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """One row's pass: the draft at place i was judged only if all before it stood."""
        fade = 0.5 ** (1 / _HALF_LIFE)
        for place in range(min(num_drafts, num_accepted + 1)):
            self._stood[place] = self._stood[place] * fade + (place < num_accepted)
            self._judged[place] = self._judged[place] * fade + 1

    def expected_tokens(self, block: int) -> float:
        """Tokens that a row makes in a round of `block`, on average: drafts that stand, and the target's own."""
        total, standing = 1.0, 1.0
        for place in range(min(block - 1, self.size)):
            standing *= self._stood[place] / self._judged[place]
            total += standing
        return total


@dataclass(slots=True)
class Costs:
    """Seconds of a round by its length, for one number of slots."""

    _times: dict[int, list[float]] = field(default_factory=dict)
    _seen: Counter[int] = field(default_factory=Counter)

    @property
    def num_rounds(self) -> int:
        return self._seen.total()

    def note(self, block: int, seconds: float) -> None:
        self._seen[block] += 1
        if self._seen[block] > 1 and seconds > 0:
            self._times[block] = [*self._times.get(block, []), seconds][-_KEPT:]

    def is_known(self, block: int) -> bool:
        # A clock that stands still is given up on.
        return len(self._times.get(block, [])) >= _WANTED or self._seen[block] > 2 * _WANTED

    def seconds(self, block: int) -> float | None:
        """Median of the times of that length. Of one not measured yet, the least that it can be: a longer block costs
        no less than a shorter one, so what may be best is tried. None where nothing is known."""
        if self.is_known(block) and block in self._times:
            return median(self._times[block])
        below = [length for length in self._times if length < block and self.is_known(length)]
        return median(self._times[max(below)]) if below else None

    def table(self) -> Mapping[int, float]:
        """Seconds by length, of the lengths that were measured."""
        return {block: median(times) for block, times in sorted(self._times.items())}


class BlockChooser:
    """Chooses among lengths from 1 to `largest`."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._candidates = candidates(largest)
        self._acceptance = Acceptance(largest - 1)
        self._costs: dict[int, Costs] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._num_rounds = 0
        self.used: Counter[int] = Counter()

    def choose(self, num_slots: int) -> int:
        """The length of the next round."""
        num_slots = _bucket(num_slots)
        costs = self._costs.setdefault(num_slots, Costs())
        for block in (self.largest, 1):
            if not costs.is_known(block):
                return block
        best = max(self._candidates, key=lambda block: (self._rate(costs, block), block))
        for block in (self.largest, 1):
            age = self._num_rounds - self._last.get((num_slots, block), 0)
            price = (costs.seconds(block) or 1.0) / (costs.seconds(best) or 1.0)
            if age >= max(_STALE_ROUNDS, price / _PROBE_SHARE):
                return block
        return best

    def _rate(self, costs: Costs, block: int) -> float:
        seconds = costs.seconds(block)
        return self._acceptance.expected_tokens(block) / seconds if seconds else float(block)

    def note_round(self, num_slots: int, block: int, seconds: float | None) -> None:
        """A round was read; `seconds` is None where something else went on beside it."""
        num_slots = _bucket(num_slots)
        self._num_rounds += 1
        self._last[num_slots, block] = self._num_rounds
        self.used[block] += 1
        if seconds is not None:
            self._costs.setdefault(num_slots, Costs()).note(block, seconds)

    def note_row(self, num_drafts: int, num_accepted: int) -> None:
        """What became of a row's drafts in a round."""
        self._acceptance.note(num_drafts, num_accepted)

    def facts(self) -> dict[str, str]:
        """What was chosen and what it rests on, as short texts."""
        if not self.used:
            return {}
        total = self.used.total()
        used = ", ".join(f"{block}: {count / total:.0%}" for block, count in sorted(self.used.items()))
        expected = ", ".join(f"{block}: {self._acceptance.expected_tokens(block):.2f}" for block in self._candidates)
        busiest = max(self._costs, key=lambda slots: self._costs[slots].num_rounds, default=None)
        facts = {"rounds by block_size": used, "expected tokens a round by block_size": expected}
        if busiest is not None:
            table = self._costs[busiest].table()
            times = ", ".join(f"{block}: {1e3 * seconds:.1f}" for block, seconds in table.items())
            facts[f"ms a round by block_size, {busiest} rows"] = times
        return facts


def _bucket(num_slots: int) -> int:
    """Numbers of slots that count as one: those up to a power of two."""
    return 1 << (num_slots - 1).bit_length()


def candidates(largest: int) -> Sequence[int]:
    """Lengths worth choosing among: every one costs a GPU a compilation, so they grow wider apart."""
    steps = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    return tuple(sorted({step for step in steps if step < largest} | {largest}))
