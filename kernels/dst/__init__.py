"""Kernels of sine transforms."""
