"""Kernels of matrix-matrix products."""
