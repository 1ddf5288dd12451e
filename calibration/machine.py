"""Measuring this machine: the order of all steps, up to the content of a profile."""

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
from hetero.calibration.measure import loop, timing
from hetero.calibration.progress import Failure, Schedule, left_out
from hetero.calibration.request import Request
from hetero.calibration.worklist import (
    WorkItem,
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

# Planned seconds of steps other than cases, quick and in full; measured ones correct them.
_COMPILING, _THREADS = (3.0, 8.0), (0.5, 1.0)
_LOOP = 4.0 / (os.cpu_count() or 1)  # of compiling one of the CPU's loops, while others compile
_AGAIN = 0.1  # of the cases' seconds, for repeating samples

log = logging.getLogger("hetero")


def checkpoint(request: Request) -> Checkpoint:
    """The checkpoint of a calibration, with the results of an interrupted one."""

    def content_of(so_far: Checkpoint) -> dict[str, Any]:
        return modelling.profile_of(request, so_far, list(so_far.measured.values()), [])

    made = Checkpoint(request.unfinished, request.plain(), content_of)
    if not request.fresh:
        made.resume()
    return made


def measure(
    request: Request,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
    begun: compiling.Compilation | None = None,
) -> dict[str, Any]:
    """Measure what the checkpoint lacks; the content of a profile.

    ``begun`` compiles already.
    """
    try:
        return _measure(request, kept, progress, begun)
    except BaseException:  # most of all KeyboardInterrupt
        kept.write()
        raise
    finally:
        forget_numbers()


def _measure(
    request: Request,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
    begun: compiling.Compilation | None = None,
) -> dict[str, Any]:
    budget, operations = request.budget, registry.operations()
    watch = timing.Watch()
    for name, info in inventory.devices().items():
        if name in request.devices if request.devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # removes broken devices from the list below
    infos = inventory.devices()
    places = places_of(chosen_devices(request.devices, infos), infos, request.quick)
    failures: list[Failure] = []
    worklist = all_cases(operations, places, budget, failures)
    if request.only:
        worklist = selected(worklist, request.only)
        places = [p for p in places if any(item.place is p for item in worklist)]
    kept.cases = sum(len(item.cases) for item in worklist)
    schedule = _planned(worklist, places, request, kept, progress)
    blas_spin.find()  # not while something is timed
    costs = Overheads(places, worklist, request, kept, schedule, failures)
    # Compiling on the CPU does not disturb a GPU's own clock.
    at_once, own, rest = by_own_clock(worklist)
    is_own = bool(at_once or own)
    compiled = compiling.compile_ahead(worklist, request.quick, kept.kernels, is_own, begun)
    ready = _Ready(compiled, schedule, _COMPILING[not request.quick], at_once, own, costs.measure)
    try:
        measured = loop.measure(
            [*at_once, *own, *rest],
            *(budget, costs.shares, schedule.begin, failures, watch, kept, ready),
        )
    finally:
        if compiled is not None:
            compiled.stop()
    in_order = [loop.key_of(case, each.place) for each in worklist for case in each.cases]
    measured.sort(key=lambda one: in_order.index(one.key))
    if request.devices is None and not request.only:
        measured += _of_equal_devices(
            infos, places, measured, request, schedule, failures, kept, watch
        )
    content = modelling.profile_of(request, kept, measured, failures)
    schedule.begin("threads", _THREADS[not request.quick], "numbers of threads")
    for key, table in thread_counts.tables(measured, budget, failures).items():
        model = content["models"].get(str(key))
        if model is not None:  # the dict may be shared with a model derived from it
            content["models"][str(key)] = {**model, "threads": table}
    if (sleep := blas_sleep.least_work(measured)) is not None:
        content["host"]["blas_sleep"] = sleep
    content["load"] = watch.seen()
    for line in left_out(failures):
        log.warning("calibration leaves out %s", line)
    if timing.is_loaded(content["load"]):
        log.warning("other work ran during the calibration: %s", timing.described(content["load"]))
    if not timing.is_trusted(content["load"]):
        log.warning("this calibration cannot be trusted: calibrate again when nothing else runs")
    schedule.done()
    return content


class _Ready:
    """Waits for what a case needs compiled; see `hetero.calibration.ahead.compiling`.

    Parameters
    ----------
    compiled : compiling.Compilation
        None where nothing is compiled.
    schedule : Schedule
    seconds : float
        Planned for all waiting.
    at_once, own : list of WorkItem
        Timed by a device's own clock: what needs nothing compiled, and what does.
    around : callable
        Called when all is compiled: measures the overheads.
    """

    def __init__(
        self,
        compiled: compiling.Compilation | None,
        schedule: Schedule,
        seconds: float,
        at_once: list[WorkItem],
        own: list[WorkItem],
        around: Callable[[], None],
    ) -> None:
        self._compiled, self._schedule, self._around = compiled, schedule, around
        self._at_once, self._own = ({id(one) for one in some} for some in (at_once, own))
        self._seconds = seconds / (1 + len({one.place.name for one in own}))
        self._there: set[str] = set()  # places with their own kernels compiled
        self._all = False

    def __call__(self, item: WorkItem | None) -> None:
        """``item`` is the next case's, None after all."""
        compiled, begin = self._compiled, self._schedule.begin
        if compiled is not None and id(item) in self._at_once:
            compiled.look()
        elif compiled is not None and id(item) in self._own:
            name = item.place.name
            if name not in self._there:
                begin("compiling", self._seconds, f"compiling kernels of {name}")
                compiled.wait_for_own_clock(name)
                self._there.add(name)
            compiled.look()
        elif not self._all:
            if compiled is not None:
                begin("compiling", self._seconds, "compiling")
                compiled.wait(_reporting(self._schedule))
            self._all = True
            self._around()


def _reporting(schedule: Schedule) -> Callable[[int], None]:
    """A function that reports in the schedule how many of the CPU's loops are left to compile."""
    planned = False

    def tell(number: int) -> None:
        nonlocal planned
        if not planned:
            schedule.plan("loops", number * _LOOP)
        planned = True
        schedule.begin("loops", _LOOP, f"compiling the CPU's loops, {number} left")

    return tell


def _planned(
    worklist: list[WorkItem],
    places: list[Place],
    request: Request,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
) -> Schedule:
    """The schedule of all steps, without the turns that a checkpoint has."""
    full, total = not request.quick, 0.0
    schedule = Schedule(progress)
    schedule.plan("compiling", _COMPILING[full])
    schedule.plan("threads", _THREADS[full])
    overheads.plan(schedule, places, request.quick)
    for item in worklist:
        for case in item.cases:
            done = kept.turns_left(case, item.place) / turns(case)
            schedule.plan(item.place.name, case.seconds * (1.0 - done))
            total += case.seconds
    schedule.plan(loop.AGAIN, _AGAIN * total)
    return schedule


def _of_equal_devices(
    infos: dict[str, dict[str, Any]],
    places: list[Place],
    measured: list[loop.Measured],
    request: Request,
    schedule: Schedule,
    failures: list[Failure],
    kept: Checkpoint,
    watch: timing.Watch,
) -> list[loop.Measured]:
    """Samples of equal GPUs that turn out to differ from the one that was measured."""
    added: list[loop.Measured] = []
    for name, info in infos.items():
        first = next((p for p in places if p.name == info.get("same_as")), None)
        if first is None or info.get("set_aside") or not inventory.believed(name):
            continue
        second = Place(name, info, (backends.get(name),))
        schedule.begin(
            "equal devices", equal_devices.SECONDS, f"whether {name} is like {first.name}"
        )
        try:
            cases = [one.case for one in measured if one.place is first]
            difference = equal_devices.difference(first, second, cases, request.budget)
        except Exception as error:
            failures.append(Failure("confirmation", name, "", error))
            continue
        if difference is None:
            continue
        what = f"{name} is measured by itself"
        if difference.only_links:
            what = f"the links of {name} are measured by themselves"
        log.warning("%s: %s", what, difference.text)
        worklist = []
        if not difference.only_links:
            worklist = all_cases(registry.operations(), [second], request.budget, failures)
        for item in worklist:
            for case in item.cases:
                schedule.plan(name, case.seconds)
        kept.cases += sum(len(item.cases) for item in worklist)
        try:
            costs = kept.around.get(name) or around(second, worklist, request)
        except Exception as error:
            failures.append(Failure("links", name, "", error))
            continue
        kept.around[name] = costs
        shares = {(name, *key): value for key, value in costs.shares.items()}
        added += loop.measure(
            worklist, request.budget, shares, schedule.begin, failures, watch, kept
        )
    return added
