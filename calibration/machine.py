"""Measuring this machine: the order of all steps, up to the content of a profile."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from hetero import registry
from hetero.calibration import modelling, overheads
from hetero.calibration.measure import loop, sampling, timing
from hetero.calibration.progress import Failure, Schedule, left_out
from hetero.calibration.request import Request
from hetero.calibration.worklist import WorkItem, all_cases, chosen_devices, places_of, selected
from hetero.devices.base import Device
from hetero.host import loops
from hetero.kernels import LaunchPlan
from hetero.ops.cases import Case, SampleGrid, forget_numbers, grid
from hetero.profile import inventory
from hetero.registry import Arguments

# Planned seconds of steps other than cases, quick and in full; measured ones correct them.
_COMPILING = (3.0, 8.0)
_AGAIN = 0.1  # of the cases' seconds, for repeating samples

# What methods ask of a device to plan a launch.
_LIMITS = ("kind", "name", "is_cuda", "target", "multiprocessors", "block_limit")
_LIMITS += ("shared_limit", "capability")

log = logging.getLogger("hetero")


def measure(request: Request, progress: Callable[[float, str], None] | None) -> dict[str, Any]:
    """Measure what is requested; the content of a profile."""
    budget, operations = request.budget, registry.operations()
    before = timing.reading()
    for name, info in inventory.devices().items():
        if name in request.devices if request.devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # removes broken devices from the list below
    infos = inventory.devices()
    places = places_of(chosen_devices(request.devices, infos), infos)
    failures: list[Failure] = []
    worklist = all_cases(operations, places, budget, failures)
    if request.only:
        worklist = selected(worklist, request.only)
        places = [p for p in places if any(item.place is p for item in worklist)]
    planned = sum(item.case.seconds for item in worklist) * (1.0 + _AGAIN)
    planned += _COMPILING[not request.quick] + overheads.planned(places, request.quick)
    schedule = Schedule(progress, planned)
    schedule.begin(_COMPILING[not request.quick], "compiling")
    compile_first(worklist, lambda fraction, text: schedule.begin(0.0, text))
    costs = overheads.at_places(places, worklist, request, schedule, failures)
    try:
        measured, counts = loop.measure(worklist, budget, costs.shares, schedule.begin, failures)
    finally:
        forget_numbers()
    content = modelling.profile_of(request, costs, measured, failures)
    content["load"] = load = timing.load(before, timing.reading(), *counts)
    for line in left_out(failures):
        log.warning("calibration leaves out %s", line)
    if timing.is_loaded(load):
        meaning = "calls of the CPU may be faster than predicted"
        if not timing.is_trusted(load):
            meaning = "it cannot be trusted: calibrate again when nothing else runs"
        log.warning(
            "other work ran during the calibration: %s; %s", timing.described(load), meaning
        )
    schedule.done()
    return content


def compile_first(
    worklist: list[WorkItem], progress: Callable[[float, str], None] | None = None
) -> None:
    """Compile on all cores what cases need.

    Of a GPU these are the kernels of products, which are most; others are compiled when they are
    measured.
    """
    if any(not item.place.devices for item in worklist):
        loops.ensure(loops.every(), progress)
    for device in dict.fromkeys(d for p, _ in worklist for d in p.devices if len(p.devices) == 1):
        device.compile_ahead(_kernels(device, [c for p, c in worklist if p.devices == (device,)]))


def _kernels(device: Device, cases: Iterable[Case]) -> dict[tuple[str, Any], None]:
    """The kernels of all sizes that are measured, by methods that are given a device's limits and
    a recorder of launch plans instead of what runs them; what else they ask of it, it has not."""
    wanted: dict[tuple[str, Any], None] = {}

    def record(plan: LaunchPlan, *buffers: Any) -> None:
        wanted.update(((one.source, one.defines), None) for one in plan.launches)

    limits = {name: getattr(device, name) for name in _LIMITS}
    recorder = SimpleNamespace(run_launches=record, **limits)
    for case in cases:
        if isinstance(case.how, SampleGrid):
            between = itertools.islice(sampling.between_knots(case), case.how.held_out)
            with contextlib.suppress(Exception):  # reported when the case is measured
                for dims in (*grid(case.axes), *between):
                    case.implementation.run((recorder,), case.problem(*dims), Arguments((0, 0), 0))
    return wanted
