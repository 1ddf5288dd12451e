"""Remembered calls on device arrays: from the arrays to the launch, and little between.

What a general call asks of arrays by their CUDA array interface takes longer than a small product.
Arrays of the libraries known here tell shape, strides, dtype and address directly; the rest of a
call, down to the packed arguments of its kernels, is made once. Whatever is unusual, from another
stream to a failing launch, is a `MISS`, and the general way deals with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from hetero import locks
from hetero.arrays import Access, Operand, alignment, library_of
from hetero.errors import DeviceError
from hetero.runtime import planner

MISS = object()
_forced = planner.forced.get
log = logging.getLogger("hetero")

Launch = Callable[[int, int, int], None]


def _several() -> bool:
    from hetero import devices

    return sum(name.startswith("cuda") for name in devices.available()) > 1


accesses: dict[type, Access] = {}


def access_to(array: Any) -> Access | None:
    """How remembered calls use an array; None where its calls go the general way."""
    kind = type(array)
    found = accesses.get(kind)
    if found is None:
        library = library_of(array)
        try:
            found = library and library.access(kind, _several())
        except (ImportError, AttributeError) as error:  # another version, arranged differently
            log.info("calls on %s arrays go the general way: %s", kind.__module__, error)
            found = None
        if found is not None:
            accesses[kind] = found
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
                here, known = device.context_handle(), table.get(key)
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
        access = access_to(arrays[0]) if all(type(x) is kind for x in given) else None
        if (
            access is None
            or chosen.implementation.prepare is None
            or not (access.usable is None or all(map(access.usable, given)))
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
            partial(_finder, access),
            (*placement, access.facts(*given)),
            bits,
            device,
            lambda: chosen.implementation.prepare(device, problem, alignment(bits)),
            lambda launches: _entry(device, access, launches, problem.output, operands),
            generation,
        )


def _finder(access: Access, entries: dict[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """How the remembered calls of one library's arrays are found."""
    facts, usable, ordered = access.facts, access.usable, access.ordered

    def find(A: Any, B: Any, out: Any, device: str | None, method: str | None) -> Any:
        kind = type(A)
        if type(B) is not kind or _forced() is not None or not ordered():
            return MISS
        if usable is not None and not (usable(A) and usable(B)):
            return MISS
        if out is not None and not (type(out) is kind and (usable is None or usable(out))):
            return MISS
        known = facts(A, B) if out is None else facts(A, B, out)
        run = entries.get((device, method, known))
        return MISS if run is None else run(A, B, out)

    return find


def _entry(
    device: Any,
    access: Access,
    launches: dict[int, Launch],
    output: Operand,
    operands: tuple[Operand, ...],
) -> Callable[..., Any]:
    """A remembered call, ``run(A, B, out)``; ``launches`` by the lowest bits of all addresses."""
    context, current = device.context_handle(), access.context or device.context_handle
    shape, dtype = output.shape, output.dtype
    address, empty = access.address, access.maker(device)
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
