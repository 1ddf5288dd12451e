"""Loops for the CPU, compiled by Numba and shared among its threads.

A kernel is a plain function with loops that are a `part`, decorated with `threaded`. It is compiled
on its first call with new types, and Numba's cache keeps it for the next process. Sums may be
reordered so that they vectorise; nothing else is relaxed, so that NaN and infinity keep their
meaning. Parallel sums are reproducible: the bounds of their chunks do not depend on the number of
threads, chunks are added in order, and a part is the same code for one thread and for several.

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
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import ffi
from numba.core import compiler_lock, types
from numba.extending import intrinsic
from numba.np.ufunc import parallel as layers

from hetero.host import threading_layer
from hetero.imports import no_fork

__all__ = [
    "capped",
    "helper",
    "inlined",
    "is_finite",
    "part",
    "serial",
    "shared",
    "standalone",
    "thread_count",
    "threaded",
]

log = logging.getLogger("hetero")
# Sums may be reordered so that they vectorise; nothing else is relaxed.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
    "no_cfunc_wrapper": True,
}
_ALONE = 1  # the team of the calling thread
_SHARE = 1 << 14  # elements per thread; with fewer, waking it costs more than it saves
_LARGEST = sys.float_info.max
_lock = threading.RLock()
_state = {"started": False, "forked": False, "turns": None, "process": 0}
threading_layer.prepare()  # before anything here starts Numba's threads


def part(body: Callable[..., None]) -> Any:
    """Make ``body(first, last, *arguments)`` a loop's part, which kernels call.

    They call it as ``body(team, count, arguments)``: each thread of the team does some of
    0 ... count, from ``first`` up to ``last``. The bounds depend on the number of threads.
    ``arguments`` is a tuple of arrays and numbers; no array in it that is written may overlap
    another one. The body begins with `standalone()`.
    """
    compiled = helper(body)

    @inlined
    def share(team, count, arguments):  # type: ignore
        tasks, given = min(team, count), _borrowed(arguments)
        if tasks < 2:
            compiled(0, count, *given)
        else:
            for k in numba.prange(tasks):
                task = np.int64(k)
                compiled(task * count // tasks, (task + 1) * count // tasks, *given)

    return share


@intrinsic
def standalone(typing):  # type: ignore
    """Say of the calling function that its arrays do not overlap, and that it is not inlined.

    Code that is inlined is optimised anew in each place, and sums in another order.
    """

    def generate(context, builder, signature, values):  # type: ignore
        builder.function.attributes.add("noinline")
        for given in builder.function.args:
            if isinstance(given.type, ir.PointerType):
                given.add_attribute("noalias")
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def _borrowed(typing, given):  # type: ignore
    """Arrays without their owners, as several threads get them: no references are counted."""

    def generate(context, builder, signature, values):  # type: ignore
        made = values[0]
        for k, kind in enumerate(given.types):
            if isinstance(kind, types.Array):
                value = builder.extract_value(made, k)
                array = context.make_array(kind)(context, builder, value)
                array.meminfo = ir.Constant(array.meminfo.type, None)
                array.parent = ir.Constant(array.parent.type, None)
                made = builder.insert_value(made, array._getvalue(), k)
        return made

    return given(given), generate


def helper(body: Callable[..., Any]) -> Any:
    """Make it a function that kernels and parts call."""
    return numba.njit(**_OPTIONS)(body)


def inlined(body: Callable[..., Any]) -> Any:
    """Make it a function that is inlined into the compiled functions that call it.

    It takes longer to compile than a `helper`, but constants of the caller are propagated into it.
    """
    return numba.njit(inline="always", **_OPTIONS)(body)


@helper
def is_finite(value):  # type: ignore
    """Whether a number is neither infinite nor NaN.

    `math.isfinite` tests ``x - x``, which reassociation optimises to 0.
    """
    return abs(value) <= _LARGEST


def threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function(team, *arguments)``; it is called without the team, on all threads.

    Its attribute ``alone`` does the same on the calling thread.
    """
    kernel = _compiled(function, parallel=True)
    alone = functools.partial(kernel, _ALONE)

    def together(*arguments: Any) -> Any:
        # A child of a fork that Python does not know of has no threads.
        team = thread_count() if _state["process"] == os.getpid() else _ALONE
        return kernel(team, *arguments)

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
    with no_fork():
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
    return _compiled(function)


def _compiled(function: Callable[..., Any], parallel: bool = False) -> Callable[..., Any]:
    """Compile a function, with Numba's cache where that can be written and is not damaged."""
    options = {"parallel": parallel, **_OPTIONS}
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to write to
        kernel = numba.njit(**options)(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal kernel
        if parallel and not _state["started"]:
            thread_count()  # Numba starts threads where it loads code for them
        try:
            return kernel(*arguments)
        except Exception as error:
            if isinstance(error, MemoryError) or not _is_numbas(error):
                raise
            log.info("the loop %s is compiled without Numba's cache: %s", function.__name__, error)
            kernel = numba.njit(**options)(function)
            return kernel(*arguments)

    return call


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _state["forked"] = _state["started"]
    if hasattr(layers, "_nop"):  # the lock that is shared with the parent
        layers._backend_init_process_lock = layers._nop()
        layers._backend_init_thread_lock = threading.RLock()
    # A thread that compiles while its process is forked is not there in the child, and would leave
    # the compiler locked for ever.
    for holder in (compiler_lock.global_compiler_lock, getattr(ffi.lib, "_lock", None)):
        lock = getattr(holder, "_lock", None)
        if lock is not None and not lock.acquire(blocking=False):
            holder._lock = threading.RLock()
        elif lock is not None:
            lock.release()


os.register_at_fork(after_in_child=_after_fork)
