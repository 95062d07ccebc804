"""Loads the fast BLAS before any test module imports mlx."""

import batchgen.engine  # noqa: F401
