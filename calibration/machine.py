"""Measuring this machine: what is done in which order, up to the content of a profile."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from hetero import devices as backends
from hetero import registry
from hetero.calibration import modelling
from hetero.calibration.ahead import compiling
from hetero.calibration.checkpoint import Checkpoint
from hetero.calibration.environment import (
    blas_sleep,
    equal_devices,
    overheads,
    thread_counts,
)
from hetero.calibration.environment.overheads import Overheads, around
from hetero.calibration.measure import loop, outliers, timing
from hetero.calibration.progress import Failure, Schedule, left_out
from hetero.calibration.request import Request
from hetero.calibration.worklist import (
    Portion,
    all_cases,
    by_own_clock,
    chosen_devices,
    places_of,
    selected,
    turns,
)
from hetero.host import blas_spin
from hetero.ops.cases import Place, forget_numbers
from hetero.profile import inventory

# Planned seconds of what is no case, quick and in full: what it takes corrects them.
_COMPILING, _THREADS = (3.0, 8.0), (0.5, 1.0)
_LOOP = 4.0 / (os.cpu_count() or 1)  # of compiling one of the CPU's loops, others beside it
_AGAIN = 0.1  # of the cases' seconds, for what is measured once more

log = logging.getLogger("hetero")


def checkpoint(wanted: Request) -> Checkpoint:
    """Where it is kept what was measured; with what an interrupted calibration left."""

    def content_of(so_far: Checkpoint) -> dict[str, Any]:
        return modelling.profile_of(wanted, so_far, list(so_far.measured.values()), [])

    made = Checkpoint(wanted.unfinished, wanted.plain(), content_of)
    if not wanted.fresh:
        made.resume()
    return made


def measure(
    wanted: Request,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
    begun: compiling.Beside | None = None,
) -> dict[str, Any]:
    """Measure what is wanted and not known yet; the content of a profile.

    ``begun`` compiles already.
    """
    try:
        return _measure(wanted, kept, progress, begun)
    except BaseException:  # most of all KeyboardInterrupt
        kept.write()
        raise
    finally:
        forget_numbers()


def _measure(
    wanted: Request,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
    begun: compiling.Beside | None = None,
) -> dict[str, Any]:
    budget, operations = wanted.budget, registry.operations()
    watch = timing.Watch()
    for name, info in inventory.devices().items():
        if name in wanted.devices if wanted.devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # or it is not in the list that follows
    infos = inventory.devices()
    places = places_of(chosen_devices(wanted.devices, infos), infos, wanted.quick)
    failures: list[Failure] = []
    portions = all_cases(operations, places, budget, failures)
    if wanted.only:
        portions = selected(portions, wanted.only)
        places = [p for p in places if any(portion.place is p for portion in portions)]
    kept.cases = sum(len(portion.cases) for portion in portions)
    schedule = _planned(portions, places, wanted, kept, progress)
    blas_spin.find()  # not while something is timed
    beside = Overheads(places, portions, wanted, kept, schedule, failures)
    # A GPU's own clock does not mind what the CPU compiles meanwhile.
    at_once, own, rest = by_own_clock(portions)
    is_own = bool(at_once or own)
    compiled = compiling.compile_ahead(portions, wanted.quick, kept.kernels, is_own, begun)
    ready = _Ready(compiled, schedule, _COMPILING[not wanted.quick], at_once, own, beside.measure)
    try:
        measured = loop.measure(
            [*at_once, *own, *rest],
            *(budget, beside.shares, schedule.begin, failures, watch, kept, ready),
        )
    finally:
        if compiled is not None:
            compiled.stop()
    in_order = [loop.key_of(case, each.place) for each in portions for case in each.cases]
    measured.sort(key=lambda one: in_order.index(one.key))
    if wanted.devices is None and not wanted.only:
        measured += _of_twins(infos, places, measured, wanted, schedule, failures, kept, watch)
    found = modelling.profile_of(wanted, kept, measured, failures)
    schedule.begin("threads", _THREADS[not wanted.quick], "numbers of threads")
    for key, table in thread_counts.tables(measured, budget, failures).items():
        model = found["models"].get(str(key))
        if model is not None:  # another one that was derived of it may be the same dict
            found["models"][str(key)] = {**model, "threads": table}
    if (sleep := blas_sleep.least_work(measured)) is not None:
        found["host"]["blas_sleep"] = sleep
    found["load"] = watch.seen()
    for line in left_out(failures):
        log.warning("calibration leaves out %s", line)
    for line in outliers.report(found["models"]):
        log.warning("calibration keeps out %s", line)
    if timing.is_loaded(found["load"]):
        log.warning("other work ran beside the calibration: %s", timing.described(found["load"]))
    if not timing.is_trusted(found["load"]):
        log.warning("this calibration cannot be trusted: calibrate again when nothing else runs")
    schedule.done()
    return found


class _Ready:
    """What is waited for before a case is measured; see `hetero.calibration.ahead.compiling`.

    Parameters
    ----------
    compiled : compiling.Beside
        None where nothing is compiled.
    schedule : Schedule
    seconds : float
        Planned, of all waiting.
    at_once, own : list of Portion
        Timed by a device's own clock: what needs nothing compiled, and what does.
    around : callable
        Called when all is compiled: measures what everything else builds on.
    """

    def __init__(
        self,
        compiled: compiling.Beside | None,
        schedule: Schedule,
        seconds: float,
        at_once: list[Portion],
        own: list[Portion],
        around: Callable[[], None],
    ) -> None:
        self._compiled, self._schedule, self._around = compiled, schedule, around
        self._at_once, self._own = ({id(one) for one in some} for some in (at_once, own))
        self._seconds = seconds / (1 + len({one.place.name for one in own}))
        self._there: set[str] = set()  # places whose own kernels are compiled
        self._all = False

    def __call__(self, portion: Portion | None) -> None:
        """``portion`` is the next case's, None after all."""
        compiled, begin = self._compiled, self._schedule.begin
        if compiled is not None and id(portion) in self._at_once:
            compiled.look()
        elif compiled is not None and id(portion) in self._own:
            name = portion.place.name
            if name not in self._there:
                begin("compiling", self._seconds, f"compiling kernels of {name}")
                compiled.wait_for_own_clock(name)
                self._there.add(name)
            compiled.look()
        elif not self._all:
            if compiled is not None:
                begin("compiling", self._seconds, "compiling")
                compiled.wait(_told_by(self._schedule))
            self._all = True
            self._around()


def _told_by(schedule: Schedule) -> Callable[[int], None]:
    """Who is told how many of the CPU's loops are not compiled yet."""
    planned = False

    def tell(number: int) -> None:
        nonlocal planned
        if not planned:
            schedule.plan("loops", number * _LOOP)
        planned = True
        schedule.begin("loops", _LOOP, f"compiling the CPU's loops, {number} yet")

    return tell


def _planned(
    portions: list[Portion],
    places: list[Place],
    wanted: Request,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
) -> Schedule:
    full, total = not wanted.quick, 0.0
    schedule = Schedule(progress)
    schedule.plan("compiling", _COMPILING[full])
    schedule.plan("threads", _THREADS[full])
    overheads.plan(schedule, places, wanted.quick)
    for portion in portions:
        for case in portion.cases:
            done = kept.turns_left(case, portion.place) / turns(case)
            schedule.plan(portion.place.name, case.seconds * (1.0 - done))
            total += case.seconds
    schedule.plan(loop.AGAIN, _AGAIN * total)
    return schedule


def _of_twins(
    infos: dict[str, dict[str, Any]],
    places: list[Place],
    measured: list[loop.Measured],
    wanted: Request,
    schedule: Schedule,
    failures: list[Failure],
    kept: Checkpoint,
    watch: timing.Watch,
) -> list[loop.Measured]:
    """Samples of those of several equal GPUs that are not like the one that was measured."""
    found: list[loop.Measured] = []
    for name, info in infos.items():
        first = next((p for p in places if p.name == info.get("same_as")), None)
        if first is None or info.get("set_aside") or not inventory.believed(name):
            continue
        twin = Place(name, info, (backends.get(name),))
        schedule.begin("twins", equal_devices.SECONDS, f"whether {name} is like {first.name}")
        try:
            cases = [one.case for one in measured if one.place is first]
            difference = equal_devices.difference(first, twin, cases, wanted.budget)
        except Exception as error:
            failures.append(Failure("confirmation", name, "", error))
            continue
        if difference is None:
            continue
        what = f"{name} is measured by itself"
        if difference.only_links:
            what = f"the links of {name} are measured by themselves"
        log.warning("%s: %s", what, difference.text)
        portions = []
        if not difference.only_links:
            portions = all_cases(registry.operations(), [twin], wanted.budget, failures)
        for portion in portions:
            for case in portion.cases:
                schedule.plan(name, case.seconds)
        kept.cases += sum(len(portion.cases) for portion in portions)
        try:
            costs = kept.around.get(name) or around(twin, portions, wanted)
        except Exception as error:
            failures.append(Failure("links", name, "", error))
            continue
        kept.around[name] = costs
        shares = {(name, *key): value for key, value in costs.shares.items()}
        found += loop.measure(
            portions, wanted.budget, shares, schedule.begin, failures, watch, kept
        )
    return found
