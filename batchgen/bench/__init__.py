"""Measures decoding. Compares only what ran in one process on the same rows, and prints ratios first."""
