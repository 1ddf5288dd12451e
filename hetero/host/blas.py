"""One thread of each BLAS of this process, by threadpoolctl."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

from hetero import locks
from hetero.imports import load

__all__ = ["one_thread"]

_lock = locks.new()
_single: dict[str, Any] = {"inside": 0, "limit": None}  # how many are in `one_thread`


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A context in which every BLAS has one thread, for loops that call it from threads of theirs.

    BLAS has one number of threads for the process. It is put back when the last one leaves: the
    context may be entered several times, and by several threads.
    """
    with _lock:
        if not _single["inside"]:
            loops = "numba" in sys.modules
            _let_any_thread_set()
            _single["limit"] = _controller(loops).limit(limits=1, user_api="blas")
        _single["inside"] += 1
    try:
        yield
    finally:
        with _lock:
            if _single["inside"]:  # 0 where it was entered before a fork
                _single["inside"] -= 1
                if not _single["inside"]:
                    _let_any_thread_set()
                    _single["limit"].restore_original_limits()
                    _let_any_thread_set()


def _let_any_thread_set() -> None:
    """From version 3.8 on threadpoolctl sets OpenBLAS's number of threads for the thread alone that
    did so first; the one that leaves `one_thread` last may be another."""
    of_openblas = getattr(load("threadpoolctl"), "OpenBLASController", None)
    clear = getattr(of_openblas, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@functools.cache
def _controller(loops: bool) -> Any:
    """Of each BLAS of this process; SciPy's is loaded for compiled loops, which call it."""
    if loops:
        load("scipy.linalg.cython_blas")  # it takes 0.1 s
    ThreadpoolController = load("threadpoolctl").ThreadpoolController
    return ThreadpoolController()


def _in_child() -> None:
    """Whoever else was inside is not in the child. BLAS keeps one thread there: to ask it for more
    in a hook could wait for a lock that nobody opens."""
    _single.update(inside=0, limit=None)


os.register_at_fork(after_in_child=_in_child)
