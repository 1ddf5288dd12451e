"""Links while all equal GPUs copy: the time of a copy on each, made as calls make it.

Copies on two GPUs, begun by two threads, last longer than one alone: both share the host's memory
and its threads, and one of them begins later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import log
from statistics import median
from typing import Any

import numpy as np

from hetero.calibration.environment.copies import Copies, Way
from hetero.calibration.fit import fit_link
from hetero.calibration.measure.timing import once
from hetero.calibration.progress import Failure
from hetero.devices import at_once, peers
from hetero.devices.base import Device
from hetero.ops.cases import Budget, Place
from hetero.profile import PINNED, STAGED, Profile

Times = dict[Way, dict[int, float]]  # bytes -> times
SECONDS = 2.0  # of measuring, at most
_FAR = 2.0  # times the least sample: longer ones were disturbed
_ROUNDS = 3
_SIZES = tuple(at_once.LEAST << step for step in (0, 1, 2, 4, 6))  # bytes of a copy, to 256 MiB
_SAMPLES = 4  # single copies of a size, in each round
_NOISE = 1.05  # times as long as alone: less counts as equal


class Together:
    """Copies of several devices at once, by a thread for each.

    Parameters
    ----------
    devices : sequence of Device
    largest : int
        Bytes of a copy.
    """

    def __init__(self, devices: Sequence[Device], largest: int) -> None:
        self._devices, self._largest = devices, largest
        self._copies: list[Copies] = []
        for device in devices:
            with device.active():
                self._copies.append(Copies(device, largest))
        self.ways = self._copies[0].ways

    def renew(self) -> None:
        """Allocate pageable memory anew."""
        for copies in self._copies:
            copies.renew(self._largest)

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
    """Seconds of copies of several devices at once, in rounds, each with other pageable memory.

    Parameters
    ----------
    copies : Together
    sizes : sequence of int
        Bytes, ascending; the largest are left out where all rounds of them would take longer than
        `SECONDS`.
    is_made : callable
        ``is_made(way, nbytes)``: whether calls copy this size in this way.
    clock : callable, optional
        Seconds.

    Returns
    -------
    dict
        Direction and kind of memory -> bytes -> seconds of a copy on each of them.
    """
    taken: dict[Way, dict[int, list[float]]] = {way: {} for way in copies.ways}
    start = clock()
    for number in range(_ROUNDS):
        if number:
            if (clock() - start) * (number + 1) / number > SECONDS:
                break
            copies.renew()
        for nbytes in sizes:
            before = clock()
            for way in (way for way in copies.ways if is_made(way, nbytes)):
                samples = [copies.once(way, nbytes) for _ in range(_SAMPLES)]
                taken[way].setdefault(nbytes, []).extend(samples)
            now = clock()
            larger = next((n for n in sizes if n > nbytes), nbytes)
            following = (now - before) * larger / nbytes
            if not number and (now - start + following) * 2 > SECONDS:
                sizes = [n for n in sizes if n <= nbytes]
                break
    return {way: {n: median(near(s)) for n, s in of.items()} for way, of in taken.items()}


def is_made(links: dict[str, Any]) -> Callable[[Way, int], bool]:
    """Whether calls copy a size in some way: pageable memory is staged from the size on from which
    that is faster, by these links."""
    alone = Profile({"name": "", "devices": {}, "links": {"": links}})
    least = {way: alone.least_staged("", way) for way in ("upload", "download")}

    def asked(way: Way, nbytes: int) -> bool:
        direction, memory = way
        return memory == PINNED or (memory == STAGED) == (nbytes >= least[direction])

    return asked


def times(links: dict[str, Any], seconds: Times) -> Times:
    """Ratios of the times of copies at once to those of one alone, by links with samples."""
    ratios: Times = {}
    for (direction, memory), of_way in seconds.items():
        samples = links.get(direction, {}).get(memory, {}).get("samples")
        if samples is None:
            continue
        known = np.log(samples["bytes"]), np.log(samples["seconds"])
        for nbytes, taken in of_way.items():
            ratio = taken / float(np.exp(np.interp(log(nbytes), *known)))
            ratios.setdefault((direction, memory), {})[nbytes] = ratio if ratio > _NOISE else 1.0
    return ratios


def near(samples: list[float]) -> list[float]:
    """The samples that were not disturbed."""
    return [s for s in samples if s <= _FAR * min(samples)]


def curves(links: dict[str, Any], times: Times) -> dict[str, Any]:
    """Link models of the ways that are slower at once: direction -> kind of memory -> model.

    Parameters
    ----------
    links : dict
        Of the quiet link, with samples.
    times : dict
        As `times` gives them.
    """
    models: dict[str, Any] = {}
    for (direction, memory), of_way in times.items():
        samples = links.get(direction, {}).get(memory, {}).get("samples")
        if samples is None or not of_way or all(ratio == 1.0 for ratio in of_way.values()):
            continue
        lengths = sorted(of_way)
        logs = np.interp(
            np.log(samples["bytes"]), np.log(lengths), [log(of_way[n]) for n in lengths]
        )
        model = fit_link.segments(samples["bytes"], np.multiply(samples["seconds"], np.exp(logs)))
        model["samples"] = {"bytes": lengths, "times": [of_way[n] for n in lengths]}
        models.setdefault(direction, {})[memory] = model
    return models


def together(
    place: Place, links: dict[str, Any], budget: Budget, failures: list[Failure]
) -> dict[str, Any]:
    """The links of all equal devices at once, derived from those of the first."""
    largest = _largest(place, budget)
    sizes = [nbytes for nbytes in _SIZES if nbytes <= largest]
    if not sizes:
        return {}
    try:
        taken = measured(Together(place.devices, sizes[-1]), sizes, is_made(links))
        return curves(links, times(links, taken)) | from_peers(place.devices, sizes)
    except Exception as error:
        failures.append(Failure("links", place.name, "at once", error))
        return {}


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
        taken.append(median(samples[1:]))
    return {"peer": {"device": fit_link.segments(sizes, taken)}}


def _largest(place: Place, budget: Budget) -> int:
    """Bytes of the largest copy that each device of a place has room for."""
    memory = min(int(device.describe()["memory_bytes"]) for device in place.devices)
    return min(budget.largest_transfer, memory // 4)
