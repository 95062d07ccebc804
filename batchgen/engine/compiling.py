"""Where functions of arrays are compiled: on a GPU, where launches count.

On a CPU every new shape would cost a run of the C++ compiler, which small operations never earn back.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx


def on_gpu() -> bool:
    """Whether decoding runs on a GPU."""
    return bool(mx.default_device().type == mx.DeviceType.gpu)


def compiled(function: Callable[..., Any], *, when: bool | None = None) -> Callable[..., Any]:
    """The function with its small operations fused, where that pays (or as `when` says)."""
    wanted = on_gpu() if when is None else when
    return mx.compile(function) if wanted else function
