"""Implementations of operations: what there is, on which kind of device, under which name.

An implementation is one way to do an operation on one kind of device. The operations' modules
register theirs when they are imported; planner, calibration and tests walk the same list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero.runtime.models import Work
    from hetero.runtime.problem import Problem


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to do an operation on one kind of device.

    Attributes
    ----------
    operation, method, kind : str
        ``kind`` is the kind of device: "cpu", "cuda" or "opencl".
    excludes : callable
        ``excludes(problem, info)`` gives the reason why this implementation cannot do the problem
        on the device that the dict ``info`` describes, or None where it can.
    work : callable
        ``work(problem, info)`` counts the `Work`.
    run : callable or None
        ``run(device, problem, inputs, output)``: operands on the device in, result written to
        ``output``, which the caller allocated there. None: can be priced, cannot be run yet.
        Solves have another one, ``run(devices, problem, request)``: see
        `hetero.ops.linear_systems.solving`.
    shared : callable or None
        ``shared(problem)`` tells whether several devices of the kind can do the problem together.
    prepare : callable or None
        ``prepare(device, problem, alignment)`` gives what ``run`` comes down to for operands at
        addresses that ``alignment`` divides, as ``launch(a, b, c)``, in the current context.
    falls_short : callable or None
        ``falls_short(problem)`` gives the reason why the implementation is not expected to reach
        the tolerance within the caller's limit; it is chosen only where all others are out.
    """

    operation: str
    method: str
    kind: str
    excludes: Callable[[Problem, dict[str, Any]], str | None]
    work: Callable[[Problem, dict[str, Any]], Work]
    run: Callable[..., Any] | None = None
    shared: Callable[[Problem], bool] | None = None
    prepare: Callable[[Any, Problem, int], Callable[[int, int, int], None]] | None = None
    falls_short: Callable[[Problem], str | None] | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A registered one is pickled and copied by its name: its functions can be local ones.
        if any(self is entry for entry in lookup(self.operation)):
            return _registered, (self.operation, self.kind, self.method)
        return object.__reduce_ex__(self, protocol)

    def _made_of(self) -> list[tuple[Any, ...]]:
        """Modules and names of its functions, which a reloaded module defines again."""
        functions = (
            self.excludes,
            self.work,
            self.run,
            self.shared,
            self.prepare,
            self.falls_short,
        )
        return [(getattr(f, "__module__", f), getattr(f, "__qualname__", f)) for f in functions]


def _registered(operation: str, kind: str, method: str) -> Implementation:
    importlib.import_module("hetero.ops")  # a process that only unpickles has none yet
    for entry in lookup(operation):
        if (entry.kind, entry.method) == (kind, method):
            return entry
    raise ValueError(f"{operation} has no implementation {method!r} on {kind}")


def no_obstacle(problem: Problem, info: dict[str, Any]) -> None:
    """``excludes`` of an implementation that can do whatever the operation accepts."""


_implementations: dict[str, list[Implementation]] = {}


def register(implementation: Implementation) -> Implementation:
    """Add an implementation; a second one of the same operation, kind and method is an error.

    The same functions of a module that was reloaded take the place of the former ones.
    """
    entries = _implementations.setdefault(implementation.operation, [])
    for position, entry in enumerate(entries):
        if (entry.kind, entry.method) == (implementation.kind, implementation.method):
            if entry._made_of() == implementation._made_of():
                entries[position] = implementation
                return implementation
            raise ValueError(
                f"{implementation.operation} has an implementation {implementation.method!r} "
                f"on {implementation.kind} already"
            )
    entries.append(implementation)
    return implementation


def lookup(operation: str) -> tuple[Implementation, ...]:
    """All implementations of an operation, in the order they were registered."""
    return tuple(_implementations.get(operation, ()))


def operations() -> tuple[str, ...]:
    """Names of the operations that have an implementation."""
    return tuple(_implementations)
