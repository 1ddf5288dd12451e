"""The rungs of the matrix product: kernels on the way to "tiled", each taken by its name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hetero.kernels import LaunchPlan
from hetero.kernels.matmul.rungs import RUNGS, Shape, chosen, plan_rung, shapes
from hetero.ops.products import operands
from hetero.runtime import registry
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation, Shaping

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _plan(rung: str, device: Device, problem: Problem, shape: Shape | None = None) -> LaunchPlan:
    (m, n, k), (a, b, c) = problem.dims, problem.strides
    return plan_rung(
        rung,
        m=m,
        n=n,
        k=k,
        batch=problem.batch,
        dtype=problem.dtype,
        a_strides=a,
        b_strides=b,
        c_strides=c,
        card=device.card(),
        shape=shape,
    )


def _launch(device: Device, problem: Problem, arguments: Arguments, plan: LaunchPlan) -> None:
    buffers = dict(zip("ABC", (*arguments.inputs, arguments.output), strict=True))
    device.run_launches(plan, buffers, np.dtype(problem.dtype).itemsize)


def _running(rung: str) -> Callable[..., None]:
    """``run`` of a rung's rows."""

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        (device,) = devices
        _launch(device, problem, arguments, _plan(rung, device, problem))

    return run


def _shaping(rung: str) -> Callable[[Device, Problem], Shaping]:
    """``shaping`` of a rung's rows."""

    def shaping(device: Device, problem: Problem) -> Shaping:
        def run(shape: Shape, arguments: Arguments) -> None:
            _launch(device, problem, arguments, _plan(rung, device, problem, shape))

        m, n, k = problem.dims
        card, dtype = device.card(), problem.dtype
        own = chosen(rung, dtype, m * problem.batch, n, k, card)
        return Shaping(
            shapes(rung, dtype, card),
            own,
            run,
            lambda shape: _plan(rung, device, problem, shape).launches,
        )

    return shaping


def rows(operation: str) -> list[Implementation]:
    """The rungs' rows for an operation."""
    return [
        Implementation(
            *(operation, name, kind, registry.no_obstacle, operands.gpu_work, _running(name)),
            rung=rung,
            shaping=_shaping(name),
        )
        for kind in ("cuda", "opencl")
        for name, rung in RUNGS.items()
    ]
