"""Loops for the CPU, compiled by Numba and shared among its threads.

A kernel is a plain function with loops over `numba.prange`, decorated with `threaded`. It is
compiled for several threads and for one, each on its first call with new types, and Numba's cache
keeps both for the next process. What is computed is in functions that are a `helper`: they are
compiled once, so that both ways give the same result to the last bit. Sums may be reordered so that
they vectorise; nothing else is relaxed, so that NaN and infinity keep their meaning. Parallel sums
are reproducible: the bounds of their chunks do not depend on the number of threads, and chunks are
added in order.

The threads are TBB's where it is there (`layer`). Numba's other threads (GNU OpenMP) do not survive
a fork: using them in the child ends the process. A forked child therefore runs the same loops
unthreaded, whichever they are. Its portable threads ("workqueue") cannot be used by two threads at
once, so there calls take turns.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numba
from llvmlite.binding import ffi
from numba.core import compiler_lock
from numba.np.ufunc import parallel as layers

from hetero.host import threading_layer

__all__ = [
    "capped",
    "compile_ahead",
    "helper",
    "inlined",
    "is_finite",
    "serial",
    "shared",
    "thread_count",
    "threaded",
]

# Sums may be reordered so that they vectorise; nothing else is relaxed.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}
_SHARE = 1 << 14  # elements per thread; with fewer, waking it costs more than it saves
_LARGEST = sys.float_info.max

log = logging.getLogger("hetero")
_lock = threading.RLock()
_state = {"started": False, "forked": False, "turns": None, "process": 0}
_state["ahead"] = False  # whether a call compiles the loop for one thread and for several
threading_layer.prepare()  # before anything here starts Numba's threads


def helper(function: Callable[..., Any]) -> Any:
    """Make it a function that kernels call."""
    return numba.njit(**_OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Make it a function that is inlined into the kernels that call it.

    It takes longer to compile than a `helper`. Where it is given arrays, a loop on the calling
    thread counts references to them for each call.
    """
    return numba.njit(inline="always", **_OPTIONS)(function)


@helper
def is_finite(value):  # type: ignore
    """Whether a number is neither infinite nor NaN.

    `math.isfinite` tests ``x - x``, which reassociation optimises to 0.
    """
    return abs(value) <= _LARGEST


def threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function``, whose `numba.prange` loops all threads share.

    Its attribute ``alone`` does the same on the calling thread, as do calls with one thread: there
    another one would do the work while the caller waits, on busy cores for milliseconds.
    """
    ways = _compiled(function, parallel=True), serial(function)

    def prepared(way: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if _state["ahead"]:
                for each in ways:
                    each.compile(*arguments)  # type: ignore[attr-defined]
            return way(*arguments)

        return call

    kernel, alone = map(prepared, ways)

    def together(*arguments: Any) -> Any:
        # A child of a fork that Python does not know of has no threads.
        if thread_count() == 1 or _state["process"] != os.getpid():
            return alone(*arguments)
        return kernel(*arguments)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if _state["forked"]:
            return alone(*arguments)
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

    call.alone = alone  # type: ignore[attr-defined]
    return call


def compile_ahead() -> None:
    """From now on, compile the loops that are called in both ways."""
    thread_count()  # compiling for threads starts them
    _state["ahead"] = True


def thread_count() -> int:
    """How many threads loops run on at most, by the caller's choice; the first call starts them.

    Later ones do not ask `numba.get_num_threads`, which takes a lock that forked processes share:
    a process that is killed or interrupted while holding it blocks all others for ever.
    """
    if _state["forked"]:
        return 1  # nothing is asked of Numba's threads, which may have been half started
    if not _state["started"]:
        with _lock:
            _state.update(started=True, process=os.getpid())  # before the threads start
    _start()
    return int(layers._get_num_threads())


@functools.cache
def _start() -> None:
    numba.get_num_threads()


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
    """Compile a function that runs on the calling thread, for what is too small to share."""
    alone = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    alone.__qualname__ = f"{function.__qualname__}.alone"  # Numba's cache tells them apart by that
    return _compiled(alone)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function, with Numba's cache where that can be written and is not damaged."""
    options |= _OPTIONS
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to write to
        kernel = numba.njit(**options)(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal kernel
        try:
            return kernel(*arguments)
        except Exception as error:
            if isinstance(error, MemoryError) or not _is_numbas(error):
                raise
            log.info("the loop %s is compiled without Numba's cache: %s", function.__name__, error)
            kernel = numba.njit(**options)(function)
            return kernel(*arguments)

    call.compile = lambda *arguments: kernel.compile(tuple(map(numba.typeof, arguments)))  # type: ignore
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
