"""Links of devices: seconds of copies as calls make them, and models of these.

Copies on two GPUs, begun by two threads, last longer than one alone: both share the host's memory
and its threads, and one of them begins later. So all equal devices together have links, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

from hetero.calibration.environment.copies import LEAST_STAGED, Copies, Way
from hetero.calibration.fit import fit_link
from hetero.calibration.measure.timing import measure, once, undisturbed
from hetero.calibration.progress import Failure
from hetero.devices import at_once, peers
from hetero.devices.base import Device
from hetero.ops.cases import Budget, Place, axis
from hetero.profile import PINNED, STAGED
from hetero.registry.models import bind_link

Times = dict[Way, dict[int, float]]  # direction and kind of host memory -> bytes -> seconds

_LONG = 1 << 26  # bytes up to which sizes double; staged copies that are longer have no other way
SECONDS = 1.0  # of measuring copies at once, about
_SIZES = tuple(at_once.LEAST << step for step in (0, 1, 2, 4))  # bytes of these, to 64 MiB
_SAMPLES = 8  # of a size
_NOISE = 1.05  # times as long as alone: less counts as equal


# -- One device ------------------------------------------------------------------------------------


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_transfer, int(device.describe()["memory_bytes"]) // 4)
    short = axis(1024, min(largest, _LONG), 2.0)
    sizes = [*short, *axis(short[-1], largest, 4.0)[1:]]
    sizes = [size // 8 * 8 for size in sizes]  # whole float64s
    models: dict[str, Any] = {"upload": {}, "download": {}}
    for (direction, memory), seconds in alone(device, sizes, 3 * budget.point).items():
        models[direction][memory] = fit_link.segments([*seconds], [*seconds.values()])
    return models


def alone(device: Device, sizes: Sequence[int], budget: float) -> Times:
    """Seconds to move each size."""
    copies = Copies(device, sizes[-1])
    taken: Times = {way: {} for way in copies.ways}
    for way, nbytes in product(copies.ways, sizes):
        if _is_timed(way, nbytes, copies.ways):
            call, rest = partial(copies, *way, nbytes), partial(copies.rest, way)
            taken[way][nbytes] = measure(call, budget=budget, rest=rest)
    return taken


def _is_timed(way: Way, nbytes: int, ways: Sequence[Way]) -> bool:
    """Whether copies of this size are measured, where these are the ways to copy: small ones are
    never staged, and large ones always where that is a way."""
    if way[1] == STAGED:
        return nbytes >= LEAST_STAGED
    return way[1] == PINNED or (way[0], STAGED) not in ways or nbytes <= _LONG


# -- All equal devices at once ---------------------------------------------------------------------


def together(
    place: Place, links: dict[str, Any], budget: Budget, failures: list[Failure]
) -> dict[str, Any]:
    """The links of all equal devices at once: those of the first, times how much longer a copy on
    each of them takes; and from one to the next."""
    memory = min(int(device.describe()["memory_bytes"]) for device in place.devices)
    sizes = [n for n in _SIZES if n <= min(budget.largest_transfer, memory // 4)]
    if not sizes:
        return {}
    try:
        taken = at_once_seconds(place.devices, sizes[-1])
        return slower(links, sizes[-1], taken) | from_peers(place.devices, sizes)
    except Exception as error:
        failures.append(Failure("links", place.name, "at once", error))
        return {}


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


def slower(links: dict[str, Any], nbytes: int, seconds: dict[Way, float]) -> dict[str, Any]:
    """Link models of the ways that are slower at once: direction -> kind of memory -> model.

    ``links`` are of one device alone, ``seconds`` of copies of so many bytes at once.
    """
    models: dict[str, Any] = {}
    for (direction, memory), taken in seconds.items():
        alone = links.get(direction, {}).get(memory)
        if alone is not None and (times := taken / bind_link(alone)(nbytes)) > _NOISE:
            samples = alone["samples"]
            model = fit_link.segments(samples["bytes"], [times * s for s in samples["seconds"]])
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
    return {"peer": {"device": fit_link.segments(sizes, taken)}}
