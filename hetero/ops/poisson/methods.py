"""The ways to solve Poisson's equation: what they have in common, and a row for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.host.loops import Family, register
from hetero.imports import load
from hetero.ops.linear_systems.loops import CYCLES
from hetero.ops.linear_systems.types import Stencil
from hetero.ops.multigrid import grids
from hetero.ops.poisson import costs
from hetero.ops.poisson.costs import Method
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.linear_systems.types import Outcome

_LEAST_ROWS = 16  # a device's share, at least
SWEEPS = register(Family("sweeps", 3.0, f"{__name__}:sweeps"))


def sweeps(dtype: np.dtype) -> None:
    """Call every compiled loop of Jacobi's method."""
    solve, f = load("hetero.ops.poisson.jacobi").solve, np.ones((40, 40), dtype)
    solve((), Stencil(f.shape, (1.0, 1.0)), f, np.zeros_like(f), rtol=1e-3, maxiter=20)


def _dst(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    (f,), u, solve = arguments
    if devices:
        on_device = load("hetero.ops.poisson.dst_device").solve
        return on_device(devices[0], solve.system, f, u, dtype=problem.dtype, rtol=solve.rtol)
    asked = {"rtol": solve.rtol, "lenient": solve.lenient, "measured": solve.measured}
    return load("hetero.ops.poisson.dst_cpu").solve(solve.system, f, u, **asked)


def _multigrid(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    (f,), u, solve = arguments
    limits = {"rtol": solve.rtol, "maxiter": solve.maxiter}
    if not devices:
        return load("hetero.ops.multigrid.multigrid_cpu").solve(solve.system, f, u, **limits)
    limits |= {"dtype": problem.dtype, "from_zero": solve.from_zero}
    on_devices = load("hetero.ops.multigrid.multigrid_device").solve
    return on_devices(devices, solve.system, f, u, **limits)


def _jacobi(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    (f,), u, solve = arguments
    limits = {"rtol": solve.rtol, "maxiter": solve.maxiter}
    if solve.exactly:
        limits["sweeps"] = solve.maxiter
    sweeping = load("hetero.ops.poisson.jacobi").solve
    here = {"dtype": problem.dtype, "from_zero": solve.from_zero}
    return sweeping(devices, solve.system, f, u, **here, **limits)


def _no_cufft(problem: Problem, info: dict[str, Any]) -> str | None:
    here = None if info.get("elsewhere") else load("hetero.devices.cuda.cufft").obstacle()
    return DST.excludes(problem, info) or here


def _solid(problem: Problem, info: dict[str, Any]) -> str | None:
    reason = "sweeps on the CPU alone in three dimensions" if len(problem.dims) == 3 else None
    return reason or JACOBI.excludes(problem, info)


def _shared(problem: Problem) -> bool:
    """Several devices need some rows each."""
    return problem.dims[0] >= 2 * _LEAST_ROWS


DST = Method(
    name="dst",
    solve=_dst,
    expected=lambda problem: 1,
    passes=40.0,
    times_f=4.0,
    lines=40.0,
    cost=costs.transform_cost,
)
DST.register(kinds=("cpu",), run=DST.on_cpu)
DST.register(kinds=("cuda",), run=_dst, excludes=_no_cufft)

MULTIGRID = Method(
    name="multigrid",
    solve=_multigrid,
    expected=costs.cycles,
    iterations="cycles",
    passes=10.0,
    times_f=4.5,
    lines=35.0,
    coarsest=grids.coarsest,
)
MULTIGRID.register(
    kinds=("cpu",),
    run=MULTIGRID.on_cpu,
    loops=lambda problem: (CYCLES.of(problem.dtype),),
)
MULTIGRID.register(
    kinds=registry.PORTABLE,
    run=_multigrid,
    shared=lambda problem: grids.is_shared(problem.dims),
)

JACOBI = Method(
    name="jacobi",
    solve=_jacobi,
    expected=costs.sweeps,
    iterations="sweeps",
    passes=3.0,
    times_f=7.0,
)
JACOBI.register(
    kinds=("cpu",),
    run=JACOBI.on_cpu,
    loops=lambda problem: (SWEEPS.of(problem.dtype),),
)
JACOBI.register(kinds=registry.PORTABLE, run=_jacobi, shared=_shared, excludes=_solid)

BY_NAME = {method.name: method for method in (DST, MULTIGRID, JACOBI)}
