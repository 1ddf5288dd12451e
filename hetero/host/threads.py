"""Loops for the CPU, compiled by Numba and shared among its threads.

A kernel is a plain function with loops that are `parts.part`, decorated with `threaded`. It is
compiled on its first call with new types, and Numba's cache keeps it for the next process. Sums may
be reordered so that they vectorise; nothing else is relaxed, so that NaN and infinity keep their
meaning. Parallel sums are reproducible: the bounds of their chunks do not depend on the number of
threads, and chunks are added in order.

The threads are TBB's where it is there (`layer`). Numba's other threads (GNU OpenMP) do not survive
a fork: using them in the child ends the process. A forked child therefore runs the same loops
unthreaded, whichever they are. Its portable threads ("workqueue") cannot be used by two threads at
once, so there calls take turns.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import numba
from llvmlite.binding import ffi
from numba.core import compiler_lock
from numba.np.ufunc import parallel as layers

from hetero.host import parts, threading_layer
from hetero.host.parts import ALONE, OPTIONS, team

__all__ = ["capped", "serial", "shared", "task_count", "thread_count", "threaded"]

log = logging.getLogger("hetero")
_SHARE = 1 << 14  # elements per thread; with fewer, waking it costs more than it saves
_lock = threading.RLock()
_state = {"started": False, "forked": False, "turns": None, "process": 0}
threading_layer.prepare()  # before anything here starts Numba's threads


def threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function(team, *arguments)``; it is called without the team, on all threads.

    Its attribute ``alone`` does the same on the calling thread. With a team of one, another thread
    would do the work while the caller waits: on busy cores that takes milliseconds.
    """
    kernel = serial(function)

    def together(*arguments: Any) -> Any:
        threads = team()
        # A child of a fork that Python does not know of has no threads either.
        if threads != ALONE and _state["process"] != os.getpid():
            threads = ALONE
        return kernel(threads, *arguments)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if _state["forked"]:
            return kernel(ALONE, *arguments)
        if _state["turns"] is None:
            with _lock:
                thread_count()
                result = together(*arguments)
                _state["turns"] = numba.threading_layer() == "workqueue"
                return result
        if _state["turns"]:
            with _lock:
                return together(*arguments)
        return together(*arguments)

    call.alone = functools.partial(kernel, ALONE)  # type: ignore[attr-defined]
    return call


def thread_count() -> int:
    """How many threads loops run on at most, by the caller's choice; starts them."""
    if _state["forked"]:
        return 1  # nothing is asked of Numba's threads, which may have been half started
    if not _state["started"]:
        with _lock:
            _state.update(started=True, process=os.getpid())  # before the threads start
    return parts.thread_count()


def task_count() -> int:
    """The largest number of tasks that loops are cut into."""
    threads = thread_count()
    return parts.TASKS * threads if threads > 1 else 1


def shared(elements: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with the number of threads that pays for this number of elements."""
    return capped(max(1, elements // _SHARE), function, *arguments)


def capped(most: int, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function with its kernels limited to ``most`` threads.

    An interrupt at any point leaves the number of threads as it was: Python handles signals when it
    enters a function of its own, which the threading layer's is not, and no ``with`` comes between.
    `numba.set_num_threads` is such a function; compiled, it takes 0.3 s of every process.
    """
    if _state["forked"]:
        return function(*arguments, **options)
    before = thread_count()  # starts the threads: the layer's function is there then
    set_threads = layers._set_num_threads
    try:
        set_threads(min(before, most))
        return function(*arguments, **options)
    finally:
        set_threads(before)


def _is_numbas(error: Exception) -> bool:
    """Whether Numba's cache raised it, and no handler of a signal."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and "numba" in last.tb_frame.f_globals.get("__name__", "")


def serial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that runs on the calling thread, for what is too small to share.

    Where Numba's cache cannot be written, or has a damaged file, it is compiled without.
    """
    try:
        kernel = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # there is no folder to write to
        kernel = numba.njit(**OPTIONS)(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal kernel
        try:
            return kernel(*arguments)
        except Exception as error:
            if isinstance(error, MemoryError) or not _is_numbas(error):
                raise
            log.info("the loop %s is compiled without Numba's cache: %s", function.__name__, error)
            kernel = numba.njit(**OPTIONS)(function)
            return kernel(*arguments)

    return call


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _state["forked"] = _state["started"]
    if hasattr(layers, "_nop"):  # the lock that is shared with the parent
        layers._backend_init_process_lock = layers._nop()
    # A thread that compiles while its process is forked is not there in the child, and would leave
    # the compiler locked for ever.
    for holder in (compiler_lock.global_compiler_lock, getattr(ffi.lib, "_lock", None)):
        lock = getattr(holder, "_lock", None)
        if lock is not None and not lock.acquire(blocking=False):
            holder._lock = threading.RLock()
        elif lock is not None:
            lock.release()


os.register_at_fork(after_in_child=_after_fork)
