"""Links of devices: seconds of copies as calls make them, and models of these.

Copies on two GPUs, begun by two threads, last longer than one alone: both share the host's memory
and its threads, and one of them begins later. So all equal devices together have links, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import log
from typing import Any

import numpy as np

from hetero.calibration.environment.copies import Copies, Way, is_asked
from hetero.calibration.fit import fit_link
from hetero.calibration.measure.timing import measure, once, undisturbed
from hetero.calibration.progress import Failure
from hetero.devices import at_once, peers
from hetero.devices.base import Device
from hetero.ops.cases import Budget, Place, axis
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile

Times = dict[Way, dict[int, float]]  # direction and kind of host memory -> bytes -> seconds

_MOST_PLAIN = 1 << 26  # bytes of a measured copy by the driver alone, where it may be staged
_LONG = 1 << 26  # bytes; a transfer of more is timed once in each pass
_PASSES, _PASSES_LONG = 3, 2
SECONDS = 2.0  # of measuring copies at once, at most
_SIZES = tuple(at_once.LEAST << step for step in (0, 1, 2, 4, 6))  # bytes of these, to 256 MiB
_LARGER = 4.0  # times as long as all smaller ones the next size takes, at most
_SAMPLES = 8  # of a size
_NOISE = 1.05  # times as long as alone: less counts as equal


# -- One device ------------------------------------------------------------------------------------


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_transfer, int(device.describe()["memory_bytes"]) // 4)
    short = axis(1024, min(largest, _LONG), budget.link_step)
    sizes = [*short, *axis(short[-1], largest, budget.link_step**2)[1:]]
    sizes = [size // 8 * 8 for size in sizes]  # whole float64s
    models: dict[str, Any] = {"upload": {}, "download": {}}
    for (direction, memory), seconds in alone(device, sizes, 3 * budget.point).items():
        models[direction][memory] = fit_link.segments([*seconds], [*seconds.values()])
    return models


def alone(device: Device, sizes: Sequence[int], budget: float) -> Times:
    """Seconds to move each size, in passes, each with other pageable memory: its place decides the
    speed."""
    copies = Copies(device, sizes[-1])
    samples: dict[Way, dict[int, list[float]]] = {way: {} for way in copies.ways}
    for number in range(_PASSES):
        if number:
            copies.renew(_LONG)
        for way, nbytes in ((way, n) for way in copies.ways for n in sizes):
            if _is_timed(way, nbytes, copies.ways) and (nbytes <= _LONG or number < _PASSES_LONG):
                taken = _timed(copies, way, nbytes, budget / _PASSES)
                samples[way].setdefault(nbytes, []).append(taken)
    return _undisturbed(samples)


def _undisturbed(samples: dict[Way, dict[int, list[float]]]) -> Times:
    return {way: {n: undisturbed(taken) for n, taken in of.items()} for way, of in samples.items()}


def _is_timed(way: Way, nbytes: int, ways: Sequence[Way]) -> bool:
    """Whether copies of this size are measured, where these are the ways to copy."""
    is_plain = way[1] == PAGEABLE and (way[0], STAGED) in ways
    return is_asked(way, nbytes) and not (is_plain and nbytes > _MOST_PLAIN)


def _timed(copies: Copies, way: Way, nbytes: int, budget: float) -> float:
    """Seconds of a copy, in one pass."""
    call, rest = partial(copies, *way, nbytes), partial(copies.rest, way)
    if nbytes >= _LONG:
        if way[0] == "download" and way[1] != PINNED and ("download", STAGED) in copies.ways:
            call()  # takes the page faults of the result
        rest()
        return once(call)
    return measure(call, budget=budget, rest=rest).seconds


# -- All equal devices at once ---------------------------------------------------------------------


def together(
    place: Place, links: dict[str, Any], budget: Budget, failures: list[Failure]
) -> dict[str, Any]:
    """The links of all equal devices at once, derived from those of the first."""
    memory = min(int(device.describe()["memory_bytes"]) for device in place.devices)
    largest = min(budget.largest_transfer, memory // 4)
    sizes = [nbytes for nbytes in _SIZES if nbytes <= largest]
    if not sizes:
        return {}
    try:
        taken = measured(Together(place.devices, sizes[-1]), sizes, is_made(links))
        return curves(links, taken) | from_peers(place.devices, sizes)
    except Exception as error:
        failures.append(Failure("links", place.name, "at once", error))
        return {}


class Together:
    """Copies of several devices at once, by a thread for each.

    Parameters
    ----------
    devices : sequence of Device
    largest : int
        Bytes of a copy.
    """

    def __init__(self, devices: Sequence[Device], largest: int) -> None:
        self._devices = devices
        self._copies: list[Copies] = []
        for device in devices:
            with device.active():
                self._copies.append(Copies(device, largest))
        self.ways = self._copies[0].ways

    def once(self, way: Way, nbytes: int) -> float:
        """Seconds until each device has done one copy, as calls do it."""

        def copy(number: int) -> None:
            with self._devices[number].active():
                self._copies[number](*way, nbytes)

        tasks = [partial(copy, number) for number in range(len(self._devices))]
        self._copies[0].rest(way)
        return once(partial(at_once.run, self._devices, tasks, nbytes))


def measured(
    copies: Together,
    sizes: Sequence[int],
    is_made: Callable[[Way, int], bool],
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Seconds of a copy on each of several devices at once.

    Parameters
    ----------
    copies : Together
    sizes : sequence of int
        Bytes, ascending; the largest are left out where they would take longer than `SECONDS`.
    is_made : callable
        ``is_made(way, nbytes)``: whether calls copy this size in this way.
    clock : callable, optional
        Seconds.
    """
    samples: dict[Way, dict[int, list[float]]] = {way: {} for way in copies.ways}
    start = clock()
    for nbytes in sizes:
        if _LARGER * (clock() - start) > SECONDS:
            break
        for way in (way for way in copies.ways if is_made(way, nbytes)):
            samples[way][nbytes] = [copies.once(way, nbytes) for _ in range(_SAMPLES)]
    return _undisturbed(samples)


def is_made(links: dict[str, Any]) -> Callable[[Way, int], bool]:
    """Whether calls copy a size in some way: pageable memory is staged from the size on from which
    that is faster, by these links."""
    profile = Profile({"name": "", "devices": {}, "links": {"": links}})
    least = {way: profile.least_staged("", way) for way in ("upload", "download")}

    def asked(way: Way, nbytes: int) -> bool:
        direction, memory = way
        return memory == PINNED or (memory == STAGED) == (nbytes >= least[direction])

    return asked


def curves(links: dict[str, Any], seconds: Times) -> dict[str, Any]:
    """Link models of the ways that are slower at once: direction -> kind of memory -> model.

    Parameters
    ----------
    links : dict
        Of one device alone, with samples.
    seconds : dict
        Of copies at once.
    """
    models: dict[str, Any] = {}
    for (direction, memory), of_way in seconds.items():
        samples = links.get(direction, {}).get(memory, {}).get("samples")
        if samples is None or not of_way:
            continue
        sizes, one = np.log(samples["bytes"]), np.log(samples["seconds"])
        lengths = np.log([*of_way])
        longer = np.log([*of_way.values()]) - np.interp(lengths, sizes, one)
        longer[longer <= log(_NOISE)] = 0.0
        if longer.any():
            model = fit_link.segments(
                samples["bytes"], np.exp(one + np.interp(sizes, lengths, longer))
            )
            model["samples"] = {"bytes": [*of_way], "times": np.exp(longer).tolist()}
            models.setdefault(direction, {})[memory] = model
    return models


def from_peers(devices: Sequence[Device], sizes: Sequence[int]) -> dict[str, Any]:
    """The link model of copies from another device, while each device makes one: "peer"; nothing
    where not all pairs have direct paths."""
    if not all(peers.trusted(*pair) for pair in combinations(devices, 2)):
        return {}
    room = []
    for device in devices:
        with device.active():
            room.append((device.allocate(sizes[-1]), device.allocate(sizes[-1])))

    def copy(number: int, nbytes: int) -> None:
        other = (number + 1) % len(devices)
        (target, _), (source, _) = room[number][0], room[other][1]
        with devices[number].active():
            devices[number].copy_from_peer(target, devices[other], source, nbytes)
            devices[number].synchronize()

    taken = []
    for nbytes in sizes:
        tasks = [partial(copy, number, nbytes) for number in range(len(devices))]
        samples = [once(partial(at_once.run, devices, tasks, nbytes)) for _ in range(1 + _SAMPLES)]
        taken.append(undisturbed(samples[1:]))
    return {"peer": {"device": fit_link.segments(sizes, taken)}}
