"""The rungs of convolution: kernels on the way to "direct", each taken by its name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.kernels.convolution.rungs import RUNGS, plan_rung
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _running(rung: str) -> Callable[..., None]:
    """``run`` of a rung's rows."""

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        from hetero.ops.convolve2d import direct_device

        (device,), (image,), output, options = devices, *arguments
        taps, owner, strides = direct_device.taps_on(device, options.filter, problem)
        image_strides, out_strides = problem.strides
        planned = plan_rung(
            rung,
            **direct_device.extents(problem.options),
            batch=problem.batch,
            dtype=problem.dtype,
            image_strides=image_strides,
            out_strides=out_strides,
            tap_strides=strides,
            block_limit=device.block_limit,
            shared_limit=device.shared_limit,
            card=device.card(),
        )
        buffers = {"image": image, "taps": taps, "out": output, "fillvalue": options.fillvalue}
        device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)
        del owner

    return run


def rows(operation: str, excludes: Callable[..., Any], work: Callable[..., Any]) -> list[Any]:
    """The rungs' rows for an operation."""
    return [
        Implementation(
            *(operation, name, kind, excludes, work, _running(name)),
            rung=rung,
        )
        for kind in ("cuda", "opencl")
        for name, rung in RUNGS.items()
    ]
