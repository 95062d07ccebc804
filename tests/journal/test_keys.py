"""Key sets: bits in memory and ranges on disk say the same as a plain list of keys."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from batchgen.journal.keys import KeyRange, KeySet, range_keys, to_ranges
from batchgen.types import RowKey

KEYS = st.lists(st.builds(RowKey, st.integers(0, 200), st.integers(0, 2)), unique=True)


@given(KEYS)
def test_ranges_hold_exactly_the_keys(keys: list[RowKey]) -> None:
    assert sorted(range_keys(to_ranges(keys))) == sorted(keys)


@given(KEYS, KEYS)
def test_a_set_holds_what_was_added_and_nothing_else(added: list[RowKey], asked: list[RowKey]) -> None:
    keys = KeySet()
    keys.update(added)
    keys.update(added)
    assert len(keys) == len(added)
    assert [key in keys for key in asked] == [key in added for key in asked]


def test_neighbours_share_a_range() -> None:
    keys = [RowKey(5, 0), RowKey(3, 0), RowKey(4, 0), RowKey(9, 0), RowKey(6, 1)]
    assert list(to_ranges(keys)) == [KeyRange(0, 3, 6), KeyRange(0, 9, 10), KeyRange(1, 6, 7)]
    assert to_ranges(keys) == to_ranges(keys[::-1]) != to_ranges(keys[1:])


def test_a_million_rows_take_a_bit_each() -> None:
    keys = KeySet()
    keys.add(RowKey(999_999, 0))
    assert sum(sys.getsizeof(bits) for bits in keys._bits.values()) < 150_000
