"""Numbers between host and device, typed. Reading waits for the device; everything else in the engine is lazy."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx


def int_array(values: Sequence[int]) -> mx.array:
    """[N] int32."""
    return mx.array(list(values), dtype=mx.int32)


def read_ints(array: mx.array) -> list[int]:
    """The entries of an integer array [N]."""
    return cast(list[int], array.tolist())


def read_int_rows(array: mx.array) -> list[list[int]]:
    """The rows of an integer array [N, M]."""
    return cast(list[list[int]], array.tolist())


def read_float_rows(array: mx.array) -> list[list[float]]:
    """The rows of a floating array [N, M]."""
    return cast(list[list[float]], array.tolist())


def read_float(array: mx.array) -> float:
    """The entry of a floating array []."""
    return cast(float, array.item())
