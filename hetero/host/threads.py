"""Loops for the CPU, compiled by Numba and shared among its threads.

A kernel is a function with loops that are a `part`. It is `compiled` on its first call with new
types, and Numba's cache keeps it for the next process. Its first argument is the `team` that is to
work. Sums may be reordered so that they vectorise; nothing else is relaxed, so that NaN and
infinity keep their meaning. Parallel sums are reproducible: the bounds of their chunks do not
depend on the number of threads, chunks are added in order, and a part is the same code for one
thread and for several.

Numba starts its threads where it compiles or loads a parallel function. There is one, `_share`;
kernels get its address where several threads are to work, so that small calls start none. The
threads are TBB's where it is there: a loop that is cut into 16 parts for 16 threads waits for the
last of them to begin, and with TBB the others do its part. They do not survive a fork: a forked
child runs the same loops unthreaded. Two threads cannot call Numba's portable ones ("workqueue") at
once: there the main thread alone does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.extending import intrinsic

from hetero.imports import compiling, no_fork

log = logging.getLogger("hetero")
# Sums may be reordered so that they vectorise; nothing else is relaxed.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}
ALONE = 0  # the team of the calling thread
_THREADS = 48  # bits below a team's number of threads: the address of `_share`
_TASKS = 2  # for each thread: where one comes late or never, the others have little more to do
# Elements from which a second thread pays, and that each thread gets at least. Waking takes 10 us
# on 2 cores and 30 to 60 on 16, for a few of these as for all.
_LEAST, _EACH = 1 << 16, 1 << 12
_LARGEST = sys.float_info.max

_word, _byte = ir.IntType(64), ir.IntType(8)
_task = ir.FunctionType(ir.VoidType(), [_word] * 3)  # (data, first, last)
_sharing = ir.FunctionType(ir.VoidType(), [_word] * 4)  # as `_share`


class _Compiling(event.Listener):
    """Holds `imports.compiling` while a thread has the lock of Numba's compiler, or waits for it.

    The event starts before that lock is taken, and ends when it is free. A fork waits for the end:
    the lock would stay taken in the child.
    """

    def on_start(self, event: Any) -> None:
        compiling.acquire()

    def on_end(self, event: Any) -> None:
        with contextlib.suppress(RuntimeError):  # it began before this listened
            compiling.release()


event.register("numba:compiler_lock", _Compiling())


# -- Called by compiled code -----------------------------------------------------------------------


def part(body: Callable[..., None], **options: Any) -> Any:
    """Make ``body(first, last, *arguments)`` a loop's part, which kernels call.

    They call it as ``body(team, count, arguments)``: each thread of the team does some of
    0 ... count, from ``first`` up to ``last``. The bounds depend on the number of threads.
    ``arguments`` is a tuple; no array in it that is written may overlap another one. The body
    begins with `no_overlap()`. ``options`` are Numba's, in place of ours.
    """
    function = numba.njit(**_OPTIONS | options)(body)

    @intrinsic
    def call(typing, team, count, arguments):  # type: ignore
        if not isinstance(arguments, types.BaseTuple):
            return None
        taken = (types.intp, types.intp, *map(types.unliteral, arguments.types))
        function.compile(taken)

        def generate(context, builder, signature, values):  # type: ignore
            made = function.overloads[taken]
            context.add_linking_libs([made.library])
            _call(context, builder, made.fndesc, signature, values)
            return context.get_dummy_value()

        return types.none(types.intp, types.intp, arguments), generate

    return call


exact_part = functools.partial(part, fastmath={"contract"})  # in which no sum is reordered


def _call(context, builder, made, signature, values):  # type: ignore
    """Call a part for 0 ... count: at once, or by tasks that the threads take."""
    team, count, given = values
    # What threads read: whether one failed, and the arguments.
    room = cgutils.alloca_once(builder, ir.LiteralStructType([_byte, given.type]))
    failed = cgutils.gep_inbounds(builder, room, 0, 0)
    builder.store(ir.Constant(_byte, 0), failed)
    builder.store(given, cgutils.gep_inbounds(builder, room, 0, 1))
    task = _task_of(context, builder.module, made, signature.args[2], room.type)
    data = builder.ptrtoint(room, _word)
    with builder.if_else(cgutils.is_null(builder, team)) as (one, many):
        with one:
            builder.call(task, [data, ir.Constant(_word, 0), count])
        with many:
            threads = builder.lshr(team, ir.Constant(_word, _THREADS))
            address = builder.and_(team, ir.Constant(_word, (1 << _THREADS) - 1))
            share = builder.inttoptr(address, _sharing.as_pointer())
            builder.call(share, [threads, count, builder.ptrtoint(task, _word), data])
    with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, builder.load(failed))):
        context.call_conv.return_user_exc(builder, MemoryError, ("no room for a part of a loop",))


def _task_of(context, module, made, arguments, room):  # type: ignore
    """A function that does a part's work from one number up to another."""
    function = ir.Function(module, _task, f"{made.mangled_name}.task")
    function.linkage = "internal"
    function.attributes.add("noinline")  # the same code for one thread and for several
    builder = ir.IRBuilder(function.append_basic_block())
    data, first, last = function.args
    room = builder.inttoptr(data, room)
    given = builder.load(cgutils.gep_inbounds(builder, room, 0, 1))
    given = _borrowed(context, builder, arguments, given)
    values = [first, last, *cgutils.unpack_tuple(builder, given)]
    signature = types.none(*made.argtypes)
    status, _ = context.call_internal_no_propagate(builder, made, signature, values)
    with builder.if_then(status.is_error):
        builder.store(ir.Constant(_byte, 1), cgutils.gep_inbounds(builder, room, 0, 0))
    builder.ret_void()
    return function


def _borrowed(context, builder, kind, value):  # type: ignore
    """Arrays without their owners: threads would take turns to count references to them."""
    if isinstance(kind, types.BaseTuple):
        for k, each in enumerate(kind.types):
            one = _borrowed(context, builder, each, builder.extract_value(value, k))
            value = builder.insert_value(value, one, k)
    if not isinstance(kind, types.Array):
        return value
    array = context.make_array(kind)(context, builder, value)
    array.meminfo = cgutils.get_null_value(array.meminfo.type)
    array.parent = cgutils.get_null_value(array.parent.type)
    return array._getvalue()


@intrinsic
def no_overlap(typing):  # type: ignore
    """Say of the calling function's arrays that they do not overlap: `numba.njit` cannot."""

    def generate(context, builder, signature, values):  # type: ignore
        for given in builder.function.args:
            if isinstance(given.type, ir.PointerType):
                given.add_attribute("noalias")
        return context.get_dummy_value()

    return types.none(), generate


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


# -- Numba's threads -------------------------------------------------------------------------------

_TBB = "libtbb.so.12"
_NAMES = {"tbb": "TBB", "omp": "OpenMP", "workqueue": "Numba's own"}


@functools.cache
def _has_tbb() -> bool:
    """Load TBB, which Numba prefers, and looks for only where the system's loader does."""
    with contextlib.suppress(OSError):
        return bool(ctypes.CDLL(_TBB))
    with contextlib.suppress(OSError, metadata.PackageNotFoundError):
        for file in metadata.files("tbb") or ():
            if file.name == _TBB:
                return bool(ctypes.CDLL(str(file.locate())))
    return False


_has_tbb()  # before anything here starts Numba's threads


def describe() -> str:
    """The library that runs the loops' threads, or will."""
    try:
        layer = numba.threading_layer()
    except ValueError:
        layer = str(numba.config.THREADING_LAYER).lower()
    if layer == "default":
        layer = "tbb" if _has_tbb() else "omp"
    advice = "" if _has_tbb() else "; 'pip install tbb' brings faster ones"
    return _NAMES.get(layer, layer) + advice


def _share(threads, count, task, data):  # type: ignore
    """Call a task for all of 0 ... count, in pieces that the threads take one after another."""
    pieces = min(threads * _TASKS, count)
    if pieces < 2:
        _do(task, data, 0, count)
        return
    taken = np.empty(1, np.int64)
    taken[0] = 0  # `np.zeros` would be a parallel loop, too
    for _ in numba.prange(threads):
        k = _take(taken)
        while k < pieces:
            _do(task, data, k * count // pieces, (k + 1) * count // pieces)
            k = _take(taken)


@intrinsic
def _do(typing, task, data, first, last):  # type: ignore
    def generate(context, builder, signature, values):  # type: ignore
        builder.call(builder.inttoptr(values[0], _task.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.none(*[types.intp] * 4), generate


@intrinsic
def _take(typing, taken):  # type: ignore
    """The next number, which no other thread gets."""

    def generate(context, builder, signature, values):  # type: ignore
        array = context.make_array(taken)(context, builder, values[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(_word, 1), "monotonic")

    return types.intp(taken), generate


@functools.cache
def start() -> tuple[int, int, bool]:
    """Start Numba's threads; no fork comes meanwhile. The process, the address of `_share`, and
    whether no two threads may call it at once."""
    declare = functools.partial(numba.cfunc, "void(intp, intp, intp, intp)", parallel=True)
    with no_fork:
        try:
            share = declare(cache=True, **_OPTIONS)(_share)
        except Exception as error:
            log.info("threads are started without Numba's cache: %s", error)
            share = declare(**_OPTIONS)(_share)
        return os.getpid(), share.address, numba.threading_layer() == "workqueue"


def team_for(elements: int, least: int = _LEAST) -> int:
    """The threads that pay for a number of elements, as kernels take them.

    One below ``least`` where there are two; the more there are, the longer they take to wake: twice
    as many elements are needed for 8 to 31 threads, three times as many for 32 to 127.
    """
    if elements < least:
        return ALONE
    scale = numba.config.NUMBA_NUM_THREADS.bit_length() // 2
    return team_of(elements // _EACH) if elements >= scale * least else ALONE


def team_of(threads: int) -> int:
    """As many threads, of those there are.

    Waiting for another thread takes milliseconds on busy cores: one is the calling thread.
    """
    if threads < 2:
        return ALONE
    process, address, one_caller = start()
    if process != os.getpid():  # a fork's child has no threads
        return ALONE
    if one_caller and threading.current_thread() is not threading.main_thread():
        return ALONE
    threads = min(threads, numba.get_num_threads())
    return threads << _THREADS | address if threads > 1 else ALONE


def task_count(team: int) -> int:
    """The largest number of tasks that a team cuts a loop into."""
    return max(1, _TASKS * (team >> _THREADS))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, with Numba's cache where that can be written and is not damaged."""
    try:
        kernel = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # there is no folder to write to
        kernel = numba.njit(**_OPTIONS)(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal kernel
        try:
            return kernel(*arguments)
        except Exception as error:
            *_, (last, _) = traceback.walk_tb(error.__traceback__)
            is_numbas = "numba" in last.f_globals.get("__name__", "")  # and no signal handler's
            if isinstance(error, MemoryError) or not is_numbas:
                raise
            log.info("the loop %s is compiled without Numba's cache: %s", function.__name__, error)
            kernel = numba.njit(**_OPTIONS)(function)
            return kernel(*arguments)

    return call


def by_size(least: int = _LEAST) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile ``function(team, vector, ...)`` for the threads that pay for a vector's elements."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel = compiled(function)

        @functools.wraps(function)
        def call(vector: np.ndarray, *arguments: Any) -> Any:
            return kernel(team_for(vector.size, least), vector, *arguments)

        return call

    return decorate
