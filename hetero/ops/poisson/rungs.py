"""The rungs of Jacobi's method: kernels on the way to "jacobi", each taken by its name only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero import registry
from hetero.imports import load
from hetero.kernels import Launch
from hetero.kernels.jacobi.plan import GridSlab
from hetero.kernels.jacobi.rungs import RUNGS, Shape, chosen, shapes, sweep_rung
from hetero.ops import rungs
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.linear_systems.types import Outcome
    from hetero.ops.poisson.jacobi_slab import Sweeper

SWEEPING = ("jacobi", *RUNGS)  # methods that make as many sweeps as are asked for
_MOST_ALONE = 1 << 29  # points in all sweeps that a single thread makes: half a minute on an H200


def sweeper(rung: str, shape: Shape | None = None) -> Sweeper:
    """What plans a sweep by a rung, with blocks of its own shape or another one."""

    def sweep(device: Device, grid: GridSlab) -> Launch:
        return sweep_rung(rung, grid, card=device.card(), shape=shape)

    return sweep


def _solve(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> Outcome:
    jacobi_device = load("hetero.ops.poisson.jacobi_device")
    (f,), u, solve = arguments
    limits = {"rtol": solve.rtol, "maxiter": solve.maxiter}
    if solve.exactly:
        limits |= {"rtol": None, "sweeps": solve.maxiter}
    dtype, sweep = problem.dtype, sweeper(rung, shape)
    return jacobi_device.solve((device,), solve.system, f, u, dtype=dtype, sweeper=sweep, **limits)


def _blocks(rung: str, device: Device, problem: Problem) -> tuple[tuple[Shape, ...], Shape]:
    card, dtype = device.card(), problem.dtype
    return shapes(rung, dtype, card), chosen(rung, dtype, card)


def register(
    operation: str,
    obstacle: Callable[..., Any],
    working: Callable[..., Any],
    falls_short: Callable[..., Any],
    iterations: Callable[..., int],
) -> None:
    """Add the rungs' rows for an operation; the rest as for "jacobi"."""

    def too_long(problem: Problem, info: dict[str, Any]) -> str | None:
        points = math.prod(problem.dims) * iterations(problem, "jacobi", info["kind"])
        if points > _MOST_ALONE:
            return f"one thread makes up to {_MOST_ALONE} points in all sweeps, not {points}"
        return obstacle("jacobi")(problem, info)

    for name, rung in RUNGS.items():
        registry.register_method(
            operation=operation,
            method=name,
            kinds=registry.PORTABLE,
            excludes=too_long if name == "sequential" else obstacle("jacobi"),
            work=working("jacobi"),
            **rungs.fields(name, _solve, _blocks),
            falls_short=falls_short("jacobi"),
            rung=rung,
        )
