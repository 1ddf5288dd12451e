"""The rungs of Jacobi's method: kernels on the way to "jacobi", each taken by its name only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero.kernels.jacobi.rungs import RUNGS
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.linear_systems.types import Outcome

SWEEPING = ("jacobi", *RUNGS)  # methods that make as many sweeps as are asked for
_MOST_ALONE = 1 << 29  # points in all sweeps that a single thread makes: about a minute


def _running(rung: str) -> Callable[..., Outcome]:
    """``run`` of a rung's rows: one sweep a pass, on one device."""

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> Outcome:
        from hetero.ops.poisson import jacobi_device

        (f,), u, solve = arguments
        limits = {"rtol": solve.rtol, "maxiter": solve.maxiter}
        if solve.exactly:
            limits |= {"rtol": None, "sweeps": solve.maxiter}
        return jacobi_device.solve(
            devices, solve.system, f, u, dtype=problem.dtype, rung=rung, **limits
        )

    return run


def rows(
    operation: str,
    obstacle: Callable[..., Any],
    working: Callable[..., Any],
    falls_short: Callable[..., Any],
    iterations: Callable[..., int],
) -> list[Implementation]:
    """The rungs' rows for an operation; the rest as for "jacobi"."""

    def too_long(problem: Problem, info: dict[str, Any]) -> str | None:
        points = math.prod(problem.dims) * iterations(problem, "jacobi", info["kind"])
        if points > _MOST_ALONE:
            return f"one thread makes up to {_MOST_ALONE} points in all sweeps, not {points}"
        return obstacle("jacobi")(problem, info)

    return [
        Implementation(
            *(operation, name, kind),
            too_long if name == "sequential" else obstacle("jacobi"),
            working("jacobi"),
            _running(name),
            falls_short=falls_short("jacobi"),
            rung=rung,
        )
        for kind in ("cuda", "opencl")
        for name, rung in RUNGS.items()
    ]
