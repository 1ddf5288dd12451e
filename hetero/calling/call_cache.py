"""Remembered calls on device arrays that come down to a launch.

Reading an array's CUDA array interface takes longer than a small product. For libraries with an
`Access` the key is read from attributes directly; the rest of a call, down to the packed arguments
of its kernels, is made once. Anything unusual, from another stream to a failing launch, is a
`MISS`, and the call goes the general way. Under the type of such arrays lies the function that
looks up their calls. They lie in the call cache, `hetero.tables.bound`.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero import devices, tables
from hetero.arrays import Access, Operand, alignment, library_of
from hetero.errors import DeviceError
from hetero.tables import bound, find, forced

if TYPE_CHECKING:
    from hetero.pricing.plan import Plan

MISS = object()
log = logging.getLogger("hetero")
_forced = forced.get


def learn(
    operation: str,
    plan: Plan,
    arrays: tuple[Any, Any],
    out: Any,
    operands: tuple[Operand, ...],
    given: tuple[str | None, Any],
    generation: int,
    options: Any = None,
) -> None:
    """Remember a call on device arrays that just ran, if it comes down to a launch.

    ``arrays`` and ``out`` are the caller's, a single array twice, and ``operands`` describe them.
    ``given`` are the device that the caller named and what else the call depends on, hashable.
    ``generation`` is `tables.generation` before the plan; ``options`` are the implementation's.
    """
    chosen, problem, kind = plan.chosen, plan.problem, type(arrays[0])
    if chosen.implementation.prepare is None or (access := _access_to(arrays[0])) is None:
        return
    every = arrays if out is None else (*arrays, out)
    if (
        any(type(x) is not kind or (access.usable and not access.usable(x)) for x in every)
        or any(o.readonly for o in operands[len(arrays) :])
        or any(o.location != chosen.device for o in (*operands, problem.output))
        or not all(operand.is_ordered() for operand in operands)
        or _is_placed()
        or devices.disabled(chosen.device)
    ):
        return
    device = devices.get(chosen.device)
    try:
        with device.active():
            run = _launched(device, access, plan, operands, options)
    except DeviceError:  # the call itself failed too, and the CPU answered
        return
    tables.remember(bound, (operation, kind, *given, access.facts(*arrays, out)), run, generation)
    if kind not in bound:
        tables.remember(bound, kind, _finder(kind, access), generation)


def _access_to(array: Any) -> Access | None:
    """How remembered calls use an array; None where its calls go the general way."""
    several = sum(device.is_cuda for device in devices.available().values()) > 1
    library = library_of(array)
    try:
        return library and library.access(type(array), several)
    except (ImportError, AttributeError) as error:  # another version, arranged differently
        log.info("calls on %s arrays go the general way: %s", type(array).__module__, error)
        return None


def _is_placed() -> bool:
    """Whether a `use` block sets what calls on device arrays heed."""
    outer = _forced()
    return outer is not None and (outer.device, outer.method, outer.memory_limit) != (None,) * 3


def _finder(kind: type, access: Access) -> Callable[..., Any]:
    """The function that looks up and runs remembered calls on one type of arrays.

    ``lookup(operation, A, B, out, device, rest)`` gives the result, or `MISS`.
    """
    facts, usable, ordered = access.facts, access.usable, access.ordered

    def lookup(operation: str, A: Any, B: Any, out: Any, device: str | None, rest: Any) -> Any:
        if type(B) is not kind or not ordered():
            return MISS
        if _forced() is not None and _is_placed():
            return MISS
        if usable is not None and not (usable(A) and usable(B)):
            return MISS
        if out is not None and not (type(out) is kind and (usable is None or usable(out))):
            return MISS
        run = find((operation, kind, device, rest, facts(A, B, out)))
        return MISS if run is None else run(A, B, out)

    return lookup


def _launched(
    device: Any, access: Access, plan: Plan, operands: tuple[Operand, ...], options: Any
) -> Callable[[Any, Any, Any], Any]:
    """The function that launches a call in the context that is current: ``run(A, B, out)`` gives
    the result, or `MISS`. A launch is prepared for the lowest bits of all addresses, which decide
    how wide a kernel's loads may be."""
    problem, prepare = plan.problem, plan.chosen.implementation.prepare
    launches: dict[int, Callable[..., None]] = {}

    def prepared(bits: int) -> Callable[..., None]:
        with device.active():
            launch = launches[bits] = prepare(device, problem, alignment(bits), options)
        return launch

    prepared(functools.reduce(operator.or_, [o.pointer & 15 for o in operands]))
    context, current = device.context_handle(), access.context or device.context_handle
    shape, dtype = problem.output.shape, problem.output.dtype
    address, empty = access.address, access.maker(device)
    spans = [operand.span() for operand in operands]
    (a_low, a_high), (b_low, b_high), (c_low, c_high) = (*spans, (0, 0))[:3]
    # Of the driver, by way of PyCUDA or cuBLAS, and of libraries that make the result.
    failures = (DeviceError, MemoryError, RuntimeError, *device.errors)

    def run(A: Any, B: Any, out: Any) -> Any:
        try:
            here = current()
            if here != context:
                if here:
                    return MISS
                with device.active():
                    return run(A, B, out) if current() == context else MISS
            a = address(A)
            b = a if B is A else address(B)
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
            bits = (a | b | c) & 15
            (launches.get(bits) or prepared(bits))(a, b, c)
        except failures:  # the general way reports it, or does better
            return MISS
        return out

    return run
