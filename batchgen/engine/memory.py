"""How much memory rows take, so that never more are admitted than fit. Pure arithmetic over sizes, and what a machine
has."""

import os
from dataclasses import dataclass

import mlx.core as mx

# Of what a machine has, this share is counted on: others use it too, and an allocator leaves gaps.
_USABLE = 0.9
_DEVICE_KEYS = ("max_recommended_working_set_size", "total_memory", "memory_size")


@dataclass(frozen=True, slots=True)
class RowBytes:
    """What a row takes: at any length, per token of capacity, and per position of a block while it is checked."""

    fixed: int = 0
    per_token: int = 0
    per_position: int = 0

    def __add__(self, other: "RowBytes") -> "RowBytes":
        return RowBytes(
            self.fixed + other.fixed, self.per_token + other.per_token, self.per_position + other.per_position
        )

    def total(self, num_rows: int, capacity: int, block: int) -> int:
        """Bytes of that many rows."""
        return num_rows * (self.fixed + self.per_token * capacity + self.per_position * block)


def memory_for_rows(limit: int | None) -> int:
    """Bytes that are left for rows once the models are read, of `limit` or of what the default device has."""
    return max(0, (usable_memory() if limit is None else limit) - mx.get_active_memory())


def usable_memory() -> int:
    """Bytes that this process may take on the default device, what it has taken already included."""
    info = mx.device_info()
    sizes = [int(info[key]) for key in _DEVICE_KEYS if key in info]
    total = sizes[0] if sizes else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(_USABLE * total)
