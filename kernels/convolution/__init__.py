"""Kernels of two-dimensional convolution."""
