"""From a problem to a plan: every candidate priced, the cheapest one chosen, the choice remembered.

The rule is White's listing 4.18, for any number of candidates: compute plus the movement that the
candidate needs, smallest sum wins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hetero import inventory, profile, registry
from hetero.arrays import HOST, Operand
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, NotPriced
from hetero.problem import Problem
from hetero.registry import Implementation

CPU = "cpu"
_REMEMBERED = 4096

forced: ContextVar[tuple[str | None, str | None] | None] = ContextVar("hetero_forced", default=None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One priced way of doing a problem.

    Attributes
    ----------
    device, method : str
    seconds : float or None
        Prediction, the sum of ``terms``; None where no constants are known.
    terms : dict of str to float
        Seconds: "pack", "upload", "overhead", "compute", "download".
    reason : str or None
        Why this candidate was not considered; None where it was.
    implementation : Implementation
    """

    device: str
    method: str
    seconds: float | None
    terms: dict[str, float]
    reason: str | None
    implementation: Implementation = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The priced candidates of a problem, the chosen one first.

    ``print(plan)`` shows them as a table; ``to_dict()`` is what ``hetero explain --json`` prints.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    profile_name: str

    @property
    def chosen(self) -> Candidate:
        """The candidate that runs.

        Raises
        ------
        NotPriced
            If none can run or none has constants.
        """
        best = self.candidates[0] if self.candidates else None
        if best is None or best.reason is not None:
            raise NotPriced(
                f"no candidate for {self.problem}: "
                + "; ".join(f"{c.method} on {c.device}: {c.reason}" for c in self.candidates)
            )
        return best

    @property
    def seconds(self) -> float | None:
        """Prediction for the chosen candidate."""
        return self.chosen.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain data: problem, profile, chosen, candidates."""
        rows = [
            {
                "device": c.device,
                "method": c.method,
                "seconds": c.seconds,
                "terms": dict(c.terms),
                "reason": c.reason,
            }
            for c in self.candidates
        ]
        first = rows[0] if rows and rows[0]["reason"] is None else None
        return {
            "operation": self.problem.operation,
            "dims": list(self.problem.dims),
            "batch": self.problem.batch,
            "dtype": self.problem.dtype,
            "profile": self.profile_name,
            "chosen": first and {key: first[key] for key in ("device", "method", "seconds")},
            "candidates": rows,
        }

    def __str__(self) -> str:
        lines = [f"{self.problem}   (profile: {self.profile_name})"]
        for position, c in enumerate(self.candidates):
            mark = "->" if position == 0 and c.reason is None else "  "
            head = f"{mark} {c.method + ' on ' + c.device:<22}"
            if c.reason is not None:
                lines.append(f"{head} {'-':>12}  {c.reason}")
            elif c.seconds is None:
                lines.append(f"{head} {'-':>12}  the only way; not priced")
            else:
                terms = " + ".join(f"{name} {show(value)}" for name, value in c.terms.items())
                lines.append(f"{head} {show(c.seconds):>12}  = {terms}")
        return "\n".join(lines)


def show(seconds: float) -> str:
    """Seconds in a readable unit: '12.3 us', '4.56 ms', '7.89 s'."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


class _Memory:
    """Plans by key, forgotten as a whole when profile or devices change."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.plans: dict[Any, Plan] = {}
        self.shortcuts: list[dict[Any, Any]] = []
        self.generation = 0

    def forget(self) -> None:
        with self.lock:
            self.generation += 1
            self.plans.clear()
            for shortcut in self.shortcuts:
                shortcut.clear()

    def keep(self, table: dict[Any, Any], key: Any, value: Any, generation: int) -> None:
        with self.lock:
            if generation != self.generation:
                return
            if len(table) >= _REMEMBERED:
                table.clear()
            table[key] = value


_memory = _Memory()
profile.on_change(_memory.forget)
inventory.on_change(_memory.forget)


def shortcut_table() -> dict[Any, Any]:
    """A dict of an operation's own that is emptied whenever plans become out of date."""
    table: dict[Any, Any] = {}
    _memory.shortcuts.append(table)
    return table


def generation() -> int:
    """Number of the current generation of plans; take it before planning, give it to `remember`."""
    return _memory.generation


def remember(table: dict[Any, Any], key: Any, value: Any, generation: int) -> None:
    """Put an entry into a `shortcut_table`, unless plans were forgotten since ``generation``."""
    _memory.keep(table, key, value, generation)


@contextmanager
def use(device: str | None = None, method: str | None = None) -> Iterator[None]:
    """Force placement for all calls inside the ``with`` block, in this thread or task.

    Parameters
    ----------
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0".
    method : str, optional
        Name of an implementation, such as "blas" or "tiled".

    Raises
    ------
    DeviceNotAvailable
        At once, if the device is not here; the message names those that are.
    """
    if device is not None:
        _matching_devices(device, inventory.devices())
    outer = forced.get() or (None, None)
    token = forced.set((device or outer[0], method or outer[1]))
    try:
        yield
    finally:
        forced.reset(token)


def placement(device: str | None, method: str | None) -> tuple[str | None, str | None]:
    """What a call's ``device=`` and ``method=`` mean inside the enclosing `use` blocks."""
    outer = forced.get()
    if outer is None:
        return device, method
    return device or outer[0], method or outer[1]


def check_placement(operation: str, device: str | None, method: str | None) -> None:
    """Raise what a plan would if ``device=`` or ``method=`` names nothing that is here."""
    if device is not None:
        _matching_devices(device, inventory.devices())
    if method is not None:
        implementations = registry.lookup(operation)
        if method not in {i.method for i in implementations}:
            raise MethodNotAvailable(
                f"method must be one of {_methods(implementations)}, got {method!r}"
            )


def plan(problem: Problem, device: str | None = None, method: str | None = None) -> Plan:
    """The plan of a problem on this machine, from memory where it was made before.

    Raises
    ------
    DeviceNotAvailable, MethodNotAvailable
        If the forced placement is not possible; the message names what is.
    """
    key = (
        problem.operation,
        problem.function,
        device,
        method,
        *((o.shape, o.strides, o.dtype, o.location) for o in (*problem.inputs, problem.output)),
        problem.device_obstacle,
    )
    found = _memory.plans.get(key)
    if found is not None:
        return found
    now = _memory.generation
    result = price(problem, profile.current(), inventory.devices(), device, method)
    _memory.keep(_memory.plans, key, result, now)
    return result


def price(
    problem: Problem,
    constants: profile.Profile,
    devices: dict[str, dict[str, Any]],
    device: str | None = None,
    method: str | None = None,
) -> Plan:
    """Price every implementation of the problem's operation on every device.

    Parameters
    ----------
    problem : Problem
    constants : Profile
        Of this machine or of any other.
    devices : dict
        Device name -> description, as `hetero.machine()` gives it.
    device, method : str, optional
        Forced placement.
    """
    names = _matching_devices(device, devices) if device is not None else list(devices)
    implementations = registry.lookup(problem.operation)
    if method is not None and method not in {i.method for i in implementations}:
        raise MethodNotAvailable(
            f"method must be one of {_methods(implementations)}, got {method!r}"
        )
    candidates = [
        _candidate(problem, implementation, name, devices[name], constants, device is not None)
        for name in names
        for implementation in implementations
        if implementation.kind == devices[name]["kind"]
        and (method is None or implementation.method == method)
    ]
    if method is not None and not candidates:
        raise MethodNotAvailable(
            f"method must be one of {_methods(implementations, names, devices)} "
            f"on {', '.join(names)}, got {method!r}"
        )
    possible = [c for c in candidates if c.reason is None]
    if not possible and (
        method is None
        or problem.device_obstacle
        or all(devices[name].get("set_aside") for name in names)
    ):  # a right result, if not where it was asked for
        candidates += [
            _candidate(problem, implementation, CPU, devices[CPU], constants, True)
            for implementation in implementations
            if implementation.kind == CPU
            and implementation.run is not None
            and all(c.implementation is not implementation for c in candidates)
        ]
        possible = [c for c in candidates if c.reason is None]
    if (device or method) and not possible:
        reasons = "; ".join(f"{c.method} on {c.device}: {c.reason}" for c in candidates)
        raise MethodNotAvailable(
            f"{problem} cannot be done as asked: "
            + (reasons or f"there is no {problem.operation} on {', '.join(names)}")
        )
    # A candidate without constants is taken only where there is no other.
    possible.sort(key=lambda c: c.seconds if c.seconds is not None else float("inf"))
    others = [c for c in candidates if c.reason is not None]
    return Plan(problem, tuple(possible + others), constants.name)


def _methods(implementations: Any, names: Any = None, devices: Any = None) -> str:
    kinds = None if names is None else {devices[name]["kind"] for name in names}
    listed = {i.method for i in implementations if kinds is None or i.kind in kinds}
    return ", ".join(map(repr, sorted(listed)))


def _matching_devices(device: str, devices: dict[str, dict[str, Any]]) -> list[str]:
    if device in devices:
        return [device]
    matching = [name for name, info in devices.items() if info["kind"] == device]
    if not matching:
        raise DeviceNotAvailable(
            f"device must be one of {', '.join(map(repr, devices))}, got {device!r}"
        )
    return matching


def _candidate(
    problem: Problem,
    implementation: Implementation,
    name: str,
    info: dict[str, Any],
    constants: profile.Profile,
    asked_for: bool,
) -> Candidate:
    def excluded(reason: str) -> Candidate:
        return Candidate(name, implementation.method, None, {}, reason, implementation)

    reason = info.get("set_aside")
    if reason is None and not asked_for:
        if info.get("is_host_cpu"):
            reason = f"{name} is this machine's CPU again; name it with device= to use it"
        elif info.get("same_as") and problem.device != name:
            reason = f"the same as {info['same_as']}"
    if reason is None and name != CPU:
        reason = problem.device_obstacle or _elsewhere(problem, name)
        reason = reason or _too_large(problem, name, info)
    if reason is None:
        reason = implementation.excludes(problem, info)
    if reason is not None:
        return excluded(reason)
    if name == CPU and problem.device_obstacle:
        return Candidate(name, implementation.method, None, {}, None, implementation)
    cost = constants.cost(
        name,
        implementation.kind,
        problem.operation,
        implementation.method,
        problem.dtype,
        problem.layout,
    )
    terms: dict[str, float] | None = None
    if cost is not None:
        try:
            overhead, compute = cost(implementation.work(problem, info))
            before, after = _movement(problem, name, constants)
        except KeyError as error:
            if name != CPU:
                return excluded(f"the profile's constants do not cover it: {error}")
        else:
            overhead += _dispatch(problem, name, constants)
            terms = {**before, "overhead": overhead, "compute": compute}
            for term, seconds in after.items():
                terms[term] = terms.get(term, 0.0) + seconds
    if terms is None:
        if name != CPU and not asked_for:
            return excluded("no constants in this profile; hetero.calibrate() measures them")
        return Candidate(name, implementation.method, None, {}, None, implementation)
    return Candidate(name, implementation.method, sum(terms.values()), terms, None, implementation)


def _movement(
    problem: Problem, name: str, constants: profile.Profile
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of what must move to compute on a device: terms before and after computing."""
    here = HOST if name == CPU else name
    before: dict[str, float] = {}
    after: dict[str, float] = {}

    def move(terms: dict[str, float], operand: Operand, source: str, target: str) -> None:
        if source == target:
            return
        if source != HOST:  # device to device goes through the host
            term = constants.link(source, "download")(operand.nbytes)
            terms["download"] = terms.get("download", 0.0) + term
        if target != HOST:
            if source == HOST and terms is before and not operand.is_dense():
                term = constants.pack(operand.nbytes)
                terms["pack"] = terms.get("pack", 0.0) + term
            term = constants.link(target, "upload")(operand.nbytes)
            terms["upload"] = terms.get("upload", 0.0) + term

    for operand in problem.inputs:
        move(before, operand, operand.location, here)
    move(after, problem.output, here, problem.output.location)
    return before, after


def _dispatch(problem: Problem, name: str, constants: profile.Profile) -> float:
    """Seconds of the host's own work: staging for a device, or the way back from one."""
    if name != CPU:
        return constants.dispatch(name, "device" if problem.device else "host")
    return constants.dispatch(problem.device, "detour") if problem.device else 0.0


def _elsewhere(problem: Problem, name: str) -> str | None:
    """Operands of another device are moved as dense blocks."""
    for operand in (*problem.inputs, problem.output):
        if operand.location not in (HOST, name) and not operand.is_c_contiguous():
            return f"an operand on {operand.location} is not contiguous"
    return None


def _too_large(problem: Problem, name: str, info: dict[str, Any]) -> str | None:
    memory = info.get("memory_bytes")
    if memory is None:
        return None
    needed = sum(o.nbytes for o in (*problem.inputs, problem.output) if o.location != name)
    if needed > 0.9 * memory:
        return f"needs {needed / 2**30:.1f} GiB, the device has {memory / 2**30:.1f} GiB"
    return None
