"""What is compiled before anything is measured: the CPU's loops, and GPUs' kernels of products."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from hetero.calibration.measure import sampling
from hetero.calibration.worklist import WorkItem
from hetero.devices.base import Device
from hetero.host import loops
from hetero.kernels import LaunchPlan
from hetero.ops.cases import Case, SampleGrid, grid
from hetero.registry import Arguments

_LIMITS = ("kind", "name", "is_cuda", "target", "multiprocessors", "block_limit")
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


def compile_first(
    worklist: Iterable[WorkItem], progress: Callable[[float, str], None] | None = None
) -> None:
    """Compile on all cores what cases need.

    Of a GPU these are the kernels of products, which are most; others are compiled when they are
    measured.
    """
    worklist = list(worklist)
    if any(not item.place.devices for item in worklist):
        loops.ensure(loops.every(), progress)
    for item in worklist:
        if len(item.place.devices) == 1:
            (device,) = item.place.devices
            recorder = _Recorder(device)
            for case in item.cases:
                if isinstance(case.how, SampleGrid):
                    with contextlib.suppress(Exception):  # reported when the case is measured
                        _record(recorder, case)
            device.compile_ahead(recorder.wanted)


def _record(recorder: _Recorder, case: Case) -> None:
    """Run a case at all sizes that are measured of it."""
    between = itertools.islice(sampling.between_knots(case), case.how.held_out)
    for dims in (*grid(case.axes), *between):
        case.implementation.run((recorder,), case.problem(*dims), Arguments((0, 0), 0))
