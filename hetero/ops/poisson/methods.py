"""Poisson's equation: its implementations, their costs, and how many iterations they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.host.compiled.loops import Family
from hetero.imports import load
from hetero.ops.krylov.loops import STENCILS
from hetero.ops.linear_systems import grids
from hetero.ops.linear_systems.tolerances import digits
from hetero.ops.multigrid.loops import CYCLES
from hetero.ops.poisson import rungs
from hetero.ops.poisson.loops import SWEEPS
from hetero.ops.poisson.rungs import SWEEPING
from hetero.pricing import memory_limit
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.ops.linear_systems.types import Outcome

NAME = "poisson"
UNLIMITED = 10**9  # iterations, where the caller sets no limit
_CYCLE_FACTOR = {2: 0.07, 3: 0.1}  # what one multigrid cycle leaves of the residual
_LARGEST_PLANE = 1 << 18  # points
# Memory on the CPU beside f: so many times f, and of lines of the longest axis.
_TIMES_F = {"dst": 4.0, "multigrid": 4.5, "cg": 8.0, "jacobi": 7.0}
_LINES = {"dst": 40.0, "multigrid": 35.0, "cg": 0.0, "jacobi": 0.0}
_SMALL = 1 << 26  # bytes that are not asked for
_LEAST_ROWS = 16  # a device's share, at least
_SWEEPS_PER_CYCLE = 10.0  # passes over the finest grid, for profiles without measured constants


class PoissonOptions(NamedTuple):
    """What a price depends on beside f.

    Attributes
    ----------
    rtol : float
        How much smaller the residual must get.
    limit : int
        Most iterations.
    exactly : bool
        Whether as many sweeps as the limit were asked for, whatever the residual is.
    """

    rtol: float
    limit: int
    exactly: bool = False


def expected_iterations(problem: Problem, method: str) -> int:
    """Cycles, iterations or sweeps that the tolerance takes; 1 for "dst".

    Multigrid: a cycle leaves 0.07 of the residual in 2-D, 0.1 in 3-D. With s the mean over the axes
    of sin^2(pi / (2 (n + 1))), Jacobi's sweep leaves 1 - 2 s, and conjugate gradients take a
    quarter of the square root of the condition number, 1 / sqrt(s), times ln(2 / rtol), as
    `Poisson.expected_iterations`. That is for equal spacings; others are not known here, and the
    longest axis decides alone, which is the worst they can do.
    """
    logarithm = digits(problem.options.rtol, np.dtype(problem.dtype))
    if method == "dst":
        return 1
    if method == "multigrid":
        return max(1, math.ceil(logarithm / -math.log(_CYCLE_FACTOR[len(problem.dims)])))
    extents = (max(problem.dims),) if problem.layout.endswith("uneven") else problem.dims
    sines = [math.sin(math.pi / (2 * (max(n, 1) + 1))) ** 2 for n in extents]
    mean = sum(sines) / len(sines)
    if method == "cg":
        iterations = (logarithm + math.log(2.0)) / (4.0 * math.sqrt(mean))
    else:
        iterations = logarithm / (-math.log1p(-2.0 * mean) if mean < 0.5 else math.inf)
    return max(1, math.ceil(iterations))


def _iterations(problem: Problem, method: str, kind: str) -> int:
    """Iterations that will be made: what the tolerance takes, or as many as the caller allows.

    One cycle solves a grid that is no larger than the coarsest one may be.
    """
    rtol, limit, _ = problem.options
    if method == "jacobi" and rtol == 0.0 and limit < UNLIMITED:
        return max(1, limit)
    if method == "multigrid" and math.prod(problem.dims) <= grids.coarsest(kind):
        return 1
    return max(1, min(expected_iterations(problem, method), limit))


_ITERATION_NAMES = {"multigrid": "cycles", "cg": "iterations", "jacobi": "sweeps"}


def _falls_short(method: str) -> Callable[[Problem], str | None]:
    def reason(problem: Problem) -> str | None:
        iterations = expected_iterations(problem, method)
        if method == "dst" or iterations <= problem.options.limit:
            return None
        name, limit = _ITERATION_NAMES[method], problem.options.limit
        return f"takes about {iterations:.3g} {name}, {limit} are allowed"

    return reason


_LARGEST_FACTOR = 386  # from here on all prime factors cost the same
_PASSES = {"dst": 40.0, "multigrid": _SWEEPS_PER_CYCLE, "cg": 10.0, "jacobi": 3.0}


def _transform_factor(n: int, kind: str) -> float:
    """How much longer a sine transform of n points takes for the prime factors of n + 1.

    Measured: SciPy's 1.4 to 1.8 times with a prime factor of 29 to 43, 5 to 11 times beyond 250;
    cuFFT's 3.8 times beyond 127.
    """
    rest, prime, largest = n + 1, 2, 1
    while prime * prime <= rest and prime < _LARGEST_FACTOR:
        while rest % prime == 0:
            rest, largest = rest // prime, prime
        prime += 1
    largest = max(largest, rest)
    if kind == "cpu":
        return 1.0 + min(largest / 55.0, 7.0)
    return 3.8 if largest > 127 else 1.0


def _working(method: str) -> Callable[[Problem, dict[str, Any]], Work]:
    def work(problem: Problem, info: dict[str, Any]) -> Work:
        n = math.prod(problem.dims)
        if method == "dst":  # counted as points
            factors = [_transform_factor(extent, info["kind"]) for extent in problem.dims]
            n = max(round(n * sum(factors) / len(factors)), 1)
        moved = _PASSES[method] * n * np.dtype(problem.dtype).itemsize
        return Work((n,), 10.0 * n, moved, _iterations(problem, method, info["kind"]))

    return work


def _obstacle(method: str) -> Callable[[Problem, dict[str, Any]], str | None]:
    def excludes(problem: Problem, info: dict[str, Any]) -> str | None:
        if problem.options.exactly and method not in SWEEPING:
            return "does not sweep, and a number of sweeps was asked for"
        return None

    return excludes


def _no_cufft(problem: Problem, info: dict[str, Any]) -> str | None:
    here = None if info.get("elsewhere") else load("hetero.devices.cuda.cufft").obstacle()
    return _obstacle("dst")(problem, info) or here


def memory_needed(method: str, shape: tuple[int, ...], itemsize: int) -> float:
    """Bytes that a solve on the CPU takes beside f, its result included; an upper estimate."""
    return itemsize * (_TIMES_F[method] * math.prod(shape) + _LINES[method] * max(shape))


def _check_memory(method: str, f: np.ndarray) -> None:
    """MemoryError where the solve would take more than there is: before it does, not by and by."""
    needed = memory_needed(method, f.shape, f.itemsize)
    if needed < _SMALL:
        return
    cpu = load("hetero.devices.cpu")
    available = cpu.available_memory()
    if needed > available:
        raise MemoryError(
            f"solve_poisson by {method!r} takes about {needed / 2**30:.1f} GiB more for f of shape "
            f"{f.shape}, {available / 2**30:.1f} GiB are available; 'jacobi' takes least"
        )


def _on_cpu(method: str, run: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """``run`` on the CPU, with the longest axis first if the others make planes beyond the cache.

    Room is taken for several planes, and a thin grid's could be the whole of it.
    """

    def on_cpu(devices: tuple[()], problem: Problem, arguments: Arguments) -> Outcome:
        (f,), u, solve = arguments
        _check_memory(method, f)
        shape = solve.system.shape
        axis = shape.index(max(shape))
        if method == "cg" or axis == 0 or math.prod(shape[1:]) <= _LARGEST_PLANE:
            return run(devices, problem, arguments)
        order = [axis, *(a for a in range(len(shape)) if a != axis)]
        system = solve.system._replace(
            shape=tuple(shape[a] for a in order),
            spacing=tuple(solve.system.spacing[a] for a in order),
        )
        transposed, result = (np.ascontiguousarray(v.transpose(order)) for v in (f, u))
        outcome = run(
            devices, problem, Arguments((transposed,), result, solve._replace(system=system))
        )
        u.transpose(order)[...] = result
        return outcome

    return on_cpu


def _dst(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    (f,), u, solve = arguments
    if devices:
        dst_device = load("hetero.ops.poisson.dst_device")
        return dst_device.solve(
            devices[0], solve.system, f, u, dtype=problem.dtype, rtol=solve.rtol
        )
    dst_cpu = load("hetero.ops.poisson.dst_cpu")
    return dst_cpu.solve(solve.system, f, u, rtol=solve.rtol)


def _multigrid(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    (f,), u, solve = arguments
    limits = {"rtol": solve.rtol, "maxiter": solve.maxiter}
    if devices:
        multigrid_device = load("hetero.ops.multigrid.multigrid_device")
        return multigrid_device.solve(devices[0], solve.system, f, u, dtype=problem.dtype, **limits)
    multigrid_cpu = load("hetero.ops.multigrid.multigrid_cpu")
    return multigrid_cpu.solve(solve.system, f, u, **limits)


def _cg(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    """Where they end before their limit, they have met rounding."""
    LIMIT = load("hetero.ops.linear_systems.types").LIMIT
    ROUNDING = load("hetero.ops.linear_systems.types").ROUNDING
    (f,), u, solve = arguments
    vectors = [v.reshape(-1) if isinstance(v, np.ndarray) else v for v in (f, u)]
    most = min(solve.maxiter, 10 * math.prod(solve.system.shape))
    limits = {"rtol": solve.rtol, "atol": 0.0, "maxiter": most}
    if devices:
        cg_device = load("hetero.ops.krylov.cg_device")
        outcome = cg_device.solve(devices, solve.system, *vectors, dtype=problem.dtype, **limits)
    else:
        cg_cpu = load("hetero.ops.krylov.cg_cpu")
        outcome = cg_cpu.solve(solve.system, *vectors, **limits)
    if outcome.status == LIMIT and outcome.iterations < most:
        return outcome._replace(status=ROUNDING)
    return outcome


def _jacobi(devices: tuple[Device, ...], problem: Problem, arguments: Arguments) -> Outcome:
    (f,), u, solve = arguments
    limits = {"rtol": solve.rtol, "maxiter": solve.maxiter}
    if solve.exactly:
        limits |= {"rtol": None, "sweeps": solve.maxiter}
    if len(devices) == 1 and isinstance(u, np.ndarray):  # there is no room for the whole
        jacobi_stream = load("hetero.ops.poisson.jacobi_stream")
        with devices[0].active():
            room = memory_limit.room(memory_limit.of(devices[0]))
            return jacobi_stream.solve(devices[0], solve.system, f, u, room=room, **limits)
    if devices:
        jacobi_device = load("hetero.ops.poisson.jacobi_device")
        return jacobi_device.solve(devices, solve.system, f, u, dtype=problem.dtype, **limits)
    jacobi_cpu = load("hetero.ops.poisson.jacobi_cpu")
    return jacobi_cpu.solve(solve.system, f, u, **limits)


def _loops_of(family: Family) -> Callable[[Problem], tuple[str, ...]]:
    """What is compiled for a method on the CPU."""
    return lambda problem: (family.of(problem.dtype),)


def _shared(problem: Problem) -> bool:
    """Several devices need some rows each."""
    return problem.dims[0] >= 2 * _LEAST_ROWS


_COMPILED = ("loops", "numba")
registry.register_method(
    operation=NAME,
    method="dst",
    kinds=("cpu",),
    excludes=_obstacle("dst"),
    work=_working("dst"),
    run=_on_cpu("dst", _dst),
    falls_short=_falls_short("dst"),
    uses=("scipy",),
)
registry.register_method(
    operation=NAME,
    method="dst",
    kinds=("cuda",),
    excludes=_no_cufft,
    work=_working("dst"),
    run=_dst,
    falls_short=_falls_short("dst"),
    uses=("nvmath-python", "nvidia-cufft"),
)
registry.register_method(
    operation=NAME,
    method="multigrid",
    kinds=("cpu",),
    excludes=_obstacle("multigrid"),
    work=_working("multigrid"),
    run=_on_cpu("multigrid", _multigrid),
    falls_short=_falls_short("multigrid"),
    uses=_COMPILED,
    loops=_loops_of(CYCLES),
)
registry.register_method(
    operation=NAME,
    method="multigrid",
    kinds=registry.PORTABLE,
    excludes=_obstacle("multigrid"),
    work=_working("multigrid"),
    run=_multigrid,
    falls_short=_falls_short("multigrid"),
)
registry.register_method(
    operation=NAME,
    method="cg",
    kinds=("cpu",),
    excludes=_obstacle("cg"),
    work=_working("cg"),
    run=_on_cpu("cg", _cg),
    falls_short=_falls_short("cg"),
    uses=_COMPILED,
    loops=_loops_of(STENCILS),
)
registry.register_method(
    operation=NAME,
    method="cg",
    kinds=registry.PORTABLE,
    excludes=_obstacle("cg"),
    work=_working("cg"),
    run=_cg,
    falls_short=_falls_short("cg"),
    shared=_shared,
)
registry.register_method(
    operation=NAME,
    method="jacobi",
    kinds=("cpu",),
    excludes=_obstacle("jacobi"),
    work=_working("jacobi"),
    run=_on_cpu("jacobi", _jacobi),
    falls_short=_falls_short("jacobi"),
    uses=_COMPILED,
    loops=_loops_of(SWEEPS),
)
registry.register_method(
    operation=NAME,
    method="jacobi",
    kinds=registry.PORTABLE,
    excludes=_obstacle("jacobi"),
    work=_working("jacobi"),
    run=_jacobi,
    falls_short=_falls_short("jacobi"),
    shared=_shared,
    blocks=registry.WHEN_SHORT,
)
rungs.register(NAME, _obstacle, _working, _falls_short, _iterations)
