"""Which BLAS is loaded, and when none is: decided from what is installed, with no library really touched."""

import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.engine import blas


@pytest.fixture
def linux_cpu(monkeypatch):
    """A Linux CPU machine on which mlx was not imported yet."""
    monkeypatch.setattr(blas.sys, "platform", "linux")
    monkeypatch.setattr(blas, "_is_installed", lambda name: False)
    monkeypatch.delitem(sys.modules, "mlx.core")


def _loaders(monkeypatch, **found):
    monkeypatch.setattr(blas, "_LOADERS", tuple((name, lambda path=path: path) for name, path in found.items()))


def test_the_fastest_found_is_taken(monkeypatch, linux_cpu):
    _loaders(monkeypatch, MKL=Path("/lib/libmkl_rt.so.2"), OpenBLAS=Path("libopenblas.so.0"))
    assert blas.preload() == blas.Blas("MKL", Path("/lib/libmkl_rt.so.2"))


def test_the_next_is_taken_where_the_first_is_missing(monkeypatch, linux_cpu):
    _loaders(monkeypatch, MKL=None, OpenBLAS=Path("libopenblas.so.0"))
    assert blas.preload() == blas.Blas("OpenBLAS", Path("libopenblas.so.0"))


def test_without_any_a_hint_says_what_to_install(monkeypatch, linux_cpu):
    _loaders(monkeypatch, MKL=None, OpenBLAS=None)
    chosen = blas.preload()
    assert chosen.path is None
    assert chosen.hint is not None
    assert "pip install mkl" in chosen.hint
    assert "libopenblas0-pthread" in chosen.hint
    assert "\n" not in chosen.hint


def _must_not_load():
    raise AssertionError("a BLAS was loaded")


@pytest.mark.parametrize(
    ("platform", "installed", "imported"),
    [("darwin", False, False), ("linux", True, False), ("linux", False, True), ("win32", False, False)],
)
def test_nothing_is_loaded_where_it_cannot_help(monkeypatch, linux_cpu, platform, installed, imported):
    monkeypatch.setattr(blas.sys, "platform", platform)
    monkeypatch.setattr(blas, "_is_installed", lambda name: installed)
    monkeypatch.setattr(blas, "_LOADERS", (("MKL", _must_not_load),))
    if imported:
        monkeypatch.setitem(sys.modules, "mlx.core", object())
    chosen = blas.preload()
    assert chosen.path is None
    assert chosen.hint is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux replaces its BLAS")
def test_the_loaded_blas_answers_mlx():
    """In a fresh process: MLX's matrix product runs in the library that was named."""
    script = (
        "import ctypes, batchgen.engine as engine; import mlx.core as mx\n"
        "a = mx.ones((8, 8)); mx.eval(a @ a)\n"
        "path = engine.BLAS.path\n"
        "function = ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value if path else 0\n"
        "own = ctypes.cast(ctypes.CDLL(str(path)).cblas_sgemm, ctypes.c_void_p).value if path else 0\n"
        "print(function == own, engine.BLAS.name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True ")
