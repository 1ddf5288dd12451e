"""What is to be measured: the cases of the operations at each place, as far as there is room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

from hetero.calibration.failures import Failure
from hetero.imports import load
from hetero.ops.cases import Budget, Case, Passes, Place, SampleGrid
from hetero.registry import Operation

_FEW = 5  # knots of what several devices share, along the first axis
_LOOKS = 2  # at what the host's clock times: slow spells last longer than one look
_ROOM = 0.5  # of a device's memory, for the operands of one call


class Portion(NamedTuple):
    """The cases of one operation at one place."""

    operation: Operation
    place: Place
    cases: tuple[Case, ...]

    @property
    def passes(self) -> int:
        """How often all cases are gone through."""
        return max(map(turns, self.cases), default=1)


def module_of(operation: Operation) -> ModuleType:
    """The module that says what is measured of an operation."""
    if not operation.cases:
        raise LookupError("it does not say what is to be measured (Operation.cases)")
    return load(operation.cases)


def all_cases(
    operations: Iterable[Operation], places: list[Place], budget: Budget, failures: list[Failure]
) -> list[Portion]:
    """Everything that is to be measured, in order."""
    found = []
    for operation in operations:
        for place in places:
            try:
                cases = module_of(operation).cases(place, budget)
                cases = tuple(few(with_room(c, place), place) for c in cases if _fits(c, place))
            except Exception as error:
                failures.append(Failure(operation.name, place.name, "", error))
            else:
                found.append(Portion(operation, place, cases))
    return [portion for portion in found if portion.cases]


def _fits(case: Case, place: Place) -> bool:
    """Whether a case can be measured at a place: together only what several devices can share."""
    shared = case.implementation.shared
    if len(place.devices) < 2:
        return True
    return shared is not None and case.problem is not None and shared(case.problem(*case.largest))


def with_room(case: Case, place: Place) -> Case:
    """The case without the knots whose operands fill a device's memory."""
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


def by_own_clock(portions: list[Portion]) -> tuple[list[Portion], list[Portion], list[Portion]]:
    """What a GPU times by its own clock, however busy the host is: first what needs nothing
    compiled, then what does; and all else."""
    found: tuple[list[Portion], list[Portion], list[Portion]] = [], [], []
    for portion in portions:
        cases: tuple[list[Case], list[Case], list[Case]] = [], [], []
        for case in portion.cases:
            own = len(portion.place.devices) == 1 and has_own_clock(case)
            cases[bool(case.ahead) if own else 2].append(case)
        for several, kept in zip(found, cases, strict=True):
            if kept:
                several.append(portion._replace(cases=tuple(kept)))
    return found


def in_turn(portions: Iterable[Portion]) -> Iterator[tuple[Portion, Case, float]]:
    """Each case as often as it is gone through, with its part of the case's seconds.

    All cases have their first turn before any has its second: a slow spell may last for seconds.
    """
    portions = list(portions)
    for number in range(max((portion.passes for portion in portions), default=0)):
        for portion in portions:
            for case in portion.cases:
                if number < turns(case):
                    yield portion, case, case.seconds / turns(case)


def turns(case: Case) -> int:
    """How often a case is gone through: what a GPU's own clock times, once."""
    if isinstance(case.how, Passes):
        return case.how.number
    return 1 if has_own_clock(case) else _LOOKS


def has_own_clock(case: Case) -> bool:
    """Whether a GPU's own clock times a case on one GPU, however busy the host is."""
    return isinstance(case.how, SampleGrid) and case.implementation.kind == "cuda"
