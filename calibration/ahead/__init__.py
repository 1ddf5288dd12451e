"""Kernels compiled by other processes, ahead of their measurement."""
