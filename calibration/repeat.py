"""The loop over all cases: what is measured, what is measured once more, and how busy other work
kept the machine.

An error costs only the models that it concerns: a warning says so, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from hetero.calibration import fit, samples
from hetero.calibration.measure import wait_until_idle
from hetero.calibration.samples import Bench, Samples
from hetero.calibration.sizes import Case, Dims, Place, WorkItem, grid
from hetero.errors import DeviceError
from hetero.profile.constants import is_trusted
from hetero.registry import BLAS
from hetero.registry.models import ModelKey

AGAIN = 0.15  # of the time of all samples, and a second at least: then none is taken again
_ALLOWED = 1.5  # times what the other samples of a case allow
# Of the cores' time: what others take is reported, or makes all samples doubtful. By half of them
# calls of the CPU took two to three times as long.
_OTHERS, _CROWDED = 0.1, 0.3
_STAT = "/proc/stat"
log = logging.getLogger("hetero")


class Measured(NamedTuple):
    """A case, the place, and its samples."""

    case: Case
    place: Place
    samples: Samples

    @property
    def key(self) -> ModelKey:
        """The key of the case's model."""
        case, row = self.case, self.case.implementation
        return ModelKey(self.place.name, row.operation, row.method, case.dtype, case.layout)


def leave_out(what: object, place: str, error: Exception) -> None:
    """Say that a part of a calibration is left out, and why."""
    text = str(error).partition("\n")[0]
    if not isinstance(error, DeviceError):
        text = f"{type(error).__name__}: {text}"
    log.warning("calibration leaves out %s on %s: %s", what, place, text)


def measure(
    worklist: list[WorkItem],
    point: float,
    shares: dict[tuple[str, str, str], float],
    schedule: Any,
) -> tuple[list[Measured], tuple[int, int, int]]:
    """Samples of all cases that can be measured; the numbers of all, of those taken again, and of
    those that are still doubtful.

    Those that the other samples of their case contradict are taken once more at the end, since
    bursts of other load last for a while. ``point``: seconds for one sample; ``shares``: place,
    operation and method -> the host's share of a call. ``schedule`` gets what is measured next, and
    for how long.
    """
    benches: dict[str, Bench] = {}
    gone: set[str] = set()

    def taken(case: Case, place: Place, take: Callable[..., Samples], *given: Any) -> Any:
        """What ``take(case, bench, point, *given)`` returns; None where that fails."""
        if place.name in gone:
            return None
        try:
            if not place.devices and case.implementation.method != BLAS:
                wait_until_idle()  # threads of BLAS spin
            alone = len(place.devices) == 1  # so that its operands can be made
            with place.devices[0].active() if alone else contextlib.nullcontext():
                if place.name not in benches:
                    benches[place.name] = Bench(place.devices)
                return take(case, benches[place.name], point, *given)
        except Exception as error:
            if _alive(place):
                leave_out(case, place.name, error)
            else:
                gone.add(place.name)
                leave_out(f"what comes after {case}", place.name, error)
            return None

    results: list[Measured] = []
    begin = time.perf_counter()
    for place, case in worklist:
        row = case.implementation
        schedule.stage(f"{row.operation} on {place.name}")
        schedule.begin(case.seconds, f"{case} on {place.name}")
        host = shares.get((place.name, row.operation, row.method), 0.0)
        found = taken(case, place, samples.take, host)
        if found is not None:
            results.append(Measured(case, place, found))
    schedule.stage("samples taken again")
    repeated = left = 0
    now = time.perf_counter()
    end = now + max(AGAIN * (now - begin), 1.0)  # where all are contradicted the machine is busy
    for number, (case, place, before) in enumerate(results):
        dims = contradicted(case, before)
        if dims and time.perf_counter() > end:
            left += len(dims)
        elif dims:
            schedule.begin(2 * point * len(dims), f"{case} on {place.name}, again")
            found = taken(case, place, _again, before, dims)
            repeated += len(dims)
            left += len(contradicted(case, found or before))
            results[number] = Measured(case, place, found or before)
    total = sum(len(one.samples.seconds) + len(one.samples.held_out) for one in results)
    return results, (total, repeated, left)


def contradicted(case: Case, found: Samples) -> list[Dims]:
    """Samples that the others rule out: more work takes no less time, and n times the work at most
    n times as long.

    What a method estimates itself is measured by a device's clock, which other load does not bend.
    """
    seconds = found.seconds
    if not seconds or case.estimated:
        return []
    axes = [sorted(set(extents)) for extents in zip(*seconds, strict=True)]
    powers = [2 if case.layout == "dense" else 1] * len(axes)
    known = [seconds.get(dims, math.inf) for dims in grid(axes)]
    with contextlib.suppress(ValueError):  # a failed clock; the fit reports it
        most = fit.monotone(axes, known, powers, _ALLOWED, _ALLOWED)
        pairs = zip(grid(axes), known, most, strict=True)
        return [dims for dims, took, limit in pairs if limit < took < math.inf]
    return []


def _again(
    case: Case, bench: Bench, point: float, found: Samples, dims: Collection[Dims]
) -> Samples:
    """Samples with some knots measured once more: the faster ones count, since load only adds."""
    seconds, setup = dict(found.seconds), dict(found.setup)
    for one in dims:
        if case.steps is None:
            taken = samples.timed(case, case.knots[one], bench, point, found.host)
            seconds[one] = min(seconds[one], taken)
            continue
        many = case.steps[1]
        start, step = samples.parts(case, one, bench, point)
        if start + many * step < setup[one] + many * seconds[one]:
            setup[one], seconds[one] = start, step
    return replace(found, seconds=seconds, setup=setup)


def _alive(place: Place) -> bool:
    """Whether the devices of a place still run a small kernel."""
    for device in place.devices:
        try:
            device.probe()
        except Exception:
            return False
    return True


# -- Other load ------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What the machine's processors did up to a time, in seconds: all processes, None where the
    system does not report it, and this one with its finished children."""

    at: float
    busy: float | None
    own: float


def reading() -> Reading:
    """What the processors did so far."""
    own = time.process_time() + sum(os.times()[2:4])
    try:
        with open(_STAT, "rb") as file:
            # user nice system idle iowait irq softirq steal
            ticks = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return Reading(time.perf_counter(), None, own)
    busy = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")
    return Reading(time.perf_counter(), busy, own)


def load(before: Reading, after: Reading, total: int, repeated: int, left: int) -> dict[str, Any]:
    """The other load between two readings, as a profile keeps it.

    ``total`` is the number of samples, ``repeated`` of those measured again, and ``left`` of those
    that others still contradict: all where others took too much of the cores. In the dict,
    ``others`` is how many cores other processes kept busy, on average; None where it is not known.
    """
    seconds, cores, others = max(after.at - before.at, 1e-9), os.cpu_count() or 1, None
    if before.busy is not None and after.busy is not None:
        busy = after.busy - before.busy - (after.own - before.own)
        others = round(max(busy / seconds, 0.0), 3)
        if others > _CROWDED * cores:
            left = total
    counts = {"samples": total, "again": repeated, "left": left}
    return {"seconds": round(seconds, 3), "cores": cores, "others": others, **counts}


def warn_if_loaded(seen: dict[str, Any]) -> None:
    """One warning where the machine was busy, or samples contradict one another, with what it
    means."""
    others = seen.get("others") or 0.0
    if seen["samples"] and (not is_trusted(seen) or others > _OTHERS * seen["cores"]):
        meaning = "calls of the CPU may be faster than predicted"
        if not is_trusted(seen):
            meaning = "it cannot be trusted: calibrate again when nothing else runs"
        log.warning("other work ran during the calibration: %s; %s", described(seen), meaning)


def described(seen: dict[str, Any]) -> str:
    """The other load as text."""
    parts = [f"{seen['again']} samples measured again"]
    if "samples" in seen:
        parts.append(f"{seen['left']} of {seen['samples']} still doubtful")
    if seen.get("others") is not None:
        others = f"other processes kept {seen['others']:.1f} of {seen['cores']} cores busy"
        parts.insert(0, others)
    return ", ".join(parts)
