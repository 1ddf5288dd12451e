"""Links of devices: seconds of copies as calls make them, and models of these.

Copies on two GPUs, begun by two threads, last longer than one alone: both share the host's memory
and its threads, and one of them begins later. So all equal devices together have links, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np

from hetero.calibration import fit
from hetero.calibration.measure import measure, once, undisturbed
from hetero.calibration.sizes import Budget, Place
from hetero.devices import at_once, peers
from hetero.devices.base import Device
from hetero.host import pages
from hetero.profile import PAGEABLE, PINNED, STAGED
from hetero.registry.models import bind_link

Way = tuple[str, str]  # direction and kind of memory

_DIRECTIONS = ("upload", "download")
_LEAST_STAGED = 1 << 18  # bytes of a staged copy that is measured
_CACHED = 1 << 20  # bytes of an operand that is still in a cache when a call begins
_PERIOD = 1 << 24  # random bytes, which are repeated
_REST = 3e-4  # seconds after which a thread that helps to copy sleeps
Times = dict[Way, dict[int, float]]  # direction and kind of host memory -> bytes -> seconds

_LONG = 1 << 26  # bytes up to which sizes double; staged copies that are longer have no other way
SIZES = tuple(2**power for power in (*range(10, 27), 28))  # bytes of one device's copies
_PASSES = 2  # over all sizes, so that a burst of other load meets one once
_SIZES = tuple(at_once.LEAST << step for step in (0, 1, 2, 4))  # bytes of these, to 64 MiB
_SAMPLES = 8  # of a size
CHECKED = 1 << 24  # bytes of a copy that tells whether a device is as another one
_CHECKS, _SAME = 5, 1.25  # copies; times as long
_NOISE = 1.05  # times as long as alone: less counts as equal


class Copies:
    """Copies of any size between a device, which is active, and each kind of the host's memory.

    As in calls, downloads to pageable memory go to a new result, in reused memory
    (`hetero.host.pages`), and uploads from it come from memory that no cache holds, unless
    they are so small that a program has just made them. Pageable memory is copied by the driver
    alone, or "staged" where the device can, by threads that `rest` lets fall asleep first.

    ``largest`` is in bytes; `ways` are directions and kinds of memory that can be copied.
    """

    WAYS = tuple((way, of) for way in _DIRECTIONS for of in (PAGEABLE, PINNED))

    def __init__(self, device: Device, largest: int) -> None:
        values = np.random.default_rng(0).integers(0, 255, _PERIOD, np.uint8)
        self._device = device
        with device.active():
            is_staged = device.stages and device.ring() is not None
        self.ways = self.WAYS + tuple((way, STAGED) for way in _DIRECTIONS if is_staged)
        self._buffer, self._owner = device.allocate(largest)
        self._pinned = device.pinned(largest)
        for start in range(0, largest, _PERIOD):
            part = self._pinned[start : start + _PERIOD]
            part[:] = values[: len(part)]
        self._pageable, self._next = self._pinned.copy(), 0

    def rest(self, way: Way) -> None:
        """Let threads that help to copy fall asleep, as those of a call do while it computes."""
        if way[1] == STAGED:
            time.sleep(_REST)

    def _source(self, nbytes: int) -> np.ndarray:
        """Pageable memory, a different part each time."""
        if nbytes < _CACHED:
            return self._pageable[:nbytes]
        begin = self._next if self._next + nbytes <= len(self._pageable) else 0
        self._next = begin + nbytes
        return self._pageable[begin : begin + nbytes]

    def __call__(self, direction: str, memory: str, nbytes: int) -> None:
        """Copy ``nbytes``; direction and kind of memory are one of `ways`."""
        device = self._device
        if memory == PINNED:
            array = self._pinned[:nbytes]
        elif direction == "upload":
            array = self._source(nbytes)
        else:
            array = pages.empty((nbytes,), np.uint8)
        if memory == STAGED:
            device.ring().start(direction, array, self._buffer, 0, device.record()).wait()
        elif nbytes >= _LEAST_STAGED:
            device.enqueue(direction, array, self._buffer)
        elif direction == "upload":
            device.upload(array, self._buffer)
        else:
            device.download(self._buffer, array)


# -- One device ------------------------------------------------------------------------------------


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_copy, int(device.describe()["memory_bytes"]) // 4)
    sizes = [n for n in SIZES if n <= largest]
    models: dict[str, Any] = {"upload": {}, "download": {}}
    with device.active():
        for (direction, memory), seconds in alone(device, sizes, 3 * budget.point).items():
            models[direction][memory] = fit.segments([*seconds], [*seconds.values()])
    return models


def alone(device: Device, sizes: Sequence[int], budget: float) -> Times:
    """Seconds to move each size."""
    copies = Copies(device, sizes[-1])
    taken: Times = {way: {} for way in copies.ways}
    for _, way, nbytes in product(range(_PASSES), copies.ways, sizes):
        if _is_timed(way, nbytes, copies.ways):
            call, rest = partial(copies, *way, nbytes), partial(copies.rest, way)
            seconds = measure(call, budget=budget / _PASSES, rest=rest)
            taken[way][nbytes] = min(taken[way].get(nbytes, seconds), seconds)
    return taken


def _is_timed(way: Way, nbytes: int, ways: Sequence[Way]) -> bool:
    """Whether copies of this size are measured, where these are the ways to copy: small ones are
    never staged, and large ones always where that is a way."""
    if way[1] == STAGED:
        return nbytes >= _LEAST_STAGED
    return way[1] == PINNED or (way[0], STAGED) not in ways or nbytes <= _LONG


# -- Equal devices ---------------------------------------------------------------------------------


def of_others(devices: Sequence[Device], first: dict[str, Any], nbytes: int) -> list[Device]:
    """Equal devices of which a copy of that size takes longer, by more than a quarter, than by
    ``first``, the links of the first of them: one may lie on another bus."""
    slower = []
    for device in devices[1:]:
        with device.active():
            copies = Copies(device, nbytes)
            for direction in _DIRECTIONS:
                call = partial(copies, direction, PINNED, nbytes)
                taken = undisturbed([once(call) for _ in range(_CHECKS)][1:])
                if taken > _SAME * bind_link(first[direction][PINNED])(nbytes):
                    slower.append(device)
                    break
    return slower


# -- All equal devices at once ---------------------------------------------------------------------


def together(place: Place, links: dict[str, Any], largest: int) -> dict[str, Any]:
    """The links of all equal devices at once: those of the first, times how much longer a copy on
    each of them takes; and from one to the next."""
    memory = min(int(device.describe()["memory_bytes"]) for device in place.devices)
    sizes = [n for n in _SIZES if n <= min(largest, memory // 4)]
    if not sizes:
        return {}
    taken = at_once_seconds(place.devices, sizes[-1])
    return models_at_once(links, sizes[-1], taken) | from_peers(place.devices, sizes)


def at_once_seconds(devices: Sequence[Device], nbytes: int) -> dict[Way, float]:
    """Seconds until each device has done one copy, as calls do it, by a thread for each."""
    copies = []
    for device in devices:
        with device.active():
            copies.append(Copies(device, nbytes))

    def copy(way: Way, number: int) -> None:
        with devices[number].active():
            copies[number](*way, nbytes)

    taken = {}
    for way in copies[0].ways:
        tasks = [partial(copy, way, number) for number in range(len(devices))]
        samples = []
        for _ in range(_SAMPLES):
            copies[0].rest(way)
            samples.append(once(partial(at_once.run, devices, tasks, nbytes)))
        taken[way] = undisturbed(samples)
    return taken


def models_at_once(links: dict[str, Any], nbytes: int, seconds: dict[Way, float]) -> dict[str, Any]:
    """Link models of the ways that are slower at once: direction -> kind of memory -> model.

    ``links`` are of one device alone, ``seconds`` of copies of that size by all at once.
    """
    models: dict[str, Any] = {}
    for (direction, memory), taken in seconds.items():
        alone = links.get(direction, {}).get(memory)
        if alone is not None and (times := taken / bind_link(alone)(nbytes)) > _NOISE:
            samples = alone["samples"]
            model = fit.segments(samples["bytes"], [times * s for s in samples["seconds"]])
            model["samples"] = {"bytes": [nbytes], "times": [times]}
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
    return {"peer": {"device": fit.segments(sizes, taken)}}
