"""TBB's threads beside threads that spin: each has a core, gets it at once and leaves it at once.

Idle threads of a BLAS spin on their cores for 0.1 s. Where no core is idle, Linux puts a thread
that wakes on the core of the one that woke it, the caller's, or has it wait for the next tick, up
to 4 ms. So TBB's threads have a short slice (`slices`), with which they begin at once; but one that
outlasts a short loop, since whose slice is over loses its core at the next tick. While BLAS's
threads spin (`blas_awake`), they have a core each, none that of the caller: where the system has
moved the caller, the thread that is bound there takes the core that has become free. And they sleep
as soon as a loop is done: else they yield their core for 1 ms, and whoever spins there keeps it
till the next tick. When BLAS's threads sleep, TBB's go where the system puts them, and wait for
loops a while. Nothing is done to BLAS's threads, and shares stay fair.

It is done where hetero started Numba's threads, they are TBB's and as many as there are cores, and
the system has slices. ``HETERO_BIND_LOOPS=0`` leaves them as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

from hetero.host import blas_awake, layer, slices
from hetero.imports import load

__all__ = ["describe", "launch", "run"]

OPTION = "HETERO_BIND_LOOPS"
SLICE = 500_000  # nanoseconds
MARK = SLICE + 19  # by this slice our threads are known
_HOLD = 1e-3  # seconds for which a thread that has begun leaves other tasks to others
_PATIENCE = 0.03  # seconds until all have begun
_SLEEP = {"x86_64": 35, "aarch64": 101}  # the system's call nanosleep
_TASKS = "/proc/self/task"
_threads: list[int] = []  # all of them, where they can be bound
_bound: dict[int, int] = {}  # core -> the thread that is bound there
_free = [-1]  # the core where none is
_usual: list[set[int]] = [set()]  # where they may run else
# Whether hetero started them; a fork has ended them; their process; how often it was looked where.
_state: dict[str, Any] = {"ours": False, "ended": False, "process": 0, "looks": 0}
_told = [""]  # why they are not bound


def launch() -> int:
    """Start Numba's threads, if nobody has, with slices and cores as above; how many they are."""
    numba = load("numba")

    _state.update(ended=False, process=os.getpid())
    obstacle = _obstacle()
    if obstacle is not None:
        _told[0] = obstacle
        return int(numba.get_num_threads())
    _state["ours"], most = True, numba.config.NUMBA_NUM_THREADS
    usual, own = slices.usual(), slices.get()
    try:
        slices.put(MARK)  # who is started has the slice of the one that starts it
        number = int(numba.get_num_threads())
        if numba.threading_layer() == "tbb" and most == len(os.sched_getaffinity(0)):
            _rouse(most - 1)
    finally:
        slices.put(0 if own == usual else own or 0)
    found = _ours()
    _told[0] = _hindrance(len(found), len(os.sched_getaffinity(0)))
    if _told[0]:
        for thread in found:
            slices.put(0, thread)
    else:
        _threads[:] = found
    return number


def run(loop: Callable[..., Any], *arguments: Any) -> Any:
    """Run a loop, whose threads are bound while BLAS's spin, none where the caller runs."""
    if not _threads:
        if _state["ended"]:
            launch()
        return loop(*arguments)
    if not blas_awake.spins():
        if _bound:
            _loosen()
        return loop(*arguments)
    here = _core()
    if not _bound:
        _bind(here)
    elif _is_elsewhere():
        _loosen()
    elif here != _free[0] and here in _bound:
        _swap(here)
    if _state["ended"]:
        launch()
    hasty = _hasty()
    if hasty is None:
        return loop(*arguments)
    begin, end = hasty
    control = layer.CONTROL.held
    try:
        begin(control)
        return loop(*arguments)
    finally:  # an interrupt may come before it has begun, which `end` takes
        end(control)


def is_copy() -> bool:
    """Whether this process is the child of a fork, and has threads of its parent's on the list.

    A fork that Python does not know of calls none of its functions.
    """
    if _state["process"] in (0, os.getpid()):
        return False
    _after_fork_in_child()
    return True


def describe() -> str:
    """Where the loops' threads run, and why the system alone decides on it where it does."""
    obstacle = _told[0] or ("" if _threads else _obstacle())
    if obstacle:
        return f"where the system puts them: {obstacle}"
    return "TBB's with slices of 0.5 ms, and bound to a core each while BLAS's spin"


def _obstacle() -> str | None:
    """Why nothing can be done, as far as that is known before the threads run."""
    numba = load("numba")

    if os.environ.get(OPTION, "").strip() == "0":
        return f"{OPTION} says so"
    if numba.np.ufunc.parallel._is_initialized and not _state["ours"]:
        return "Numba's threads were started before hetero's loops"
    if platform.machine() not in _SLEEP or slices.usual() is None:
        return "the system gives threads no slices"
    return None


def _rouse(number: int) -> None:
    """Have TBB start so many threads: it starts one where a task waits that no other takes."""
    load("numba")  # whole, before its modules
    tbbpool = load("numba.np.ufunc.tbbpool")

    put = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 5)(tbbpool.add_task)
    wait = ctypes.CFUNCTYPE(None)(tbbpool.synchronize)
    call = ctypes.cast(ctypes.PyDLL(None).syscall, ctypes.c_void_p)
    hold = (ctypes.c_long * 2)(0, round(1e9 * _HOLD))  # seconds, nanoseconds
    end = time.perf_counter() + _PATIENCE
    while (missing := number - len(_ours())) > 0 and time.perf_counter() < end:
        for _ in range(missing):
            put(call, _SLEEP[platform.machine()], ctypes.addressof(hold), None, None)
        time.sleep(_HOLD)
    wait()


def _hindrance(found: int, cores: int) -> str:
    """Why threads of ours, found so many, are not bound to so many cores; else nothing."""
    numba = load("numba")

    if numba.threading_layer() != "tbb":
        return "they are not TBB's"
    number = numba.config.NUMBA_NUM_THREADS
    if not found + 1 == number == cores:
        return f"there are {number}, {found} of them begun, for {cores} cores"
    return "" if found else "there is none but the caller's"


def _bind(here: int) -> None:
    """Bind each of them to a core, none to this one."""
    threads = tuple(_threads)  # another caller may forget them meanwhile
    cores = _allowed(threads)
    if not cores:
        return
    free = here if here in cores else min(cores)
    places = sorted(cores - {free})
    if len(places) != len(threads):
        return _forget(f"they may run on {len(cores)} cores by now")
    _free[0], _usual[:] = free, [cores]
    for core, thread in zip(places, threads, strict=True):
        if not _put(thread, {core}):
            return
        _bound[core] = thread


def _allowed(threads: tuple[int, ...]) -> set[int]:
    """The cores where any of them may run, whatever holds for the caller."""
    try:
        return set().union(*(os.sched_getaffinity(thread) for thread in threads))
    except OSError as error:
        _refused(error)
        return set()


def _swap(here: int) -> None:
    """The thread that is bound to this core goes to the one that is free."""
    thread = _bound.pop(here, None)
    if thread is not None and _put(thread, {_free[0]}):  # else another caller was faster
        _bound[_free[0]], _free[0] = thread, here


def _is_elsewhere() -> bool:
    """Whether one of them, another one each time, is no longer where it was bound.

    So who changes the affinity of the whole process is noticed at the next loop, and who changes
    that of some cores' threads after some loops.
    """
    _state["looks"] += 1
    every = tuple(_bound.items())
    core, thread = every[_state["looks"] % len(every)]
    try:
        return os.sched_getaffinity(thread) != {core}
    except OSError as error:
        _refused(error)
        return False


def _loosen() -> None:
    """They may run where they might before, but for those that somebody else has put elsewhere."""
    for core, thread in list(_bound.items()):
        _bound.pop(core, None)
        with contextlib.suppress(OSError):  # the next one that binds them finds out
            if os.sched_getaffinity(thread) == {core}:
                os.sched_setaffinity(thread, _usual[0])


def _put(thread: int, cores: set[int]) -> bool:
    """Let a thread run on these cores alone; where that cannot be, none is bound from now on."""
    try:
        os.sched_setaffinity(thread, cores)
    except OSError as error:
        _loosen()
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, _usual[0])
        _refused(error)
        return False
    return True


def _refused(error: OSError) -> None:
    if isinstance(error, ProcessLookupError):  # a fork that Python does not know of ends them too
        return _after_fork_in_parent()
    _forget(f"the system refused a place: {error.strerror}")


def _forget(reason: str) -> None:
    _told[0] = reason
    _threads.clear()
    _bound.clear()


def _ours() -> list[int]:
    """The threads of this process that have our slice, but for the caller."""
    others = {int(name) for name in os.listdir(_TASKS)} - {threading.get_native_id()}
    return sorted(thread for thread in others if slices.get(thread) == MARK)


@functools.cache
def _hasty() -> tuple[Callable[[object], object], Callable[[object], object]] | None:
    return layer.hasty()


@functools.cache
def _core_of_caller() -> Callable[[], int]:
    return ctypes.PyDLL(None).sched_getcpu


def _core() -> int:
    """The core where the caller runs, -1 where that is not known."""
    return _core_of_caller()()


def _after_fork_in_parent() -> None:
    """Numba has ended its threads; the next loop starts others."""
    if _state["ours"]:
        _forget("")
        _state["ended"] = True


def _after_fork_in_child() -> None:
    _forget("")  # loops run on the calling thread
    _state["ended"] = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
