"""A fast BLAS for MLX on a Linux CPU, loaded before MLX is.

The `mlx[cpu]` wheel brings the reference BLAS (a few GFLOP/s). A BLAS whose symbols are global before libmlx is
loaded answers its calls instead: MKL (tens of times faster) or OpenBLAS (about ten times). Never on macOS, never where
an MLX for a GPU is installed, and never after mlx was imported, when it would be too late. Imports neither mlx nor
numpy.
"""

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_GPU_DISTRIBUTIONS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
_HINT = (
    "matrix products run on the slow reference BLAS: install a fast one with `pip install mkl` (x86) "
    "or `apt install libopenblas0-pthread`, both are picked up by themselves"
)


@dataclass(frozen=True, slots=True)
class Blas:
    """Which BLAS answers MLX's matrix products; `hint` says how to get a faster one where that is worth it."""

    name: str
    path: Path | None = None
    hint: str | None = None


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _distribution_files(distribution: str, stem: str) -> Iterator[Path]:
    """Shared libraries that a distribution installed under the name `stem`.so[.N]."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith(f"{stem}.so"):
            yield Path(str(file.locate())).resolve()


def _load_global(path: str | Path) -> bool:
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load_mkl() -> Path | None:
    for runtime in _distribution_files("mkl", "libmkl_rt"):
        # libmkl_rt picks its integer size and threading from the environment when it is loaded; MLX calls it with
        # 32-bit integers, and the OpenMP runtime it was built for must be there first.
        os.environ["MKL_INTERFACE_LAYER"] = "LP64"
        os.environ.setdefault("MKL_THREADING_LAYER", "INTEL")
        openmp = list(_distribution_files("intel-openmp", "libiomp5"))
        if all(_load_global(path) for path in openmp) and _load_global(runtime):
            return runtime
    return None


def _load_openblas() -> Path | None:
    for name in ("libopenblas.so.0", ctypes.util.find_library("openblas")):
        if name and _load_global(name):
            return Path(name)
    return None


_LOADERS: tuple[tuple[str, Callable[[], Path | None]], ...] = (("MKL", _load_mkl), ("OpenBLAS", _load_openblas))


def preload() -> Blas:
    """Loads the fastest BLAS found where it can help; says which one MLX will use."""
    if sys.platform != "linux":
        return Blas("Accelerate" if sys.platform == "darwin" else "MLX's own")
    if any(_is_installed(name) for name in _GPU_DISTRIBUTIONS):
        return Blas("cuBLAS")
    if "mlx.core" in sys.modules:
        return Blas("unknown: mlx was imported before batchgen.engine")
    for name, load in _LOADERS:
        path = load()
        if path is not None:
            return Blas(name, path)
    return Blas("reference BLAS", hint=_HINT)
