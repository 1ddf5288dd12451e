"""Calls on fewer of the CPU's threads: of the loops', or of the BLAS that NumPy calls.

Numba keeps a number of threads for each of Python's threads. OpenBLAS has one for the process:
it is lowered only while no other thread runs Python, so that no other thread can be in BLAS, gets
fewer threads for its product, or has its limit undone. Pricing and running a call both use `state`.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from hetero.host import blas
from hetero.imports import load

__all__ = ["BLAS", "LOOPS", "State", "limited", "most", "number", "state"]

BLAS, LOOPS = "blas", "loops"
_AFFIXES = [(prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", "_64", "")]


class State(NamedTuple):
    """The state that decides how many threads BLAS uses for a call.

    Attributes
    ----------
    alone : bool
        Whether no other thread runs Python, but for those of ours that never call BLAS.
    number : int
        How many BLAS takes by itself: all, or as many as the user lets it.
    """

    alone: bool
    number: int

    def taken(self, count: int) -> int:
        """The number of threads that a call limited to ``count`` runs on."""
        return min(count, self.number) if self.alone else self.number


def state() -> State | None:
    """The current state of BLAS; None where its threads cannot be limited."""
    accessors = _blas()
    return None if accessors is None else State(_is_alone(), accessors[0]())


def number() -> int | None:
    """How many threads BLAS takes by itself now; None where they cannot be limited."""
    accessors = _blas()
    return None if accessors is None else accessors[0]()


def most(pool: str) -> int | None:
    """How many threads a pool has at most; None where it cannot be limited now."""
    if pool == LOOPS:
        numba = load("numba")

        return int(numba.config.NUMBA_NUM_THREADS)
    now = state()
    return now.number if now is not None and now.alone else None


def limited(pool: str, count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, limited to ``count`` threads of a pool."""
    if pool == LOOPS:
        return _limited_loops(count, function)
    accessors = _blas()
    return function if accessors is None else _limited_blas(count, function, *accessors)


def _limited_loops(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        return load("hetero.host.threads").capped(count, function, *arguments, **options)

    return run


def _limited_blas(
    count: int,
    function: Callable[..., Any],
    get: Callable[[], int],
    put: Callable[[int], Any],
) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        number = get()
        if number <= count or not _is_alone():  # as `State.taken` has it, in half the time
            return function(*arguments, **options)
        try:
            put(count)
            return function(*arguments, **options)
        finally:  # the default of calls that other threads began meanwhile
            put(number)

    return run


@functools.cache
def _blas() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """The functions that get and set the number of threads of NumPy's OpenBLAS."""
    for library in blas.libraries():
        path = library["filepath"]
        if blas.owner(path) != "numpy" or library.get("internal_api") != "openblas":
            continue
        if library.get("threading_layer") != "pthreads":
            continue
        loaded = ctypes.PyDLL(path)  # microseconds: not worth letting go of the GIL
        for prefix, suffix in _AFFIXES:
            get = getattr(loaded, f"{prefix}openblas_get_num_threads{suffix}", None)
            put = getattr(loaded, f"{prefix}openblas_set_num_threads{suffix}", None)
            if get is not None and put is not None:
                put.restype = None
                return get, put
    return None


def _is_alone() -> bool:
    """Whether no other thread runs Python, but for those of ours that never call BLAS.

    Nothing is remembered, since one thread may end while another begins. Where there is no other at
    all, two counts show it: of the threads that Python started, and of all that run Python.
    """
    return (_thread._count() == 0 and len(sys._current_frames()) == 1) or not blas.others()
