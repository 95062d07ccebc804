"""Sets of row keys, small enough for millions of rows: bits in memory, ranges on disk.

Knows nothing of files.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from batchgen.types import RowKey


class KeyRange(NamedTuple):
    """The rows `start` to `stop - 1` of one sample."""

    sample: int
    start: int
    stop: int


class KeyRanges:
    """Ranges in 24 bytes each: a log of a million rows in any order can hold hundreds of thousands of them."""

    def __init__(self, ranges: Iterable[KeyRange]) -> None:
        self._flat = array("q", chain.from_iterable(ranges))

    def __iter__(self) -> Iterator[KeyRange]:
        for start in range(0, len(self._flat), 3):
            yield KeyRange(*self._flat[start : start + 3])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRanges) and self._flat == other._flat

    def __hash__(self) -> int:
        return hash(self._flat.tobytes())


def to_ranges(keys: Iterable[RowKey]) -> KeyRanges:
    """The keys as the fewest ranges, ordered by sample, then row."""
    ranges: list[KeyRange] = []
    for row, sample in sorted(keys, key=lambda key: (key.sample, key.row)):
        last = ranges[-1] if ranges else None
        if last is not None and last.sample == sample and last.stop == row:
            ranges[-1] = last._replace(stop=row + 1)
        else:
            ranges.append(KeyRange(sample, row, row + 1))
    return KeyRanges(ranges)


def range_keys(ranges: Iterable[KeyRange]) -> Iterator[RowKey]:
    """The keys that the ranges stand for."""
    for sample, start, stop in ranges:
        for row in range(start, stop):
            yield RowKey(row, sample)


class KeySet:
    """A growing set of row keys: one bit for each row up to the largest, for each sample."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}
        self._num_keys = 0

    def __len__(self) -> int:
        return self._num_keys

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, RowKey):
            return False
        bits = self._bits.get(key.sample, b"")
        byte = key.row >> 3
        return byte < len(bits) and bool(bits[byte] >> (key.row & 7) & 1)

    def add(self, key: RowKey) -> None:
        if key in self:
            return
        bits = self._bits.setdefault(key.sample, bytearray())
        byte = key.row >> 3
        if byte >= len(bits):
            bits.extend(bytes(byte + 1 - len(bits)))
        bits[byte] |= 1 << (key.row & 7)
        self._num_keys += 1

    def update(self, keys: Iterable[RowKey]) -> None:
        for key in keys:
            self.add(key)
