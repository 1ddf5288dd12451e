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
from collections.abc import Callable
from typing import Any

from hetero.calibration import fit, samples
from hetero.calibration.measure import wait_until_idle
from hetero.calibration.samples import Bench, Samples
from hetero.calibration.sizes import Case, Dims, grid
from hetero.errors import DeviceError
from hetero.profile.constants import is_trusted
from hetero.registry import BLAS

_AGAIN = 0.1  # of the time of all samples, and half a second at least: then none is taken again
_ALLOWED = 1.5  # times what the other samples of a case allow
# Of the cores' time: what others take is reported, or makes all samples doubtful. By half of them
# calls of the CPU took two to three times as long.
_OTHERS, _CROWDED = 0.1, 0.3
_STAT = "/proc/stat"
log = logging.getLogger("hetero")
Shares = dict[tuple[str, str, str], float]  # place, operation and method -> seconds of the host


@contextlib.contextmanager
def leaving_out(what: object) -> Any:
    """Run a block; where it fails, say that what it measures is left out, and why."""
    try:
        yield
    except Exception as error:
        text = str(error).partition("\n")[0]
        if not isinstance(error, DeviceError):
            text = f"{type(error).__name__}: {text}"
        log.warning("calibration leaves out %s: %s", what, text)


def measure(
    cases: list[Case], point: float, shares: Shares, begin: Callable[[str, str], object]
) -> tuple[list[tuple[Case, Samples]], tuple[int, int, int]]:
    """Samples of all cases that can be measured; the numbers of all, of those taken again, and of
    those that are still doubtful.

    Those that the other samples of their case contradict are taken once more at the end, since
    bursts of other load last for a while. ``point``: seconds for one sample; ``shares`` are the
    host's of a call. ``begin(stage, text)`` is called before each case.
    """
    benches: dict[str, Bench] = {}
    results: dict[Case, Samples] = {}
    before = None

    def run(case: Case, take: Callable[..., Samples], *given: Any) -> None:
        nonlocal before
        place = case.place
        if not place.devices and case.row.method != BLAS and case.row is not before:
            wait_until_idle()  # threads of BLAS spin
        before = case.row
        alone = len(place.devices) == 1  # so that its operands can be made
        with leaving_out(case), place.devices[0].active() if alone else contextlib.nullcontext():
            if place.name not in benches:
                benches[place.name] = Bench(place.devices)
            results[case] = take(case, benches[place.name], point, *given)

    start = time.perf_counter()
    for case in cases:
        row, name = case.row, case.place.name
        begin(f"{row.operation} on {name}", str(case))
        run(case, samples.take, shares.get((name, row.operation, row.method), 0.0))
    repeated, now = 0, time.perf_counter()
    end = now + max(_AGAIN * (now - start), 0.5)  # where all are contradicted the machine is busy
    for case, found in [*results.items()]:
        dims = contradicted(case, found)
        if dims and time.perf_counter() <= end:
            begin("samples taken again", f"{case}, again")
            run(case, _again, found, dims)
            repeated += len(dims)
    total = sum(len(found.seconds) + len(found.held_out) for found in results.values())
    left = sum(len(contradicted(case, found)) for case, found in results.items())
    return [*results.items()], (total, repeated, left)


def contradicted(case: Case, found: Samples) -> list[Dims]:
    """Samples that the others rule out: more work takes no less time, and n times the work at most
    n times as long.

    What a method estimates itself is measured by a device's clock, which other load does not bend.
    """
    seconds = found.seconds
    if not seconds or case.estimated:
        return []
    axes = [sorted(set(extents)) for extents in zip(*seconds, strict=True)]
    known = [seconds.get(dims, math.inf) for dims in grid(axes)]
    power = 2 if case.layout == "dense" else 1  # of a matrix's rows in the work
    with contextlib.suppress(ValueError):  # a failed clock; the fit reports it
        work = [[n**power for n in axis] for axis in axes]
        most = fit.monotone(work, known, _ALLOWED, _ALLOWED)
        pairs = zip(grid(axes), known, most, strict=True)
        return [dims for dims, took, limit in pairs if limit < took < math.inf]
    return []


def _again(case: Case, bench: Bench, point: float, found: Samples, dims: list[Dims]) -> Samples:
    """The samples with some knots measured once more: the faster ones count, since load only
    adds."""
    many = case.steps[1] if case.steps is not None else 1
    for one in dims:
        setup, seconds = samples.sample(case, one, bench, point, found.host)
        if setup + many * seconds < found.setup.get(one, 0.0) + many * found.seconds[one]:
            found.seconds[one] = seconds
            if case.steps is not None:
                found.setup[one] = setup
    return found


# -- Other load ------------------------------------------------------------------------------------


def reading() -> tuple[float, float, float]:
    """What the processors did so far, in seconds: passed, those of all processes, and of this one
    with its finished children; all processes' are not a number where the system does not say."""
    own = time.process_time() + sum(os.times()[2:4])
    try:
        with open(_STAT, "rb") as file:
            # user nice system idle iowait irq softirq steal
            ticks = [int(field) for field in file.readline().split()[1:9]]
        busy = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        busy = math.nan
    return time.perf_counter(), busy, own


def load(
    before: tuple[float, float, float], after: tuple[float, float, float], *counts: int
) -> dict[str, Any]:
    """The other load between two readings, as a profile keeps it.

    ``counts`` are the number of samples, of those measured again, and of those that others still
    contradict: all where others took too much of the cores. In the dict, ``others`` is how many
    cores other processes kept busy, on average; None where it is not known.
    """
    total, repeated, left = counts
    passed, busy, own = (now - then for then, now in zip(before, after, strict=True))
    cores = os.cpu_count() or 1
    others = max((busy - own) / max(passed, 1e-9), 0.0) if not math.isnan(busy) else None
    if others is not None and others > _CROWDED * cores:
        left = total
    return {
        "seconds": round(passed, 3),
        "cores": cores,
        "others": others if others is None else round(others, 3),
        "samples": total,
        "again": repeated,
        "left": left,
    }


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
