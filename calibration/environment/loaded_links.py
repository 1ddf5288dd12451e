"""Links in company: right after a product of the CPU.

Copies are timed in turn alone and so, in rounds, and what is kept is how many times as long one
takes then. Multiplied with the curve of the quiet link that gives another curve, which keeps its
steps. Sizes and ways that differ by no more than noise are left as they are.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from hetero.calibration.environment.copies import Copies, Way, is_asked
from hetero.calibration.failures import Failure
from hetero.calibration.fit import fit_link
from hetero.devices.base import Device
from hetero.host import blas_spin
from hetero.ops.cases import Budget, Place
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import blas_use
from hetero.registry.blas_use import BESIDE_BLAS

SECONDS = 2.0  # that measuring each takes, about and at most
_ROUNDS = 3
_LARGEST = 1 << 28  # bytes
_RATIO = 4  # of neighbouring sizes
_SMALLEST = 1 << 12
_LONG = 1 << 26  # bytes, whose copy is timed once in a round
_FEW = 3  # how often others are
_LEAST = 0.05  # by which two times must differ
_FAR = 2.0  # times the least sample: what takes longer met something else
_PRODUCT = 600  # rows and columns

Times = dict[Way, dict[int, float]]  # bytes -> times
Take = Callable[[Way, int], float]


def beside_blas(device: Device, largest: int) -> Times:
    """How many times as long copies take right after a product by NumPy, whose threads still spin.

    Empty where they don't: hetero has them sleep while it works, or there is only one.
    """
    threads = inventory.devices()[CPU].get("blas_threads", 1)
    if threads < 2 or blas_spin.is_cut():
        return {}
    lengths = sizes(largest, _SMALLEST)
    with device.active():
        copies = Copies(device, lengths[0])
        return compared(
            partial(rested, copies),
            after_product(copies),
            lengths,
            lambda: time.sleep(blas_use.SPINS),
            ways=copies.ways,
        )


def timed(copies: Copies, way: Way, nbytes: int) -> float:
    """Seconds of a copy."""
    return _seconds(partial(copies, *way, nbytes))


def rested(copies: Copies, way: Way, nbytes: int) -> float:
    """Seconds of a copy after nothing."""
    copies.rest(way)
    return timed(copies, way, nbytes)


def after_product(copies: Copies) -> Take:
    """Times a copy right after a product by NumPy."""
    a = np.ones((_PRODUCT, _PRODUCT), np.float32)

    def take(way: Way, nbytes: int) -> float:
        _ = a @ a
        return timed(copies, way, nbytes)

    return take


def after_products(
    places: Iterable[Place], budget: Budget, failures: list[Failure]
) -> dict[str, Times]:
    """`beside_blas` of each place that is one device: name -> times."""
    found = {}
    for place in places:
        if len(place.devices) == 1:
            try:
                found[place.name] = beside_blas(place.devices[0], largest(place, budget))
            except Exception as error:
                failures.append(Failure("links", place.name, "after products", error))
    return found


def largest(place: Place, budget: Budget) -> int:
    """Bytes of the largest copy that each device of a place has room for."""
    memory = min(int(device.describe()["memory_bytes"]) for device in place.devices)
    return min(budget.largest_transfer, memory // 4)


def sizes(largest: int, smallest: int) -> list[int]:
    """Bytes to copy, the largest first."""
    found = [min(largest, _LARGEST)]
    while found[-1] // _RATIO >= smallest:
        found.append(found[-1] // _RATIO)
    return found


def compared(
    quiet: Take,
    loaded: Take,
    lengths: Sequence[int],
    rest: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    ways: Sequence[Way] = Copies.WAYS,
) -> Times:
    """How many times as long the second takes as the first one; 1 where that is noise.

    Parameters
    ----------
    quiet, loaded : callable
        Seconds of a copy, of a way and a number of bytes.
    lengths : sequence of int
        Bytes; the largest are left out where two rounds of them take longer than `SECONDS`.
    rest : callable, optional
        Called before copies are timed alone.
    clock : callable, optional
        Seconds.
    ways : sequence
        As `Copies.ways`.
    """
    samples: dict[tuple[Any, int], tuple[list[float], list[float]]] = {}
    begin, lengths = clock(), sorted(lengths)
    for number in range(_ROUNDS):
        if number > 1 and (clock() - begin) * (number + 1) / number > SECONDS:
            break
        for which, take in enumerate((quiet, loaded)):
            if not which:
                rest()
            before = clock()
            start = begin if which else before
            for position, nbytes in enumerate(lengths):
                for way in (way for way in ways if is_asked(way, nbytes)):
                    found = samples.setdefault((way, nbytes), ([], []))[which]
                    found.extend(take(way, nbytes) for _ in range(1 if nbytes >= _LONG else _FEW))
                now = clock()
                following = _RATIO * (now - before)  # seconds of the next size
                phases = 2 if which else 4  # of two rounds, as long as these
                if not number and phases * (now - start + following) > SECONDS:
                    lengths = lengths[: position + 1]
                    break
                before = now
    found: Times = {way: {} for way in ways}
    for (way, nbytes), taken in samples.items():
        if nbytes in lengths:
            found[way][nbytes] = _times(*taken)
    return found


def _times(quiet: list[float], loaded: list[float]) -> float:
    """The ratio of two times; 1 where they do not differ by more than their samples do."""
    ranges = [np.percentile(near(samples), (10, 90)) for samples in (quiet, loaded)]
    middles = [median(near(samples)) for samples in (quiet, loaded)]
    ratio = middles[1] / middles[0]
    apart = ranges[1][0] > ranges[0][1] or ranges[1][1] < ranges[0][0]
    return ratio if apart and abs(math.log(ratio)) > _LEAST else 1.0


def near(samples: list[float]) -> list[float]:
    """Those that met nothing else."""
    return [s for s in samples if s <= _FAR * min(samples)]


def curves(links: dict[str, Any], times: Times) -> dict[str, Any]:
    """Link models of those ways of which some size differs: direction -> kind of memory -> model.

    Parameters
    ----------
    links : dict
        Of the quiet link, with samples.
    times : dict
        As `compared` gives them.
    """
    found: dict[str, Any] = {}
    for (direction, memory), of_way in times.items():
        samples = links.get(direction, {}).get(memory, {}).get("samples")
        if samples is None or not of_way or all(ratio == 1.0 for ratio in of_way.values()):
            continue
        lengths = sorted(of_way)
        logs = np.interp(
            np.log(samples["bytes"]), np.log(lengths), [math.log(of_way[n]) for n in lengths]
        )
        model = fit_link.segments(samples["bytes"], np.multiply(samples["seconds"], np.exp(logs)))
        model["samples"] = {"bytes": lengths, "times": [of_way[n] for n in lengths]}
        found.setdefault(direction, {})[memory] = model
    return found


def beside(links: dict[str, Any], times: Times) -> dict[str, Any]:
    """The links of a device with the curves that hold right after a product of the CPU."""
    found = copy.copy(links)
    for direction, kinds in curves(links, times).items():
        found[direction] = found[direction] | {
            f"{memory} {BESIDE_BLAS}": model for memory, model in kinds.items()
        }
    return found


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
