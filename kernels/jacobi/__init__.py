"""Kernels of Jacobi's method."""
