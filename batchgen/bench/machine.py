"""What a measurement was taken on: without it a figure means nothing."""

import importlib.metadata
import os
import platform

import mlx.core as mx

from batchgen.engine import BLAS


def machine_facts() -> dict[str, str | int]:
    """Device, processor, BLAS and versions, as short texts."""
    info = mx.device_info()
    device = mx.default_device().type.name
    facts: dict[str, str | int] = {
        "device": str(info.get("device_name") or info.get("architecture") or device),
        "backend": device,
        "blas": BLAS.name if device == "cpu" else "-",
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return facts | {name: importlib.metadata.version(name) for name in ("batchgen", "mlx", "mlx-lm")}
