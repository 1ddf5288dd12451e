"""Are copies predicted well? Random sizes, alone and in company, by each curve of the profile."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from hetero import devices as backends
from hetero import profile
from hetero.calibration.environment import copies, quiet_links
from hetero.calibration.environment.links_at_once import Together
from hetero.calibration.fit.fit import residuals
from hetero.devices import at_once
from hetero.errors import DeviceError
from hetero.pricing import pricing
from hetero.profile import PAGEABLE, PINNED, inventory

_LARGEST = 1 << 28  # bytes, of copies in company
_COUNT, _COUNT_IN_COMPANY = 24, 12
_SAMPLES = 3
Errors = dict[str, dict[str, float]]
Way = tuple[str, str]

log = logging.getLogger("hetero")


def verified(progress: Callable[[float, str], None] | None = None) -> dict[str, Errors]:
    """Relative errors of the link models of every device that is not the CPU itself, and of all
    equal ones at once; of those that do not fail."""
    found: dict[str, Errors] = {}
    infos = inventory.devices()
    jobs: dict[str, Callable[[], Errors]] = {
        name: lambda name=name: alone(name)
        for name in backends.proven()
        if not infos.get(name, {}).get("is_host_cpu")
    }
    for info in pricing.groups(infos).values():
        if not info.get("is_host_cpu"):
            jobs[info["constants"]] = lambda info=info: together(info["constants"], info["members"])
    for name, job in jobs.items():
        if progress is not None:
            progress(0.9, f"copies to and from {name}")
        try:
            errors = job()
        except DeviceError as error:
            log.warning("the links of %s are left out: %s", name, error)
        else:
            found |= {name: errors} if errors else {}
    return found


def alone(name: str, seed: int = 0) -> Errors:
    """Of a quiet link, at sizes from 4 KB to 1 GB."""
    device, constants = backends.get(name), profile.current()
    sizes = drawn(seed, _COUNT, 1 << 12, min(1 << 30, _room(name)))
    with device.active():
        measured = quiet_links.transfers(device, sizes, budget=0.1)
    return {
        f"{direction}, {memory}": residuals(
            [constants.curve(name, direction, memory)(n) for n in seconds], list(seconds.values())
        )
        for (direction, memory), seconds in measured.items()
        if memory in constants.data["links"].get(name, {}).get(direction, (PAGEABLE, PINNED))
    }


def together(place: str, members: Sequence[str], seed: int = 0) -> Errors:
    """Of several devices at once, "cuda*2", by the curves that the profile has for that."""
    constants = profile.current()
    kept = constants.data["links"].get(place, {})
    ways = [w for w in copies.ways(backends.get(members[0])) if w[1] in kept.get(w[0], {})]
    largest = min(_LARGEST, *map(_room, members))
    if not ways or largest <= at_once.LEAST:
        return {}
    sizes = drawn(seed, _COUNT_IN_COMPANY, at_once.LEAST, largest)
    take = Together([backends.get(name) for name in members], sizes[-1]).once
    begin, found = constants.dispatch(place, "host"), {}
    for way in ways:
        curve = constants.curve(place, *way)
        found[", ".join(way)] = _errors(take, way, sizes, lambda n, curve=curve: begin + curve(n))
    return found


def drawn(seed: int, count: int, smallest: int, largest: int) -> list[int]:
    """Random numbers of bytes, whole float64s, ascending."""
    draw = random.Random(seed)
    limits = math.log2(smallest), math.log2(largest)
    return sorted(-(-round(2.0 ** draw.uniform(*limits)) // 8) * 8 for _ in range(count))


def _room(name: str) -> int:
    return int(backends.get(name).describe()["memory_bytes"]) // 4


def _errors(
    take: Callable[[Way, int], float],
    way: Way,
    sizes: Iterable[int],
    predicted: Callable[[int], float],
) -> dict[str, float]:
    asked = [n for n in sizes if copies.is_asked(way, n)]
    measured = {n: median([take(way, n) for _ in range(_SAMPLES)]) for n in asked}
    return residuals([predicted(n) for n in measured], list(measured.values()))
