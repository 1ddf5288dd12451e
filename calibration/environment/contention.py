"""What the CPU and a device lose to one another while they share a call (`blocks/with_cpu.py`).

A call is cut as a plan by the new constants cuts it. Each range is timed alone, and in the shared
call itself, in turn: run as any shared call is, so that whatever that takes is in it. Kept is how
many times as long each range takes, for each operation that has a size for it and for operands in
ordinary and in pinned memory. Where threads of ours do the device's range, it is measured too with
fewer of BLAS's threads, and the number that ends soonest is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, describe
from hetero.blocks import beside_cpu, shares, with_cpu
from hetero.calibration.failures import Failure
from hetero.calling import execution
from hetero.devices.base import Device
from hetero.host import limits
from hetero.imports import load
from hetero.moving.calls import Call
from hetero.moving.failures import without_fallback
from hetero.ops.cases import Place
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, Plan
from hetero.profile import ENQUEUED, PAGEABLE, PINNED, Profile, inventory
from hetero.registry import Operation

SECONDS = 2.0  # of all of a device, about
_LONGEST = 0.02  # predicted seconds of a call
_SMALLEST = 256  # extent
_ROUNDS = (2, 7)  # at least, at most
_ENOUGH = 0.2  # seconds, after which no further round begins
_SLOWER = 1.25  # times the least seconds, above which a way to do both is not done again
_SPARED = (2, 4)  # of BLAS's threads
_DTYPE = "float32"

Task = Callable[[], object]


def measured(
    places: Iterable[Place],
    operations: Iterable[Operation],
    constants: Profile,
    failures: list[Failure],
) -> dict[str, Any]:
    """Device -> operation -> kind of host memory -> how many times as long "cpu" and "device" take.

    Parameters
    ----------
    places : iterable of Place
        Those of one device that is not the CPU's own are measured.
    operations : iterable of Operation
    constants : Profile
        By which calls are cut.
    failures : list
        Is added to.
    """
    found: dict[str, Any] = {}
    for place in places:
        if len(place.devices) != 1 or place.info.get("is_host_cpu"):
            continue
        for operation in operations:
            try:
                of_operation = beside_one_another(operation, place.devices[0], constants)
            except Exception as error:
                failures.append(Failure(operation.name, place.name, "contention", error))
            else:
                if of_operation:
                    found.setdefault(place.name, {})[operation.name] = of_operation
    return found


def beside_one_another(
    operation: Operation, device: Device, constants: Profile
) -> dict[str, dict[str, float]]:
    """Of one operation; empty where it has no size for it, or cannot be cut."""
    if not operation.cases or operation.cut is None:
        return {}
    dims = getattr(load(operation.cases), "SHARED", None)
    if dims is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    for memory in (PAGEABLE, PINNED):
        with device.active():
            calls = _shared(operation, dims, device, memory, constants)
        for call in calls:
            if call.way not in found and (device.enqueues or call.way != ENQUEUED):
                found[call.way] = call.measured()
    return found


def _shared(
    operation: Operation,
    dims: tuple[int, ...],
    device: Device,
    memory: str,
    constants: Profile,
) -> list[_Shared]:
    """A call to measure for each way to do the device's range, of a size that is quick; none where
    it cannot be cut or has no price."""
    name, here = pricing.WITH_CPU + device.name, inventory.devices()
    while True:
        whole = operation.from_dims(dims, _DTYPE, HOST)
        plan = shares.price(whole, constants, here, name)
        if not plan.chosen.shares or plan.seconds is None:
            return []
        if plan.seconds <= _LONGEST or max(dims) <= _SMALLEST:
            break
        dims = tuple(size // 2 for size in dims)
    arrays = tuple(_filled(o.shape, device if memory == PINNED else None) for o in whole.inputs)
    whole = operation.problem(*arrays)
    plan = shares.price(whole, constants, here, name)
    out = np.zeros(whole.output.shape, _DTYPE)
    call = Call(arrays, whole.inputs, out, describe(out))
    found: dict[str, _Shared] = {}
    for candidate in plan.candidates:  # the cheapest first
        if candidate.reason is None and candidate.shares:
            one = _Shared(operation, replace(plan, candidates=(candidate,)), call)
            found.setdefault(one.way, one)
    return list(found.values())


class _Shared:
    """A call that the CPU shares with a device.

    Attributes
    ----------
    way : str
        See `Profile.contention`.
    """

    def __init__(self, operation: Operation, plan: Plan, call: Call) -> None:
        self._plan, self._call = plan, call
        own, other = plan.chosen.shares
        cut = registry.cut(plan.problem, 2)
        self._alone = []
        for share in (own, other):
            begin, end, one = share.begin, share.end, share.plan.chosen
            part = cut.arrays(begin, end, call.arrays, None)
            place = {"device": one.device, "method": one.method}
            place["out"] = cut.output(begin, end, call.out)
            self._alone.append(partial(operation.call, *part, **place))
        problem, row = other.plan.problem, other.plan.chosen.implementation
        self.way = with_cpu.way(problem, row)
        threads = own.plan.chosen.threads
        self._spared = [0]
        if self.way != ENQUEUED and threads is not None and limits.most(limits.BLAS):
            self._spared += [n for n in _SPARED if threads.of >= 2 * n]

    def measured(self) -> dict[str, float]:
        """How many times as long each takes, with as many of BLAS's threads as are best."""
        alone, beside = times(*self._alone, [partial(self._both, n) for n in self._spared])
        best = min(range(len(beside)), key=lambda n: max(beside[n][:2]) + beside[n][2])
        own, other, more = beside[best]
        found = {CPU: max(own / alone[0], 1.0), "device": max(other / alone[1], 1.0)}
        found["handover"] = more
        return found | ({"spared": self._spared[best]} if best else {})

    def _both(self, spared: int) -> tuple[float, float, float]:
        """Seconds of either range in a shared call, and of the call beside the longer one."""
        plan = with_cpu.spared(self._plan, spared)
        with beside_cpu.timed() as seconds, without_fallback():
            begin = time.perf_counter()
            execution.run(plan, self._call)
            total = time.perf_counter() - begin
        both = seconds[CPU], seconds[beside_cpu.DEVICE]
        return (*both, max(total - max(both), 0.0))


def _filled(shape: tuple[int, ...], device: Device | None) -> np.ndarray:
    """Ones, in memory that the device pins where one is given."""
    nbytes = int(np.prod(shape)) * np.dtype(_DTYPE).itemsize
    made = np.empty(nbytes, np.uint8) if device is None else device.pinned(nbytes)
    array = made.view(_DTYPE).reshape(shape)
    array[...] = 1.0
    return array


def times(
    own: Task, other: Task, together: Sequence[Callable[[], tuple[float, ...]]]
) -> tuple[list[float], list[list[float]]]:
    """Seconds of two tasks, each alone, and what each way to do both gives; medians.

    In turn, so that what comes and goes meets all of them. Each is done twice and the second time
    counts, as in a program that repeats a call: threads of the one before may be awake still.

    Parameters
    ----------
    own, other : callable
    together : sequence of callable
        Each does both, and gives the seconds of either, and others.
    """
    alone: list[list[float]] = [[], []]
    beside: list[list[tuple[float, ...]]] = [[] for _ in together]
    for task in (own, other, *together):  # compiled, allocated, and looked up
        task()
    least, most = _ROUNDS
    left = range(len(together))
    start = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - start > _ENOUGH:
            break
        for task, taken in zip((own, other), alone, strict=True):
            task()
            begin = time.perf_counter()
            task()
            taken.append(time.perf_counter() - begin)
        for way in left:
            together[way]()
            beside[way].append(together[way]())
        longest = [max(beside[way][-1]) for way in left]
        left = [w for w, took in zip(left, longest, strict=True) if took <= _SLOWER * min(longest)]
    return (
        [median(taken) for taken in alone],
        [[median(one) for one in zip(*every, strict=True)] for every in beside],
    )
