"""Loops for the CPU, compiled by Numba."""
