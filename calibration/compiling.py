"""What is compiled before anything is measured: the CPU's loops, and GPUs' kernels of products."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from hetero.calibration.measure import sampling
from hetero.calibration.worklist import WorkItem
from hetero.devices.base import Device
from hetero.host import loops
from hetero.kernels import LaunchPlan
from hetero.ops.cases import Case, SampleGrid, grid
from hetero.registry import Arguments

_LIMITS = ("kind", "name", "dialect", "traits", "target", "multiprocessors", "block_limit")
_LIMITS += ("shared_limit", "capability")


def compile_first(
    worklist: list[WorkItem], progress: Callable[[float, str], None] | None = None
) -> None:
    """Compile on all cores what cases need.

    Of a GPU these are the kernels of products, which are most; others are compiled when they are
    measured.
    """
    if any(not item.place.devices for item in worklist):
        loops.ensure(loops.every(), progress)
    for item in worklist:
        if len(item.place.devices) == 1:
            (device,) = item.place.devices
            device.compile_ahead(_kernels(device, item.cases))


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
