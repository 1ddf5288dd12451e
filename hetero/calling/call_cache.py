"""The call cache: what makes the second call of a shape cost a look-up.

Every public function has its `Calls`. Its key is what a plan depends on: shapes, strides, dtypes
and locations of the arrays, and the other arguments. All entries are dropped at once when the
profile or the devices change.

Reading an array's CUDA array interface takes longer than a small product. For libraries with an
`Access` the key is read from attributes directly; the rest of a call, down to the packed arguments
of its kernels, is made once. Anything unusual, from another stream to a failing launch, is a
`MISS`, and the call goes the general way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero import locks
from hetero.arrays import Access, Operand, alignment, library_of
from hetero.devices.kinds import traits
from hetero.errors import DeviceError
from hetero.imports import load
from hetero.pricing.settings import Settings, besides, forced
from hetero.pricing.tables import generation, new_table, remember

if TYPE_CHECKING:
    from hetero.pricing.plan import Plan

MISS = object()
log = logging.getLogger("hetero")


_STAYING = Settings(results="device")
_forced = forced.get


def _is_placed() -> bool:
    """Whether a `use` block sets more than ``results``, which calls on device arrays ignore."""
    outer = _forced()
    return outer is not None and outer != _STAYING


def facts(*operands: Operand | None) -> tuple[Any, ...]:
    """What a plan depends on of operands, as `Access.facts` gives it for arrays."""
    return tuple(
        [o and (o.shape, o.strides, o.dtype, o.location, o.readonly, o.kept) for o in operands]
    )


class Calls:
    """The remembered calls of one public function.

    A key is ``(device, rest, facts)``: the device that the caller named, all else that was given,
    and the facts of the arrays. Where a look-up costs as much as the call, it is the facts alone of
    a call that was given nothing else.

    Attributes
    ----------
    host : dict
        Key of a call on NumPy arrays -> the function that runs it.
    plans : dict
        Key of any other call -> its plan.
    find : dict
        Type of device arrays -> ``find(A, B, out, device, rest)``, which gives the result of a
        call, or `MISS`. A function of one array gives it as B too; out may be None; rest is what
        else the caller gave, hashable.
    """

    def __init__(self) -> None:
        self.host = new_table()
        self.plans = new_table()
        self.find: dict[type, Callable[..., Any]] = new_table()
        self._launched: dict[type, dict[Any, _DeviceCall]] = {}
        self._lock = locks.new()

    def plan(self, key: Any, make: Callable[[], Plan | None]) -> Plan | None:
        """The plan under a key; made and remembered where there is none."""
        outer = _forced()
        if outer is not None:
            key = outer.results, besides(), key
        plan = self.plans.get(key)
        if plan is None:
            now = generation()
            plan = make()
            if plan is not None and not plan.kept:
                remember(self.plans, key, plan, now)
        return plan

    def learn(
        self,
        plan: Plan,
        arrays: tuple[Any, Any],
        out: Any,
        operands: tuple[Operand, ...],
        given: tuple[str | None, Any],
        generation: int,
        options: Any = None,
    ) -> None:
        """Remember a call on device arrays that just ran, if it comes down to a launch.

        Parameters
        ----------
        plan : Plan
        arrays, out
            The caller's, as for ``find``.
        operands : tuple of Operand
            Of the arrays, and of ``out`` where there is one.
        given : (device, rest)
            As for ``find``.
        generation : int
            Of the plans, see `generation`, before this one was made.
        options
            What the implementation gets in addition to operands and result.
        """
        devices = load("hetero.devices")
        chosen, problem = plan.chosen, plan.problem
        every = arrays if out is None else (*arrays, out)
        kind = type(arrays[0])
        access = access_to(arrays[0]) if all(type(x) is kind for x in every) else None
        if (
            access is None
            or chosen.implementation.prepare is None
            or not (access.usable is None or all(map(access.usable, every)))
            or any(o.readonly for o in operands[len(arrays) :])
            or any(o.location != chosen.device for o in (*operands, problem.output))
            or not all(operand.is_ordered() for operand in operands)
            or _is_placed()
            or devices.disabled(chosen.device)
        ):
            return
        with self._lock:
            if kind not in self._launched:
                self._launched[kind] = new_table()
        table, device = self._launched[kind], devices.get(chosen.device)
        key = (*given, access.facts(*arrays, out))
        bits = _low_bits(*(o.pointer for o in operands))
        try:
            with device.active():
                # This entry replaces one of another context.
                call, context = table.get(key), device.context_handle()
                if call is None or call.context != context:
                    call = _DeviceCall(device, access, problem.output, operands)
                if call.launches[bits] is None:
                    prepare = chosen.implementation.prepare
                    call.launches[bits] = prepare(device, problem, alignment(bits), options)
        except DeviceError:  # the call itself failed too, and the CPU answered
            return
        remember(table, key, call, generation)
        if kind not in self.find:
            remember(self.find, kind, _finder(kind, access, table), generation)


def _low_bits(*addresses: int) -> int:
    """The lowest bits of the addresses: they decide how wide a kernel's loads may be."""
    bits = 0
    for address in addresses:
        bits |= address & 15
    return bits


_accesses: dict[type, Access] = new_table()


def access_to(array: Any) -> Access | None:
    """How remembered calls use an array; None where its calls go the general way."""
    kind = type(array)
    access = _accesses.get(kind)
    if access is None:
        library = library_of(array)
        try:
            access = library and library.access(kind, _several())
        except (ImportError, AttributeError) as error:  # another version, arranged differently
            log.info("calls on %s arrays go the general way: %s", kind.__module__, error)
            access = None
        if access is not None:
            _accesses[kind] = access
    return access


def _several() -> bool:
    devices = load("hetero.devices")
    kinds = (name.partition(":")[0] for name in devices.available())
    return sum(traits(kind).cuda_libraries for kind in kinds) > 1


def _finder(kind: type, access: Access, table: dict[Any, _DeviceCall]) -> Callable[..., Any]:
    """The function that looks up remembered calls on one type of arrays."""
    facts, usable, ordered = access.facts, access.usable, access.ordered

    def find(A: Any, B: Any, out: Any, device: str | None, rest: Any) -> Any:
        if type(B) is not kind or not ordered():
            return MISS
        if _forced() is not None and _is_placed():
            return MISS
        if usable is not None and not (usable(A) and usable(B)):
            return MISS
        if out is not None and not (type(out) is kind and (usable is None or usable(out))):
            return MISS
        call = table.get((device, rest, facts(A, B, out)))
        return MISS if call is None else call.run(A, B, out)

    return find


class _DeviceCall:
    """A remembered call in one context.

    Attributes
    ----------
    context : int or None
        Handle of the context that the launches were prepared in.
    launches : list
        ``launch(a, b, c)``, or None, by the lowest bits of all addresses.
    run : callable
        ``run(A, B, out)`` gives the result, or `MISS`.
    """

    __slots__ = ("context", "launches", "run")

    def __init__(
        self, device: Any, access: Access, output: Operand, operands: tuple[Operand, ...]
    ) -> None:
        context = self.context = device.context_handle()
        launches: list[Callable[..., None] | None] = [None] * 16
        self.launches = launches
        current = access.context or device.context_handle
        shape, dtype = output.shape, output.dtype
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
                launch = launches[(a | b | c) & 15]
                if launch is None:  # aligned otherwise than before
                    return MISS
                launch(a, b, c)
            except failures:  # the general way reports it, or does better
                return MISS
            return out

        self.run = run
