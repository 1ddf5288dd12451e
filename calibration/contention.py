"""What the CPU and a device lose to one another while they share a call (`runtime/with_cpu.py`).

A call is cut as a plan by the new constants cuts it. Each range is timed alone and beside the other
one, in turn. Kept is how many times as long each takes, for each operation that has a size for it
and for operands in ordinary and in pinned memory.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from hetero.arrays import HOST
from hetero.calibration.failures import Failure
from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.runtime import inventory, pricing, registry, shares
from hetero.runtime.cases import Place
from hetero.runtime.plan import CPU
from hetero.runtime.profile import PAGEABLE, PINNED, Profile
from hetero.runtime.registry import Operation

SECONDS = 3.0  # of all of a device, about
_LONGEST = 0.05  # predicted seconds of a call
_SMALLEST = 256  # extent
_ROUNDS = 5
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
    dims = getattr(importlib.import_module(operation.cases), "SHARED", None)
    if dims is None:
        return {}
    found = {}
    for memory in (PAGEABLE, PINNED):
        with device.active():
            tasks = _ranges(operation, dims, device, memory, constants)
        if tasks is not None:
            own, other = times(*tasks)
            found[memory] = {CPU: own, "device": other}
    return found


def _ranges(
    operation: Operation,
    dims: tuple[int, ...],
    device: Device,
    memory: str,
    constants: Profile,
) -> tuple[Task, Task] | None:
    """What does the CPU's range of a call, and what does the device's."""
    name, here = pricing.WITH_CPU + device.name, inventory.devices()
    while True:
        whole = operation.from_dims(dims, _DTYPE, HOST)
        plan = shares.price(whole, constants, here, name)
        if not plan.chosen.shares or plan.seconds is None:
            return None
        if plan.seconds <= _LONGEST or max(dims) <= _SMALLEST:
            break
        dims = tuple(size // 2 for size in dims)
    arrays = tuple(_filled(o.shape, device if memory == PINNED else None) for o in whole.inputs)
    out = np.zeros(whole.output.shape, _DTYPE)
    whole = operation.problem(*arrays)
    plan, cut = shares.price(whole, constants, here, name), registry.cut(whole, 2)
    tasks = []
    for share in plan.chosen.shares:
        begin, end, one = share.begin, share.end, share.plan.chosen
        part, target = cut.arrays(begin, end, arrays, None), cut.output(begin, end, out)
        place = {"device": one.device, "method": one.method}
        tasks.append(partial(operation.call, *part, out=target, **place))
    return (tasks[0], tasks[1]) if tasks else None


def _filled(shape: tuple[int, ...], device: Device | None) -> np.ndarray:
    """Ones, in memory that the device pins where one is given."""
    nbytes = int(np.prod(shape)) * np.dtype(_DTYPE).itemsize
    made = np.empty(nbytes, np.uint8) if device is None else device.pinned(nbytes)
    array = made.view(_DTYPE).reshape(shape)
    array[...] = 1.0
    return array


def times(own: Task, other: Task) -> tuple[float, float]:
    """How many times as long each of two tasks takes beside the other one; 1 at least.

    Parameters
    ----------
    own, other : callable
        The first is run in this thread, the second in another one beside it.
    """
    alone: tuple[list[float], list[float]] = ([], [])
    beside: tuple[list[float], list[float]] = ([], [])
    for number in range(_ROUNDS + 1):
        for task, taken in zip((own, other), alone, strict=True):
            _timed(task, taken)
        both = zip((own, other), beside, strict=True)
        at_once.side_by_side([partial(_timed, *one) for one in both])
        if not number:  # compiled, allocated, and looked up
            for taken in (*alone, *beside):
                taken.clear()
    found = [median(b) / median(a) for a, b in zip(alone, beside, strict=True)]
    return max(found[0], 1.0), max(found[1], 1.0)


def _timed(task: Task, taken: list[float]) -> None:
    begin = time.perf_counter()
    task()
    taken.append(time.perf_counter() - begin)
