"""Kernels of multigrid cycles."""
