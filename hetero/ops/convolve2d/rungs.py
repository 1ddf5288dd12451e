"""The rungs of convolution: kernels on the way to "direct", each taken by its name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.host.compiled.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.convolution.rungs import CPU_RUNGS, RUNGS, Shape, chosen, plan_rung, shapes
from hetero.ops import rungs
from hetero.ops.convolve2d import direct_cpu
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

_EXTENSIONS = ("constant", "wrap", "symmetric")  # NumPy's names of the boundaries, by their numbers


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


def _on_cpu(loop: rungs.Loop, devices: tuple[()], problem: Problem, given: Arguments) -> None:
    """Compute by a compiled loop on the extended image, which is copied before."""
    image, options, w, out = direct_cpu.stacked(problem, given)
    below = w.out_height + w.filter_height - 1 - w.top - w.height
    right = w.out_width + w.filter_width - 1 - w.left - w.width
    how: dict[str, Any] = {"mode": _EXTENSIONS[w.code]}
    if w.boundary == "fill":
        how["constant_values"] = options.fillvalue
    taps = as_loops_take(np.ascontiguousarray(options.filter.taps, out.dtype))
    out[...] = 0.0
    for plane, result in zip(image, out, strict=True):
        extended = np.pad(plane, ((w.top, below), (w.left, right)), **how)
        loop()(np.ascontiguousarray(extended), taps, result)


def register(
    operation: str, excludes: Callable[..., Any], on_cpu: Callable[..., Any], work: Any
) -> None:
    """Add the rungs' rows for an operation; ``on_cpu`` is ``excludes`` of the CPU's."""
    row = {"operation": operation, "excludes": on_cpu, "work": work}
    rungs.register_on_cpu(operation, CPU_RUNGS, _on_cpu, **row)
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
