"""The work list: which devices are measured, and which cases of each operation at each place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from hetero import devices as backends
from hetero import registry
from hetero.calibration.progress import Failure
from hetero.errors import DeviceNotAvailable, one_of
from hetero.imports import load
from hetero.ops.cases import Budget, Case, Passes, Place
from hetero.pricing import pricing
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Operation

_FEW = 5  # knots of shared calls, along the first axis
_ROOM = 0.5  # of a device's memory, for the operands of one call


class WorkItem(NamedTuple):
    """A case at one place."""

    place: Place
    case: Case

    @property
    def names(self) -> set[str]:
        """The names that stand for it."""
        operation = registry.operation(self.case.implementation.operation)
        method, place = self.case.implementation.method, self.place
        return {operation.name, operation.function, method, place.name, place.kind}


def chosen_devices(devices: list[str] | None, infos: dict[str, dict[str, Any]]) -> list[str]:
    """The names of the devices to measure: the CPU and those requested, or all in use."""
    if devices is None:
        return [
            name
            for name, info in infos.items()
            if not (info.get("is_host_cpu") or info.get("same_as") or info.get("set_aside"))
        ]
    for name in devices:
        if name not in infos:
            reason = f": it is broken, {why}" if (why := inventory.broken().get(name)) else ""
            raise DeviceNotAvailable(one_of("device", infos, name) + reason)
    return [CPU, *(name for name in devices if name != CPU)]


def places_of(names: list[str], infos: dict[str, dict[str, Any]]) -> list[Place]:
    """The CPU, each device, and all equal devices together."""
    places = [
        Place(name, infos[name], () if name == CPU else (backends.get(name),)) for name in names
    ]
    for info in pricing.groups(infos).values():
        if info["members"][0] in names and not info.get("is_host_cpu"):
            together = tuple(backends.get(member) for member in info["members"])
            places.append(Place(info["constants"], info, together))
    return places


def module_of(operation: Operation) -> ModuleType:
    """The module with an operation's cases."""
    return load(operation.cases)


def all_cases(
    operations: Iterable[Operation], places: list[Place], budget: Budget, failures: list[Failure]
) -> list[WorkItem]:
    """The work list of a calibration, in order; a quick one has only the links of several devices,
    by which calls in ranges are priced."""
    items: list[WorkItem] = []
    for operation in operations:
        for place in (p for p in places if len(p.devices) < 2 or not budget.quick):
            try:
                cases = module_of(operation).cases(place, budget)
                cases = [few(with_room(c, place), place) for c in cases if _fits(c, place)]
            except Exception as error:
                failures.append(Failure(operation.name, place.name, "", error))
            else:
                items += [WorkItem(place, case) for case in cases]
    return items


def _fits(case: Case, place: Place) -> bool:
    """Whether a case can be measured at a place: at several devices only calls that they share."""
    shared = case.implementation.shared
    if len(place.devices) < 2:
        return True
    return shared is not None and case.problem is not None and shared(case.problem(*case.largest))


def with_room(case: Case, place: Place) -> Case:
    """The case without the knots with operands that fill a device's memory."""
    memory = place.info.get("memory_bytes")
    if not place.devices or memory is None or case.problem is None:
        return case

    def fits(dims: tuple[int, ...]) -> bool:
        problem = case.problem(*dims)
        return sum(o.nbytes for o in (*problem.inputs, problem.output)) <= _ROOM * memory

    if isinstance(case.how, Passes):
        knots = {key: dims for key, dims in case.how.knots.items() if fits(dims)}
        return replace(case, how=replace(case.how, knots=knots))
    axes = case.axes
    while any(len(axis) > 1 for axis in axes) and not fits(tuple(axis[-1] for axis in axes)):
        axes = [axis[:-1] if len(axis) > 1 else axis for axis in axes]
    return replace(case, axes=axes)


def few(case: Case, place: Place) -> Case:
    """The case with fewer knots where it is for several devices: only large ones are shared."""
    if len(place.devices) < 2 or not case.axes or len(case.axes[0]) <= _FEW:
        return case
    sizes, *others = case.axes
    kept = [sizes[0], sizes[-_FEW], *sizes[2 - _FEW :]]
    return replace(case, axes=[kept, *others], seconds=case.seconds * len(kept) / len(sizes))


def selected(worklist: list[WorkItem], only: Iterable[str]) -> list[WorkItem]:
    """The cases that have one of these names.

    Raises
    ------
    ValueError
        If a name stands for nothing that can be measured; the message lists those that do.
    """
    known = set().union(*(item.names for item in worklist))
    functions = {o.name: o.function for o in registry.operations()}
    for name in sorted(set(only) - known):
        raise ValueError(one_of("only", sorted({functions.get(n, n) for n in known}), name))
    return [item for item in worklist if item.names & set(only)]
