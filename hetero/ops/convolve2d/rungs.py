"""The rungs of convolution: kernels on the way to "direct", each taken by its name only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.imports import load
from hetero.kernels.convolution.rungs import RUNGS, Shape, held_taps, plan_rung
from hetero.ops import rungs
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

Excludes = Callable[[Problem, dict[str, Any]], str | None]


def _run(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    direct_device = load("hetero.ops.convolve2d.direct_device")
    (image,), output, options = arguments
    taps, owner, strides = direct_device.taps_on(device, options.filter, problem)
    how = {"rung": rung, "tap_strides": strides, "card": device.card(), "shape": shape}
    planned = direct_device.launch_plan(plan_rung, problem, **how)
    buffers = {"image": image, "taps": taps, "x": taps, "out": output}
    buffers["fillvalue"] = options.fillvalue
    rungs.run_plan(device, planned, buffers, np.dtype(problem.dtype).itemsize)
    del owner


def _sizes(problem: Problem) -> tuple[int, int, int, int]:
    w = problem.options
    return problem.batch * w.out_height, w.out_width, w.filter_height, w.filter_width


def _held(excludes: Excludes, problem: Problem, info: dict[str, Any]) -> str | None:
    """Constant memory has room for small filters."""
    reason, w = excludes(problem, info), problem.options
    if reason is None and w.filter_height * w.filter_width > (most := held_taps(problem.dtype)):
        taps = f"{w.filter_height} x {w.filter_width}"
        return f"constant memory has room for {most} taps, not {taps}; 'naive' takes any filter"
    return reason


def register(operation: str, excludes: Excludes, work: Any) -> None:
    """Add the rungs' rows for an operation."""
    both = {None: excludes, "constant": partial(_held, excludes)}
    rungs.register(RUNGS, _run, _sizes, operation=operation, excludes=both, work=work)
