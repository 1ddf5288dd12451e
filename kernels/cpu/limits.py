"""Calls on fewer of the CPU's threads: of the loops', or of the BLAS that NumPy calls.

Numba keeps a number of threads for each of Python's threads. OpenBLAS has one for the process:
it is lowered only while no other thread runs Python, so that nobody else's product gets fewer
threads, and no one else's limit is undone.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
from collections.abc import Callable
from typing import Any

from . import blas_timeout

__all__ = ["BLAS", "LOOPS", "limited", "most"]

BLAS, LOOPS = "blas", "loops"
_AFFIXES = [(prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", "_64", "")]


def most(pool: str) -> int | None:
    """How many threads a pool has at most; None where it cannot be limited."""
    if pool == LOOPS:
        import numba

        return int(numba.config.NUMBA_NUM_THREADS)
    found = _blas()
    return None if found is None else found[0]


def limited(pool: str, count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs on at most so many threads of a pool."""
    if pool == LOOPS:
        return _limited_loops(count, function)
    found = _blas()
    return function if found is None else _limited_blas(count, function, *found[1:])


def _limited_loops(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        from .threads import capped  # loads Numba

        return capped(count, function, *arguments, **options)

    return run


def _limited_blas(
    count: int,
    function: Callable[..., Any],
    get: Callable[[], int],
    put: Callable[[int], Any],
) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        if not _is_alone():
            return function(*arguments, **options)
        before = get()
        if before <= count:
            return function(*arguments, **options)
        try:
            put(count)
            return function(*arguments, **options)
        finally:
            put(before)

    return run


@functools.cache
def _blas() -> tuple[int, Callable[[], int], Callable[[int], Any]] | None:
    """The number of threads of NumPy's OpenBLAS, and what gets and sets it."""
    for library in blas_timeout.libraries():
        path = library["filepath"]
        if blas_timeout.owner(path) != "numpy" or library.get("internal_api") != "openblas":
            continue
        if library.get("threading_layer") != "pthreads":
            continue
        loaded = ctypes.PyDLL(path)  # microseconds: not worth letting go of the GIL
        for prefix, suffix in _AFFIXES:
            get = getattr(loaded, f"{prefix}openblas_get_num_threads{suffix}", None)
            put = getattr(loaded, f"{prefix}openblas_set_num_threads{suffix}", None)
            if get is not None and put is not None:
                put.restype = None
                return int(library["num_threads"]), get, put
    return None


_counted = {"threads": 0, "alone": True}


def _is_alone() -> bool:
    """Whether no other thread runs Python, but for those of ours that never call BLAS."""
    number = _thread._count()
    if number == 0:
        return True
    if number != _counted["threads"]:
        _counted["alone"] = not blas_timeout.others()
        _counted["threads"] = number
    return _counted["alone"]
