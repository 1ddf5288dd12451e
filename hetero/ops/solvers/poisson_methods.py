"""What solve_poisson is asked, made a problem, and the ways to solve it.

These are a row for each kind of device, with its iterations, work and memory.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import Spec, array_or_spec, dense, describe, name_of
from hetero.host import loops
from hetero.imports import load
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.solvers import multigrid as grids
from hetero.ops.solvers import systems
from hetero.ops.solvers.systems import CYCLES, SWEEPS, Outcome, Stencil, digits, real_dtype
from hetero.registry import Arguments, Problem, check_dims
from hetero.registry.models import Work

NAME = "poisson"
DST, MULTIGRID, JACOBI = "dst", "multigrid", "jacobi"
ITERATIONS = {MULTIGRID: "cycles", JACOBI: "sweeps"}
# Passes over f's memory in an iteration, for profiles without measured constants; memory on the CPU
# but for f, in times of f and in lines of the longest axis.
_PASSES = {DST: 40.0, MULTIGRID: 10.0, JACOBI: 3.0}
_MEMORY = {DST: (4.0, 40.0), MULTIGRID: (4.5, 45.0), JACOBI: (7.0, 0.0)}
DIMS = ("NY NX", "NZ NY NX")
UNLIMITED = 10**9  # iterations, where the caller sets no limit
RTOL = {"float32": float(np.finfo(np.float32).eps), "float64": 1e-8}
_LEAST_ROWS = 16  # a device's share, at least
_CYCLE_FACTOR = {2: 0.07, 3: 0.1}  # what one multigrid cycle leaves of the residual
_SMALL = 1 << 26  # bytes that are not asked for
_SERIAL = 0.25  # a thread's passes over the points besides, over its time for the transforms


class PoissonOptions(NamedTuple):
    """What a price depends on besides f."""

    rtol: float  # how much smaller the residual must get
    limit: int  # most iterations
    exactly: bool = False  # as many sweeps as the limit are wanted, whatever the residual is


def problem(
    f: Any,
    *,
    spacing: Any = 1.0,
    boundary: Any = 0.0,
    x0: Any = None,
    rtol: float | None = None,
    maxiter: int | None = None,
    method: str | None = None,
) -> Problem:
    """The problem of ``solve_poisson(f, ...)``, for an array or a `hetero.spec` stand-in."""
    f = array_or_spec(f)
    if len(f.shape) not in (2, 3):
        raise ValueError(f"f must have 2 or 3 dimensions, got shape {tuple(f.shape)}")
    distances = systems.checked_spacing(spacing, len(f.shape))
    limit = systems.checked_limit(maxiter, UNLIMITED)
    inputs = {"f": describe(f).unkept()._replace(pointer=0)}
    if x0 is not None:
        x0 = array_or_spec(x0)
        if tuple(x0.shape) != tuple(f.shape):
            raise ValueError(f"x0 must have f's shape {tuple(f.shape)}, got {tuple(x0.shape)}")
        inputs["x0"] = describe(x0).unkept()._replace(pointer=0)
        real_dtype(x0=inputs["x0"].dtype)
    dtype = real_dtype(f=inputs["f"].dtype)
    rtol = RTOL[name_of(dtype)] if rtol is None else systems.checked_tolerance("rtol", rtol)
    exactly = method == JACOBI and rtol == 0.0 and maxiter is not None
    even = max(distances) <= 1.0001 * min(distances)
    return Problem(
        NAME,
        tuple(f.shape),
        name_of(dtype),
        tuple(inputs.values()),
        dense(tuple(f.shape), dtype, inputs["f"].location),
        layout=f"{len(f.shape)}d" if even else f"{len(f.shape)}d uneven",
        function="solve_poisson",
        device_obstacle=None if 0 not in f.shape else "nothing to solve",
        options=PoissonOptions(rtol, limit, exactly),
    )


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with NY NX or NZ NY NX points, as ``hetero explain poisson`` asks for it."""
    check_dims(NAME, dims, *DIMS)
    return problem(Spec(dims, dtype, on=on))


def iterations(dims: tuple[int, ...], dtype: str) -> dict[str, registry.Iteration]:
    """See `registry.Operation`. A pass of sweeps gets as many rows; on a device are f and two u."""
    if len(dims) == 3:
        return {}
    grid = plan_jacobi.GridSlab.of((dims[0], dims[-1]), (1.0, 1.0), dtype)
    depth = plan_jacobi.default_depth(grid)
    return {"jacobi": registry.Iteration(grid.row_bytes, 3, depth, depth, depth)}


# -- The methods: their modules have ``solve(devices, asked, f, u, dtype)`` ------------------------


def expected_iterations(method: str, problem: Problem) -> int:
    """Cycles or sweeps that the tolerance takes; 1 of a direct method.

    A cycle leaves 0.07 of the residual in 2-D, 0.1 in 3-D. A sweep leaves 1 - 2 s, where s is the
    mean over the axes of sin^2(pi / (2 (n + 1))). That is for equal spacings; others are not known
    here, and the longest axis decides alone, which is the worst they can do.
    """
    if method == DST:
        return 1
    each = -math.log(_CYCLE_FACTOR[len(problem.dims)])
    if method == JACOBI:
        extents = (max(problem.dims),) if problem.layout.endswith("uneven") else problem.dims
        least, _ = Stencil(extents, (2.0,) * len(extents)).eigenvalue_bounds()  # weights of 1
        mean = least / len(extents)
        each = -math.log1p(-2.0 * mean) if mean < 0.5 else math.inf
    return max(1, math.ceil(digits(problem.options.rtol, np.dtype(problem.dtype)) / each))


def _made(method: str, problem: Problem, kind: str) -> int:
    """Iterations that will be made: what the tolerance takes, or as many as are allowed."""
    rtol, limit, _ = problem.options
    if method == JACOBI and rtol == 0.0 and limit < UNLIMITED:
        return max(1, limit)
    if method == MULTIGRID and math.prod(problem.dims) <= grids.coarsest(kind):
        return 1
    return max(1, min(expected_iterations(method, problem), limit))


def _work(method: str, problem: Problem, info: dict[str, Any]) -> Work:
    """See `registry.Implementation`; a direct method's points count by what their axes cost.

    On the CPU only the transforms are shared by the cores: the more there are, the less does their
    length matter. Of few points one core makes them.
    """
    n, kind = math.prod(problem.dims), info["kind"]
    if method == DST:
        axes, dst = problem.dims[kind == "cpu" :], load("hetero.ops.solvers.dst")
        by_matrices = kind == "cpu" and dst.is_by_matrices(problem.dims, problem.dtype)
        costs = [1.0 if by_matrices else systems.transform_cost(n, kind) for n in axes]
        more = sum(costs) / len(axes) - 1.0
        cores = info.get("cores", 1)
        if kind == "cpu" and systems.by_threads(n, cores):
            more /= 1.0 + _SERIAL * cores
        n = max(round(n * (1.0 + more)), 1)
    moved = _PASSES[method] * n * np.dtype(problem.dtype).itemsize
    return Work((n,), 10.0 * n, moved, _made(method, problem, kind))


def _excludes(method: str, problem: Problem, info: dict[str, Any]) -> str | None:
    """See `registry.Implementation`."""
    if method == DST and info["kind"] == "cuda" and not info.get("elsewhere"):
        obstacle = load("hetero.devices.cuda.libraries").cufft_obstacle()
        if obstacle is not None:
            return obstacle
    if info["kind"] != "cpu" and method == JACOBI and len(problem.dims) == 3:
        return "sweeps on the CPU alone in three dimensions"
    if problem.options.exactly and method != JACOBI:
        return "does not sweep, and a number of sweeps was asked for"
    wanted, limit = expected_iterations(method, problem), problem.options.limit
    if method == DST or wanted <= limit:
        return None
    return registry.Unasked(f"takes about {wanted:.3g} {ITERATIONS[method]}, {limit} are allowed")


def _run(method: str, devices: Any, problem: Problem, arguments: Arguments) -> Outcome:
    """Solve; MemoryError before that takes more memory on the CPU than there is, not in it."""
    (f,), u, asked = arguments
    if not devices:
        times_f, lines = _MEMORY[method]
        needed = f.itemsize * (times_f * f.size + lines * max(f.shape))
        if needed > _SMALL and needed > (free := load("hetero.host.cpu").available_memory()):
            raise MemoryError(
                f"solve_poisson by {method!r} takes about {needed / 2**30:.1f} GiB more for f of "
                f"shape {f.shape}, {free / 2**30:.1f} GiB are available; 'jacobi' takes least"
            )
        if asked.from_zero and method in ITERATIONS:
            u[...] = 0.0
    name = "multigrid_device" if devices and method == MULTIGRID else method
    return load(f"hetero.ops.solvers.{name}").solve(devices, asked, f, u, problem.dtype)


def _row(method: str, *kinds: str, **row: Any) -> None:
    for name, function in (("work", _work), ("excludes", _excludes), ("run", _run)):
        row[name] = functools.partial(function, method)
    registry.register_method(operation=NAME, kinds=kinds, method=method, **row)


_row(DST, "cpu", "cuda")
_row(MULTIGRID, "cpu", loops=lambda problem: (loops.named(CYCLES, problem.dtype),))
# Several devices divide the grid, or each needs some rows.
_row(MULTIGRID, *registry.PORTABLE, shared=lambda problem: grids.is_shared(problem.dims))
_row(JACOBI, "cpu", loops=lambda problem: (loops.named(SWEEPS, problem.dtype),))
_row(JACOBI, *registry.PORTABLE, shared=lambda problem: problem.dims[0] >= 2 * _LEAST_ROWS)
