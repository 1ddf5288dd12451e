"""Measuring this machine: the order of all steps, up to the content of a profile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hetero import registry
from hetero.calibration import compiling, modelling
from hetero.calibration.environment import overheads
from hetero.calibration.measure import loop, timing
from hetero.calibration.progress import Failure, Schedule, left_out
from hetero.calibration.request import Request
from hetero.calibration.worklist import (
    all_cases,
    chosen_devices,
    places_of,
    selected,
)
from hetero.ops.cases import forget_numbers
from hetero.profile import inventory

# Planned seconds of steps other than cases, quick and in full; measured ones correct them.
_COMPILING = (3.0, 8.0)
_AGAIN = 0.1  # of the cases' seconds, for repeating samples

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
    planned = sum(case.seconds for item in worklist for case in item.cases) * (1.0 + _AGAIN)
    planned += _COMPILING[not request.quick] + overheads.planned(places, request.quick)
    schedule = Schedule(progress, planned)
    schedule.begin(_COMPILING[not request.quick], "compiling")
    compiling.compile_first(worklist, lambda fraction, text: schedule.begin(0.0, text))
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
