"""What `hetero ladder` and `hetero sweep` share: one method of an operation, timed at one size.

What a method is timed on are the operands of calibration's cases: on the device, the same for all
methods; of a solve one iteration.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from hetero import devices, registry
from hetero.calibration import request
from hetero.calibration.measure import solving, timing
from hetero.calibration.measure.candidates import once
from hetero.calibration.measure.workbench import Bench
from hetero.devices.kinds import traits
from hetero.errors import DeviceNotAvailable
from hetero.evaluation.causes.launches import Launched, recorded
from hetero.host import limits
from hetero.host.compiled import loop_compiler
from hetero.ops import benchmark
from hetero.ops.cases import Case, Dims, Place, TimedSolves, forget_numbers
from hetero.pricing import pricing
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Implementation, Operation, thread_counts
from hetero.registry.problem import Problem
from hetero.times import readable

_FIRST = 32  # the size that is tried first, to see how long others take
_POINT = 0.06  # seconds for one figure by the wall's clock
_MOST_STEPS = 200  # of a solve
_LONG = 0.2  # seconds of a solve of one step, above which it is done once


class Ground:
    """One operation at one place, with one dtype.

    Parameters
    ----------
    operation : Operation
    place : Place
    dtype : str
    limit : float
        Seconds of a call above which none is made.
    filter : int, optional
        Extent of the filter, of an operation that has one.
    """

    def __init__(
        self,
        operation: Operation,
        place: Place,
        dtype: str,
        limit: float,
        filter: int | None = None,
    ) -> None:
        if filter is not None and benchmark.of(operation, "FILTER") is None:
            raise ValueError(f"--filter is of a convolution, not of {operation.function}")
        self.operation, self.place, self.dtype, self.limit = operation, place, dtype, limit
        self.filter = filter
        self._bench = Bench(place.devices)
        own = importlib.import_module(operation.cases).cases
        self._cases: dict[str, Case] = {}
        for case in own(place, request.QUICK):
            if case.dtype == dtype:
                self._cases.setdefault(case.implementation.method, case)
        if not self._cases:
            raise ValueError(f"nothing of {operation.function} can be measured on {place.name}")

    def measured(self) -> list[Implementation]:
        """The methods that calibration measures here."""
        return [case.implementation for case in self._cases.values()]

    def dims(self, size: int) -> Dims:
        """Dimensions of the case at a size, such as the extent of a square."""
        extents = benchmark.of(self.operation, "climbed")
        if extents is None:
            return (size,) * len(self.case().axes or ())
        return extents(size) if self.filter is None else extents(size, self.filter)

    def case(self, row: Implementation | None = None) -> Case:
        """What a method is measured on; of one that calibration does not measure, as of others."""
        top = next((m for m in self.operation.ladder if m in self._cases), None)
        first = self._cases[top] if top else next(iter(self._cases.values()))
        if row is None:
            return first
        found = self._cases.get(row.method) or first
        return dataclasses.replace(found, implementation=row)

    def shown(self, size: int) -> list[int]:
        """The problem's own dimensions at a size."""
        return [*self.case().problem(*self.dims(size)).dims]

    @property
    def what(self) -> str:
        """What is timed: a call, or an iteration."""
        how = self.case().how
        return "iteration" if isinstance(how, TimedSolves) and how.few != how.many else "call"

    def problem(self, row: Implementation, size: int) -> Problem:
        """The problem that a method is timed on."""
        return self.case(row).problem(*self.dims(size))

    def obstacle(self, row: Implementation, size: int) -> str | None:
        """Why a method cannot do a size, or not soon; None where it can.

        It is tried at sizes that double, so that each tells how long the next one takes.
        """
        problem = self.problem(row, size)
        if problem.operation != row.operation:
            return f"such a {row.operation} is a {problem.operation}"
        reason = row.excludes(problem, self.place.info)
        if self.place.kind == CPU and [*self.problem(row, size).dims] != self.shown(size):
            reason = "is for other problems than the first one"
        if reason is None and row.loops is not None:
            loop_compiler.ensure(row.loops(problem))
        tried = min(size, _FIRST)
        while reason is None and tried < size:
            seconds = self.once(row, tried)
            later = seconds * self._work(row, size) / self._work(row, tried)
            following = min(2 * tried, size)
            if seconds * self._work(row, following) / self._work(row, tried) > self.limit:
                return f"would take about {readable(later)}"
            if later < self.limit / 8:  # and less than that, since small sizes are slow
                return None
            tried = following
        return reason

    def _work(self, row: Implementation, size: int) -> float:
        work = row.work(self.problem(row, size), self.place.info)
        return max(work.flops, 1.0)

    def once(self, row: Implementation, size: int) -> float:
        """Seconds of the second call, by the wall's clock, until its result is there."""
        call = self._call(row, size)
        call()
        return once(call)

    def _call(self, row: Implementation, size: int) -> Callable[[], object]:
        case = self.case(row)
        if isinstance(case.how, TimedSolves):
            solve = solving.prepared(case, self.dims(size), self._bench)
            return lambda: solve(1)
        return self._bench.waiting(case, case.problem(*self.dims(size)))

    def seconds(self, row: Implementation, size: int) -> float:
        """Seconds of one call, or of one iteration of a solve."""
        case = self.case(row)
        if not isinstance(case.how, TimedSolves):
            return self._bench.seconds(case, self.problem(row, size), _POINT)
        solve = solving.prepared(case, self.dims(size), self._bench)
        first = once(lambda: solve(1))
        if first > _LONG:  # it may have compiled what this size takes
            first = min(first, once(lambda: solve(1)))
        if first > _LONG:
            return max(once(lambda: solve(2)) - first, 0.0) or first
        few = timing.measure(lambda: solve(1), budget=_POINT, least=2, most=5)
        if case.how.few == case.how.many:  # it is one step
            return min(few.samples)
        more = max(2, min(_MOST_STEPS, int(_POINT / min(few.samples))))
        many = timing.measure(lambda: solve(1 + more), budget=2 * _POINT, least=2, most=5)
        return max(min(many.samples) - min(few.samples), 0.0) / more or min(few.samples)

    def launches(self, row: Implementation, size: int) -> Counter[Launched]:
        """The kernels that one call launches, or one iteration; none of what has no such record."""
        case = self.case(row)
        if len(self.place.devices) != 1:
            return Counter()
        if not isinstance(case.how, TimedSolves):
            call = self._call(row, size)
            return recorded(self.place.devices[0], call)
        solve = solving.prepared(case, self.dims(size), self._bench)
        one = recorded(self.place.devices[0], lambda: solve(1))
        if case.how.few == case.how.many:
            return one
        return recorded(self.place.devices[0], lambda: solve(2)) - one


def place_of(device: str | None) -> Place:
    """Where is measured: the device that is named, or the first GPU, or the first one at all.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device.
    """
    if device == CPU:
        return Place(CPU, inventory.devices()[CPU])
    if device is None:
        device = benchmark.cuda_device() or next(iter(devices.proven()), None)
    if device is None:
        why = "; ".join(devices.missing())
        raise DeviceNotAvailable(
            f"kernels need a GPU or an OpenCL device, and none is here: {why}; the CPU's loops: "
            "'hetero ladder' with --device cpu"
        )
    found = devices.get(device)
    return Place(found.name, inventory.devices()[found.name], (found,))


def together(place: Place) -> Place | None:
    """All devices that equal one, itself among them; None where it is the only one."""
    for info in pricing.groups(inventory.devices()).values():
        if place.name in info["members"]:
            members = tuple(devices.get(member) for member in info["members"])
            return Place(info["constants"], info, members)
    return None


@contextmanager
def ground(
    operation: Operation,
    place: Place,
    dtype: str | None,
    limit: float | None = None,
    filter: int | None = None,
) -> Iterator[Ground]:
    """The ground of an operation, its one device active; what it holds is given back at the end."""
    own = dtype or benchmark.dtype_of(operation)
    with place.devices[0].active() if len(place.devices) == 1 else nullcontext():
        try:
            seconds = limit or (1.0 if traits(place.kind).own_clock else 0.5)
            yield Ground(operation, place, own, seconds, filter)
        finally:
            forget_numbers()


def rows(operation: Operation, ground: Ground) -> list[Implementation]:
    """The ladder: rungs, then the methods above them; on the CPU, where an operation has no rungs,
    what calibration measures."""
    kind = ground.place.kind
    there = {i.method: i for i in registry.considered(operation.name) if i.kind == kind}
    found = benchmark.rungs(operation, kind)
    if not found:
        if kind == CPU:
            return ground.measured()
        having = [o.function for o in registry.operations() if benchmark.rungs(o, kind)]
        raise ValueError(
            f"{operation.function} has no rungs on {kind}; there are some of {', '.join(having)}"
        )
    return found + [there[method] for method in operation.ladder if method in there]


def on_threads(row: Implementation, count: int) -> Implementation | str:
    """A method of the CPU on fewer threads; or why not."""
    pool = thread_counts.pool(row)
    most = None if pool is None else limits.most(pool)
    if most is None:
        return "the number of its threads cannot be limited"
    if count > most:
        return f"it has {most} threads here, not {count}"
    threads = thread_counts.Threads(count, most)
    return dataclasses.replace(row, run=thread_counts.limited(row, threads, row.run))
