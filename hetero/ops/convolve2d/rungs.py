"""The rungs of convolution: kernels on the way to "direct", each taken by its name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.imports import load
from hetero.kernels.convolution.rungs import RUNGS, Shape, chosen, plan_rung, shapes
from hetero.ops import rungs
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _launch(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    direct_device = load("hetero.ops.convolve2d.direct_device")
    (image,), output, options = arguments
    taps, owner, strides = direct_device.taps_on(device, options.filter, problem)
    how = {"rung": rung, "tap_strides": strides, "card": device.card(), "shape": shape}
    planned = direct_device.launch_plan(plan_rung, problem, **how)
    buffers = {"image": image, "taps": taps, "out": output, "fillvalue": options.fillvalue}
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)
    del owner


def _blocks(rung: str, device: Device, problem: Problem) -> tuple[tuple[Shape, ...], Shape]:
    w, card, dtype = problem.options, device.card(), problem.dtype
    taps = w.filter_height, w.filter_width
    own = chosen(rung, dtype, problem.batch * w.out_height, w.out_width, taps, card)
    return shapes(rung, dtype, card), own


def register(operation: str, excludes: Callable[..., Any], work: Callable[..., Any]) -> None:
    """Add the rungs' rows for an operation."""
    for name, rung in RUNGS.items():
        registry.register_method(
            operation=operation,
            method=name,
            kinds=registry.PORTABLE,
            excludes=excludes,
            work=work,
            **rungs.fields(name, _launch, _blocks),
            rung=rung,
        )
