"""Kernels compiled ahead of their measurement, by processes beside it."""
