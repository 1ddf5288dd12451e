"""Parallel loops in compiled code: a loop is cut into parts that the threads of a team compute.

Numba's own parallel loops take three times as long to compile: the body, its wrapper and the
enclosing function are optimised separately, each with all that it calls, and once more for one
thread. Here a part is compiled together with the function that calls it, once, for any number of
threads. The threads are Numba's, through the same entry of its threading layer.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from llvmlite.binding import Linkage
from numba.core import cgutils, compiler, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Flags
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.ufunc import parallel as layers

from hetero.imports import load

__all__ = ["ALONE", "OPTIONS", "TASKS", "helper", "inlined", "is_finite", "part", "team"]

# Sums may be reordered so that they vectorise; nothing else is relaxed.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
    "no_cfunc_wrapper": True,
}
ALONE = 0  # the team of the calling thread
_LARGEST = sys.float_info.max
TASKS = 2  # for each thread: where one comes late or never, the others have little more to do
_THREADS = 48  # bits below the number of threads: an address
_TASKS = 60  # bits below the number of tasks for each
_MODULES = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}

_word, _byte = ir.IntType(64), ir.IntType(8)
_pointer = _byte.as_pointer()
_words = _word.as_pointer()
_task = ir.FunctionType(ir.VoidType(), [_pointer.as_pointer(), _words, _words, _pointer])
_parallel_for = ir.FunctionType(
    ir.VoidType(),
    [_pointer, _pointer.as_pointer(), _words, _words, _pointer, _word, _word, ir.IntType(32)],
)


def thread_count() -> int:
    """The threads that Numba would use now; the first call starts them.

    Later ones do not ask `numba.get_num_threads`, which takes a lock that forked processes share:
    a process that is killed or interrupted while holding it blocks all others for ever.
    """
    _start()
    return int(layers._get_num_threads())


@functools.cache
def _start() -> None:
    numba.get_num_threads()


def team() -> int:
    """The threads that Numba would use now: their number and the function that starts tasks."""
    threads = thread_count()
    if threads == 1:
        return ALONE
    return TASKS << _TASKS | threads << _THREADS | _address(numba.threading_layer())


@functools.cache
def _address(layer: str) -> int:
    """The function of a threading layer that calls a task for all parts."""
    return load(f"numba.np.ufunc.{_MODULES[layer]}").parallel_for


def part(body: Callable[..., None]) -> Any:
    """Make ``body(first, last, *arguments)`` a loop's part, which compiled functions call.

    They call it as ``body(team, count, arguments)``: the team's threads do tasks, and each of these
    is some of 0 ... count, from ``first`` up to ``last``. The bounds depend on the number of
    threads. ``arguments`` is a tuple; no array in it that is written may overlap another one.
    """

    @intrinsic
    def call(typing, team, count, arguments):  # type: ignore
        if not isinstance(arguments, types.BaseTuple):
            return None
        taken = (types.intp, types.intp, *arguments.types)

        def generate(context, builder, signature, values):  # type: ignore
            made = _compiled(typing, body, taken, types.none, noalias=True)
            _link(context, made)
            _share(context, builder, made.fndesc, arguments, values)
            return context.get_dummy_value()

        return types.none(types.intp, types.intp, arguments), generate

    return call


def inlined(body: Callable[..., Any]) -> Any:
    """Make ``body`` a function that is inlined into the compiled functions that call it.

    It takes longer to compile than a `helper`, but constants of the caller are propagated into it.
    """
    return numba.njit(inline="always", **OPTIONS)(body)


def _share(context, builder, made, arguments, values):  # type: ignore
    """Call a compiled part for 0 ... count: at once, or by tasks that the threads take."""
    team, count, given = values
    record = _record(context, arguments)
    room = cgutils.alloca_once(builder, record)
    failed = cgutils.gep_inbounds(builder, room, 0, 0)
    builder.store(ir.Constant(_byte, 0), failed)
    builder.store(count, cgutils.gep_inbounds(builder, room, 0, 1))
    builder.store(given, cgutils.gep_inbounds(builder, room, 0, 3))
    threads = builder.lshr(team, ir.Constant(_word, _THREADS))
    threads = builder.and_(threads, ir.Constant(_word, (1 << (_TASKS - _THREADS)) - 1))
    tasks = builder.mul(threads, builder.lshr(team, ir.Constant(_word, _TASKS)))
    most = builder.select(builder.icmp_signed("<", tasks, count), tasks, count)
    builder.store(most, cgutils.gep_inbounds(builder, room, 0, 2))
    data = builder.bitcast(room, _pointer)
    task = _task_of(context, builder.module, made, arguments, record)
    numbers = [cgutils.alloca_once(builder, t) for t in (_pointer, _word, _word)]
    first, length, step = numbers
    builder.store(ir.Constant(_pointer, None), first)
    builder.store(ir.Constant(_word, 1), step)
    with builder.if_else(builder.icmp_signed(">", most, ir.Constant(_word, 1))) as (many, one):
        with many:
            builder.store(most, length)
            address = builder.and_(team, ir.Constant(_word, (1 << _THREADS) - 1))
            layer = builder.inttoptr(address, _parallel_for.as_pointer())
            whole = builder.bitcast(task, _pointer)
            some = [ir.Constant(_word, 0), ir.Constant(_word, 1)]
            used = builder.trunc(threads, ir.IntType(32))
            builder.call(layer, [whole, first, length, step, data, *some, used])
        with one:
            builder.store(ir.Constant(_word, 1), length)
            builder.store(ir.Constant(_word, 1), cgutils.gep_inbounds(builder, room, 0, 2))
            builder.call(task, [first, length, step, data])
    with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, builder.load(failed))):
        context.call_conv.return_user_exc(builder, MemoryError, ("no room for a part of a loop",))


def _record(context, arguments):  # type: ignore
    """The record that threads read: error flag, count, number of tasks, and the arguments."""
    return ir.LiteralStructType([_byte, _word, _word, context.get_value_type(arguments)])


def _task_of(context, module, made, arguments, record):  # type: ignore
    """A function that does some tasks one after another, as the threading layer calls it."""
    function = ir.Function(module, _task, f"{made.mangled_name}.task")
    function.linkage = "internal"
    function.attributes.add("noinline")  # it is called twice: do not duplicate its code
    builder = ir.IRBuilder(function.append_basic_block())
    begin, length, _, data = function.args
    room = builder.bitcast(data, record.as_pointer())
    count, tasks = (builder.load(cgutils.gep_inbounds(builder, room, 0, k)) for k in (1, 2))
    start = builder.ptrtoint(builder.load(begin), _word)
    end = builder.add(start, builder.load(length))
    bounds = [builder.sdiv(builder.mul(at, count), tasks) for at in (start, end)]
    given = builder.load(cgutils.gep_inbounds(builder, room, 0, 3))
    given = _borrowed(context, builder, arguments, given)
    values = [builder.extract_value(given, k) for k in range(len(arguments.types))]
    taken = (types.intp, types.intp, *arguments.types)
    status, _ = context.call_internal_no_propagate(
        builder, made, types.none(*taken), [*bounds, *values]
    )
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


def helper(body: Callable[..., Any]) -> Any:
    """Make ``body`` a function that compiled functions call, and is compiled with each of them."""
    known: dict[Any, Any] = {}

    def made(typing, taken):  # type: ignore
        if taken not in known:
            known[taken] = _compiled(typing, body, taken, None)
        compiled = known[taken]

        def generate(context, builder, signature, values):  # type: ignore
            _link(context, compiled)
            return context.call_internal(builder, compiled.fndesc, signature, values)

        return compiled.signature, generate

    names = ", ".join(inspect.signature(body).parameters)
    space: dict[str, Any] = {"made": made}
    exec(f"def {body.__name__}(typing, {names}): return made(typing, ({names},))", space)
    return intrinsic(space[body.__name__])


@helper
def is_finite(value):  # type: ignore
    """Whether a number is neither infinite nor NaN.

    `math.isfinite` tests ``x - x``, which reassociation optimises to 0.
    """
    return abs(value) <= _LARGEST


class _Unfinished(JITCodeLibrary):
    """Code that is optimised and compiled to machine code once it is linked into its caller."""

    def _ensure_finalized(self) -> None: ...

    def _get_module_for_linking(self) -> Any:
        return self._final_module


def _compiled(typing, body, taken, result, noalias=False):  # type: ignore
    """LLVM code of a function, in a library that is not finalized."""
    flags = Flags()
    cpu_target.options.parse_as_flags(flags, dict(OPTIONS))
    flags.no_compile = flags.no_cpython_wrapper = True
    flags.noalias = noalias
    context = cpu_target.target_context
    library = _Unfinished(context.codegen(), body.__qualname__)
    made = compiler.compile_internal(typing, context, library, body, taken, result, flags, {})
    for function in library._final_module.functions:
        if not function.is_declaration and function.linkage == Linkage.external:
            function.linkage = "linkonce_odr"
    return made


def _link(context, made):  # type: ignore
    """Link a function, and what it calls, into the library that is being compiled."""
    for library in (made.library, *made.library._linking_libraries):
        context.active_code_library.add_linking_library(library)
