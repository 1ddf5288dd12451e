"""Equal devices: one of several GPUs of a kind is measured, and probes compare the others.

They may differ: by slot, temperature, other users or power limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from hetero.calibration.measure import loop
from hetero.calibration.measure.timing import spread
from hetero.calibration.measure.workbench import Bench
from hetero.devices.base import Device
from hetero.ops.cases import Budget, Case, Place, SampleGrid

SECONDS = 2.0  # about what confirming one takes
_ROUNDS = 5
_ALIKE = 0.1  # relative difference below which two devices count as equal
_SIGMAS = 4.0  # standard errors: the significance threshold of a difference
_LARGEST = 1 << 26  # bytes of a transfer


class Difference(NamedTuple):
    """How a GPU differs from the one that was measured, and whether only its links do."""

    text: str
    only_links: bool


def difference(
    first: Place, second: Place, cases: Iterable[Case], budget: Budget
) -> Difference | None:
    """How a GPU differs from the one that was measured; None where it does not.

    Both are timed in turn, so that other load hits both alike. A difference is measured twice.

    Parameters
    ----------
    first, second : Place
        The GPU that was measured, and the other one.
    cases : iterable of Case
        What was measured of the first one; the first grid of each operation's is a probe.
    budget : Budget
    """
    of_calls = _calls(first, second, cases, budget)
    of_links = _links(first, second, min(_LARGEST, budget.largest_transfer))
    for probes, only_links in ((of_calls, False), (of_links, True)):
        for name, (one, other) in probes:
            if (ratio := _ratio(one, other)) is not None:
                text = f"{name} takes {ratio:.2f} times as long as on {first.name}"
                return Difference(text, only_links)
    return None


def _ratio(one: Callable[[], float], other: Callable[[], float]) -> float | None:
    """The ratio of the second call's time to the first's; None where it is insignificant."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(2):
        for _ in range(_ROUNDS):
            seconds[0].append(one())
            seconds[1].append(other())
        ratio = median(seconds[1]) / median(seconds[0])
        noise = spread(seconds[0]) + spread(seconds[1])
        if abs(math.log(ratio)) <= max(_ALIKE, _SIGMAS * noise):
            return None
    return ratio


Probe = tuple[str, tuple[Callable[[], float], Callable[[], float]]]


def _links(first: Place, second: Place, nbytes: int) -> Iterable[Probe]:
    calls: dict[str, list[Callable[[], float]]] = {}
    for place in (first, second):
        (device,) = place.devices
        for name, call in _transfers(device, nbytes).items():
            calls.setdefault(name, []).append(call)
    return [(name, (one, other)) for name, (one, other) in calls.items()]


def _transfers(device: Device, nbytes: int) -> dict[str, Callable[[], float]]:
    """Seconds of a large transfer each way, between the device and pinned memory."""
    with device.active():
        buffer, owner = device.allocate(nbytes)
        memory = device.pinned(nbytes)
    memory[:] = np.arange(nbytes, dtype=np.uint8)

    def seconds(move: Callable[[], object], _owner: object) -> float:
        with device.active():
            begin = time.perf_counter()
            move()
            device.synchronize()
            return time.perf_counter() - begin

    return {
        "upload": partial(seconds, lambda: device.upload(memory, buffer), owner),
        "download": partial(seconds, lambda: device.download(buffer, memory), owner),
    }


def _calls(first: Place, second: Place, cases: Iterable[Case], budget: Budget) -> Iterable[Probe]:
    """One call of each operation that is measured on a grid, of a middle size."""
    chosen: dict[str, Case] = {}
    for case in cases:
        if isinstance(case.how, SampleGrid):
            chosen.setdefault(case.implementation.operation, case)
    benches = [(place, Bench(place.devices)) for place in (first, second)] if chosen else []

    def seconds(place: Place, bench: Bench, case: Case, dims: tuple[int, ...]) -> float:
        with loop.active(place):
            return bench.seconds(case, case.problem(*dims), budget.point)

    for case in chosen.values():
        dims = tuple(axis[len(axis) // 2] for axis in case.axes)
        one, other = (partial(seconds, place, bench, case, dims) for place, bench in benches)
        yield str(case), (one, other)
