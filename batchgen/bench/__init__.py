"""Measures decoding. Compares only what ran in one process on the same rows, and prints ratios first."""

import batchgen.engine  # noqa: F401 - a fast BLAS must be loaded before mlx is imported
