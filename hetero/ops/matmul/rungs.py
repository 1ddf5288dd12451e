"""The rungs of the matrix product: kernels on the way to "tiled", each taken by its name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hetero.kernels.matmul.rungs import RUNGS, plan_rung
from hetero.ops.products import operands
from hetero.runtime import registry
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _running(rung: str) -> Callable[..., None]:
    """``run`` of a rung's rows."""

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        (device,), (m, n, k), (a, b, c) = devices, problem.dims, problem.strides
        launch_plan = plan_rung(
            rung,
            m=m,
            n=n,
            k=k,
            batch=problem.batch,
            dtype=problem.dtype,
            a_strides=a,
            b_strides=b,
            c_strides=c,
            block_limit=device.block_limit,
        )
        buffers = dict(zip("ABC", (*arguments.inputs, arguments.output), strict=True))
        device.run_launches(launch_plan, buffers, np.dtype(problem.dtype).itemsize)

    return run


def rows(operation: str) -> list[Implementation]:
    """The rungs' rows for an operation."""
    return [
        Implementation(
            *(operation, name, kind, registry.no_obstacle, operands.gpu_work, _running(name)),
            rung=rung,
        )
        for kind in ("cuda", "opencl")
        for name, rung in RUNGS.items()
    ]
