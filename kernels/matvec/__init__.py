"""Kernels of matrix-vector products."""
