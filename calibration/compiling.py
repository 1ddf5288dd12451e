"""What is compiled before anything is measured: the CPU's loops, and kernels of GPUs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

from hetero.calibration.measure import sampling
from hetero.calibration.worklist import WorkItem
from hetero.devices.base import Device
from hetero.host.compiled import loop_compiler, loops
from hetero.kernels import LaunchPlan
from hetero.ops.cases import Case, Dims, Passes, TimedSolves, grid
from hetero.registry import Arguments

_LIMITS = ("kind", "name", "dialect", "traits", "target", "multiprocessors", "block_limit")
_LIMITS += ("shared_limit", "capability")


class _Recorder:
    """Has the limits of a device, and records the kernels of launch plans instead of running them.

    What else a method may ask of a device it has not.
    """

    def __init__(self, device: Device) -> None:
        self.wanted: dict[tuple[str, Any], None] = {}
        for name in _LIMITS:
            setattr(self, name, getattr(device, name))

    def run_launches(self, launch_plan: LaunchPlan, *buffers: Any) -> None:
        self.wanted.update(((one.source, one.defines), None) for one in launch_plan.launches)


def compile_first(worklist: Iterable[WorkItem]) -> None:
    """Compile on all cores what cases need, as far as that is known without computing.

    Kernels of solves, which depend on a solve's course, are compiled when it is measured.
    """
    worklist = list(worklist)
    if any(not item.place.devices for item in worklist):
        loop_compiler.ensure(loops.every())
    for item in worklist:
        if len(item.place.devices) == 1:
            (device,) = item.place.devices
            recorder = _Recorder(device)
            for case, dims in ((c, d) for c in item.cases for d in _sizes(c)):
                with contextlib.suppress(Exception):  # reported when the case is measured
                    _record(recorder, case, dims)
            device.compile_ahead(recorder.wanted)


def _sizes(case: Case) -> list[Dims]:
    """The sizes that are measured of a case of single calls."""
    if isinstance(case.how, TimedSolves):
        return []
    if isinstance(case.how, Passes):
        return [*case.how.knots.values(), *case.how.held_out.values()]
    return [*grid(case.axes), *itertools.islice(sampling.between_knots(case), case.how.held_out)]


def _record(recorder: _Recorder, case: Case, dims: Dims) -> None:
    problem = case.problem(*dims)
    options = case.options(problem) if case.options is not None else None
    inputs = (0,) * len(problem.inputs[: case.inputs])
    case.implementation.run((recorder,), problem, Arguments(inputs, 0, options))
