"""Kernels of conjugate gradients."""
