"""Remembered calls on device arrays: from the arrays to the launch, and little between.

What a general call asks of arrays by their CUDA array interface takes longer than a small product.
Arrays of the libraries known here tell shape, strides, dtype and address directly; the rest of a
call, down to the packed arguments of its kernels, is made once. Whatever is unusual, from another
stream to a failing launch, is a `MISS`, and the general way deals with it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from hetero import locks
from hetero.arrays import Operand, alignment
from hetero.errors import DeviceError
from hetero.runtime import planner

MISS = object()
_forced = planner.forced.get
log = logging.getLogger("hetero")

Launch = Callable[[int, int, int], None]


@cache
def _context_getter() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent


def current_context() -> int | None:
    """Handle of the context that is current in this thread."""
    handle = ctypes.c_void_p()
    _context_getter()(ctypes.byref(handle))
    return handle.value


class Library(NamedTuple):
    """How to deal with one library's arrays.

    Attributes
    ----------
    facts : callable
        ``facts(A, B, out)``: what a plan depends on, hashable; out may be None.
    address : callable
        Of an array, a number.
    usable : callable or None
        Whether an array may go this way; None: every one may.
    maker : callable
        ``maker(device)(shape, dtype, like)`` gives a new array beside ``like``.
    ready : callable
        Whether the library's current stream is ordered by the legacy default stream.
    context : callable
        Handle of the context that is current in this thread, None or 0 if there is none.
    """

    facts: Callable[[Any, Any, Any], tuple[Any, ...]]
    address: Callable[[Any], int]
    usable: Callable[[Any], bool] | None
    maker: Callable[[Any], Callable[[tuple[int, ...], Any, Any], Any]]
    ready: Callable[[], bool]
    context: Callable[[], int | None]


def _several() -> bool:
    from hetero import devices

    return sum(name.startswith("cuda") for name in devices.available()) > 1


def _facts(A: Any, B: Any, out: Any) -> tuple[Any, ...]:
    """Of arrays that tell these as NumPy's do, where there is one device."""
    if out is None:
        return A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype
    return (
        *(A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype),
        *(out.shape, out.strides, out.dtype),
    )


def _each(facts: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any, Any], tuple[Any, ...]]:
    """The facts of all arrays from those of one."""
    return lambda A, B, out: (facts(A), facts(B), out is not None and facts(out))


def _cupy() -> Library:
    import cupy

    empty, current = cupy.empty, cupy.cuda.get_current_stream

    def facts(array: Any) -> tuple[Any, ...]:
        return array.shape, array.strides, array.dtype, array.data.device_id

    return Library(
        _each(facts) if _several() else _facts,
        lambda array: array.data.ptr,
        None,
        lambda device: lambda shape, dtype, like: empty(shape, dtype),
        lambda: current().ptr <= 2,
        getattr(cupy.cuda.driver, "ctxGetCurrent", current_context),
    )


def _pycuda() -> Library:
    from pycuda import gpuarray

    make, several = gpuarray.GPUArray, _several()

    def facts(array: Any) -> tuple[Any, ...]:
        return array.shape, array.strides, array.dtype, array.gpudata.ordinal

    def usable(array: Any) -> bool:  # not every pointer of PyCUDA tells its device
        return array.gpudata is not None and hasattr(array.gpudata, "ordinal")

    def maker(device: Any) -> Any:
        allocate = device.state().pool.allocate
        return lambda shape, dtype, like: make(shape, dtype, allocator=allocate)

    return Library(
        _each(facts) if several else _facts,
        lambda array: int(array.gpudata),
        usable if several else None,
        maker,
        lambda: True,
        current_context,
    )


def _torch() -> Library:
    import torch

    stream, ordinal = torch._C._cuda_getCurrentRawStream, torch.cuda.current_device
    strided = torch.strided
    return Library(
        _each(lambda array: (array.shape, array.stride(), array.dtype, array.get_device())),
        lambda array: array.data_ptr(),
        lambda array: (
            array.is_cuda
            and array.layout is strided
            and not (array.requires_grad or array.is_neg())
        ),
        lambda device: lambda shape, dtype, like: like.new_empty(shape),
        lambda: not stream(ordinal()),
        current_context,
    )


_KNOWN = {
    ("cupy", "ndarray"): _cupy,
    ("pycuda", "GPUArray"): _pycuda,
    ("torch", "Tensor"): _torch,
}
libraries: dict[type, Library] = {}


def learn_library(kind: type) -> Library | None:
    """What is known of a type of arrays; None where they go the general way."""
    found = libraries.get(kind)
    if found is None:
        make = _KNOWN.get((kind.__module__.partition(".")[0], kind.__name__))
        try:
            found = make and make()
        except (ImportError, AttributeError) as error:  # another version, arranged differently
            log.info("calls on %s arrays go the general way: %s", kind.__module__, error)
            found = None
        if found is not None:
            libraries[kind] = found
    return found


class Remembered:
    """Tables of remembered calls.

    Attributes
    ----------
    find : dict
        Type of arrays -> function that gives a call's result, or `MISS`.
    """

    def __init__(self) -> None:
        self.find: dict[type, Callable[..., Any]] = {}
        self._entries: dict[type, dict[Any, Callable[..., Any]]] = {}
        self._lock = locks.new()

    def _keep(
        self,
        kind: type,
        finder: Callable[[dict[Any, Any]], Callable[..., Any]],
        key: Any,
        bits: int,
        device: Any,
        prepare: Callable[[], Any],
        entry: Callable[[dict[int, Any]], Callable[..., Any]],
        generation: int,
    ) -> None:
        """Remember a call for addresses with these lowest bits, in the current context.

        ``finder`` makes a type's function of its table, ``prepare`` what is launched, ``entry`` the
        remembered call of all that was prepared for it, by bits.
        """
        with self._lock:
            if kind not in self.find:
                self._entries[kind] = planner.shortcut_table()
                self.find[kind] = finder(self._entries[kind])
        table = self._entries[kind]
        try:
            with device.active():
                # An entry of another context stays nobody's: this one takes its place.
                here, known = current_context(), table.get(key)
                launches = known.of.get(here, {}) if known else {}
                if bits in launches:
                    return
                launches = {**launches, bits: prepare()}
                made = entry(launches)
                made.of = {here: launches}  # type: ignore[attr-defined]
        except DeviceError:  # the call itself failed too, and the CPU answered
            return
        planner.remember(table, key, made, generation)


class Express(Remembered):
    """The remembered calls of one product, ``find[type(A)](A, B, out, device, method)``.

    All arrays of a call are of one library.
    """

    def learn(
        self,
        plan: planner.Plan,
        arrays: tuple[Any, Any],
        out: Any,
        operands: tuple[Operand, ...],
        placement: tuple[str | None, str | None],
        generation: int,
    ) -> None:
        """Remember a call that just ran the general way, if it can be done this way.

        Parameters
        ----------
        plan : Plan
        arrays, out
            The caller's.
        operands : tuple of Operand
            Of the arrays, and of ``out`` where there is one.
        placement : (device, method)
            As the caller gave them.
        generation : int
            Of the plans, see `planner.generation`.
        """
        from hetero import devices
        from hetero.runtime.transfer import needs_synchronizing

        chosen, problem = plan.chosen, plan.problem
        given = arrays if out is None else (*arrays, out)
        kind = type(arrays[0])
        library = learn_library(kind) if all(type(x) is kind for x in given) else None
        if (
            library is None
            or chosen.implementation.prepare is None
            or not (library.usable is None or all(map(library.usable, given)))
            or any(o.readonly for o in operands[2:])
            or any(o.location != chosen.device for o in (*operands, problem.output))
            or any(map(needs_synchronizing, operands))
            or _forced() is not None
            or devices.disabled(chosen.device)
        ):
            return
        bits = 0
        for operand in operands:
            bits |= operand.pointer & 15
        device = devices.get(chosen.device)
        self._keep(
            kind,
            partial(_finder, library),
            (*placement, library.facts(*arrays, out)),
            bits,
            device,
            lambda: chosen.implementation.prepare(device, problem, alignment(bits)),
            lambda launches: _entry(device, library, launches, problem.output, operands),
            generation,
        )


def _finder(library: Library, entries: dict[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """How the remembered calls of one library's arrays are found."""
    facts, usable, ready = library.facts, library.usable, library.ready

    def find(A: Any, B: Any, out: Any, device: str | None, method: str | None) -> Any:
        kind = type(A)
        if type(B) is not kind or _forced() is not None or not ready():
            return MISS
        if usable is not None and not (usable(A) and usable(B)):
            return MISS
        if out is not None and not (type(out) is kind and (usable is None or usable(out))):
            return MISS
        run = entries.get((device, method, facts(A, B, out)))
        return MISS if run is None else run(A, B, out)

    return find


def _entry(
    device: Any,
    library: Library,
    launches: dict[int, Launch],
    output: Operand,
    operands: tuple[Operand, ...],
) -> Callable[..., Any]:
    """A remembered call, ``run(A, B, out)``; ``launches`` by the lowest bits of all addresses."""
    context, current = current_context(), library.context
    shape, dtype = output.shape, output.dtype
    address, empty = library.address, library.maker(device)
    (a_low, a_high), (b_low, b_high), *rest = (operand.span() for operand in operands)
    c_low, c_high = rest[0] if rest else (0, 0)

    def run(A: Any, B: Any, out: Any) -> Any:
        try:
            here = current()
            if here != context:
                if here:
                    return MISS
                with device.active():
                    return run(A, B, out) if current() == context else MISS
            a, b = address(A), address(B)
            if out is None:
                out = empty(shape, dtype, A)
                c = address(out)
            else:
                c = address(out)
                low, high = c + c_low, c + c_high
                if (low < a + a_high and a + a_low < high) or (
                    low < b + b_high and b + b_low < high
                ):
                    return MISS
            launches[(a | b | c) & 15](a, b, c)
        except Exception:  # the general way reports it, or does better
            return MISS
        return out

    return run
