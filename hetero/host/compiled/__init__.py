"""Loops that Numba compiles: in which process, and the cache on disk that keeps them."""
