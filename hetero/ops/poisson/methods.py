"""Poisson's equation: its implementations, what they cost and how many steps they are to take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.ops.linear_systems import solving
from hetero.ops.linear_systems.solving import Request
from hetero.runtime import registry
from hetero.runtime.models import Work
from hetero.runtime.problem import Problem

if TYPE_CHECKING:
    from hetero.ops.linear_systems.types import Outcome

NAME = "poisson"
UNLIMITED = 10**9  # steps, where the caller sets no limit
_CYCLE_FACTOR = {2: 0.07, 3: 0.1}  # what one multigrid cycle leaves of the residual
_LARGEST_PLANE = 1 << 18  # points
# Memory on the CPU beside f: so many times f, and of lines of the longest axis.
_TIMES_F = {"dst": 4.0, "multigrid": 4.5, "cg": 8.0, "jacobi": 7.0}
_LINES = {"dst": 40.0, "multigrid": 35.0, "cg": 0.0, "jacobi": 0.0}
_SMALL = 1 << 26  # bytes that are not asked for
_LEAST_ROWS = 16  # a device's share, at least
_SWEEPS_PER_CYCLE = 10.0  # passes over the finest grid, for profiles without measured constants


def expected_steps(problem: Problem, method: str) -> int:
    """Cycles, iterations or sweeps that the tolerance takes; 1 for "dst".

    Multigrid: a cycle leaves 0.07 of the residual in 2-D, 0.1 in 3-D. With s the mean over the axes
    of sin^2(pi / (2 (n + 1))), Jacobi's sweep leaves 1 - 2 s, and conjugate gradients take a
    quarter of the square root of the condition number, 1 / sqrt(s), times ln(2 / rtol), as
    `Poisson.expected_iterations`. That is for equal spacings; others are not known here, and the
    longest axis decides alone, which is the worst they can do.
    """
    logarithm = solving.digits(problem.rtol, np.dtype(problem.dtype))
    if method == "dst":
        return 1
    if method == "multigrid":
        return max(1, math.ceil(logarithm / -math.log(_CYCLE_FACTOR[len(problem.dims)])))
    extents = (max(problem.dims),) if problem.layout.endswith("uneven") else problem.dims
    sines = [math.sin(math.pi / (2 * (max(n, 1) + 1))) ** 2 for n in extents]
    mean = sum(sines) / len(sines)
    if method == "cg":
        steps = (logarithm + math.log(2.0)) / (4.0 * math.sqrt(mean))
    else:
        steps = logarithm / (-math.log1p(-2.0 * mean) if mean < 0.5 else math.inf)
    return max(1, math.ceil(steps))


def _steps(problem: Problem, method: str) -> int:
    """Steps that will be made: what the tolerance takes, or as many as the caller allows."""
    limit = problem.iterations
    if method == "jacobi" and problem.rtol == 0.0 and limit < UNLIMITED:
        return max(1, limit)
    return max(1, min(expected_steps(problem, method), limit))


_STEPS = {"multigrid": "cycles", "cg": "iterations", "jacobi": "sweeps"}


def _falls_short(method: str) -> Callable[[Problem], str | None]:
    def reason(problem: Problem) -> str | None:
        steps = expected_steps(problem, method)
        if method == "dst" or steps <= problem.iterations:
            return None
        return f"takes about {steps:.3g} {_STEPS[method]}, {problem.iterations} are allowed"

    return reason


_LARGEST_FACTOR = 386  # from here on all prime factors cost the same
_PASSES = {"dst": 40.0, "multigrid": _SWEEPS_PER_CYCLE, "cg": 10.0, "jacobi": 3.0}


def _transform_factor(n: int, kind: str) -> float:
    """How much longer a sine transform of n points takes for the prime factors of n + 1.

    Measured: SciPy's 1.4 to 1.8 times with a prime factor of 29 to 43, 5 to 11 times beyond 250;
    cuFFT's 2.5 times beyond 127.
    """
    rest, prime, largest = n + 1, 2, 1
    while prime * prime <= rest and prime < _LARGEST_FACTOR:
        while rest % prime == 0:
            rest, largest = rest // prime, prime
        prime += 1
    largest = max(largest, rest)
    if kind == "cpu":
        return 1.0 + min(largest / 55.0, 7.0)
    return 2.5 if largest > 127 else 1.0


def _working(method: str) -> Callable[[Problem, dict[str, Any]], Work]:
    def work(problem: Problem, info: dict[str, Any]) -> Work:
        n = math.prod(problem.dims)
        if method == "dst":  # counted as points
            factors = [_transform_factor(extent, info["kind"]) for extent in problem.dims]
            n = max(round(n * sum(factors) / len(factors)), 1)
        moved = _PASSES[method] * n * np.dtype(problem.dtype).itemsize
        return Work((n,), 10.0 * n, moved, _steps(problem, method))

    return work


def _cufft_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    from hetero.devices import cufft

    return None if info.get("elsewhere") else cufft.obstacle()


def _on_cpu(method: str) -> Callable[..., Any]:
    def run(device: None, problem: Problem, request: Request) -> Any:
        _check_memory(method, request)
        return _METHODS_CPU[method](request) if method == "cg" else _longest_first(method, request)

    return run


def memory_needed(method: str, shape: tuple[int, ...], itemsize: int) -> float:
    """Bytes that a solve on the CPU takes beside f, its result included; an upper estimate."""
    return itemsize * (_TIMES_F[method] * math.prod(shape) + _LINES[method] * max(shape))


def _check_memory(method: str, request: Request) -> None:
    """MemoryError where the solve would take more than there is: before it does, not by and by."""
    needed = memory_needed(method, request.system.shape, request.b.itemsize)
    if needed < _SMALL:
        return
    from hetero.devices import cpu

    available = cpu.available_memory()
    if needed > available:
        raise MemoryError(
            f"solve_poisson by {method!r} takes about {needed / 2**30:.1f} GiB more for f of shape "
            f"{request.b.shape}, {available / 2**30:.1f} GiB are available; 'jacobi' takes least"
        )


def _longest_first(method: str, request: Request) -> Outcome:
    """Solve with the longest axis as the first one if the others make planes beyond the cache.

    Room is taken for several planes, and a thin grid's could be the whole of it.
    """
    solve, shape = _METHODS_CPU[method], request.system.shape
    axis = shape.index(max(shape))
    if axis == 0 or math.prod(shape[1:]) <= _LARGEST_PLANE:
        return solve(request)
    order = [axis, *(a for a in range(len(shape)) if a != axis)]
    system = request.system._replace(
        shape=tuple(shape[a] for a in order),
        spacing=tuple(request.system.spacing[a] for a in order),
    )
    f, u = (np.ascontiguousarray(v.transpose(order)) for v in (request.b, request.x))
    outcome = solve(request._replace(system=system, b=f, x=u))
    request.x.transpose(order)[...] = u
    return outcome


def _dst_cpu(request: Request) -> Any:
    from hetero.ops.poisson import dst_cpu

    return dst_cpu.solve(request.system, request.b, request.x, rtol=request.rtol)


def _multigrid_cpu(request: Request) -> Any:
    from hetero.ops.multigrid import multigrid_cpu

    return multigrid_cpu.solve(
        request.system, request.b, request.x, rtol=request.rtol, maxiter=request.maxiter
    )


def _cg_cpu(request: Request) -> Any:
    from hetero.ops.krylov import cg_cpu

    outcome = cg_cpu.solve(
        request.system,
        request.b.reshape(-1),
        request.x.reshape(-1),
        rtol=request.rtol,
        atol=0.0,
        maxiter=_cg_limit(request),
    )
    return _ended(outcome, request)


def _ended(outcome: Outcome, request: Request) -> Outcome:
    """Conjugate gradients that end before their limit have met rounding."""
    from hetero.ops.linear_systems.types import LIMIT, ROUNDING

    if outcome.status == LIMIT and outcome.iterations < _cg_limit(request):
        return outcome._replace(status=ROUNDING)
    return outcome


def _cg_limit(request: Request) -> int:
    return min(request.maxiter, 10 * math.prod(request.system.shape))


def _jacobi_cpu(request: Request) -> Any:
    from hetero.ops.poisson import jacobi_cpu

    sweeps = request.maxiter if request.exactly else None
    return jacobi_cpu.solve(
        request.system,
        request.b,
        request.x,
        sweeps=sweeps,
        rtol=None if sweeps is not None else request.rtol,
        maxiter=request.maxiter,
    )


_METHODS_CPU = {
    "dst": _dst_cpu,
    "multigrid": _multigrid_cpu,
    "cg": _cg_cpu,
    "jacobi": _jacobi_cpu,
}


def _on_devices(method: str) -> Callable[..., Any]:
    def run(devices: list[Any], problem: Problem, request: Request) -> Any:
        return _METHODS_DEVICE[method](devices, request, problem.dtype)

    return run


def _dst_device(devices: list[Any], request: Request, dtype: str) -> Any:
    from hetero.ops.poisson import dst_device

    return dst_device.solve(
        devices[0], request.system, request.b, request.x, dtype=dtype, rtol=request.rtol
    )


def _multigrid_device(devices: list[Any], request: Request, dtype: str) -> Any:
    from hetero.ops.multigrid import multigrid_device

    return multigrid_device.solve(
        devices[0],
        request.system,
        request.b,
        request.x,
        dtype=dtype,
        rtol=request.rtol,
        maxiter=request.maxiter,
    )


def _cg_device(devices: list[Any], request: Request, dtype: str) -> Any:
    from hetero.ops.krylov import cg_device

    flat = [v.reshape(-1) if isinstance(v, np.ndarray) else v for v in (request.b, request.x)]
    outcome = cg_device.solve(
        devices,
        request.system,
        *flat,
        rtol=request.rtol,
        atol=0.0,
        maxiter=_cg_limit(request),
        dtype=dtype,
    )
    return _ended(outcome, request)


def _jacobi_device(devices: list[Any], request: Request, dtype: str) -> Any:
    from hetero.ops.poisson import jacobi_device

    sweeps = request.maxiter if request.exactly else None
    return jacobi_device.solve(
        devices,
        request.system,
        request.b,
        request.x,
        sweeps=sweeps,
        rtol=None if sweeps is not None else request.rtol,
        maxiter=request.maxiter,
        dtype=dtype,
    )


def _shared(problem: Problem) -> bool:
    """Several devices need some rows each."""
    return problem.dims[0] >= 2 * _LEAST_ROWS


_METHODS_DEVICE = {
    "dst": _dst_device,
    "multigrid": _multigrid_device,
    "cg": _cg_device,
    "jacobi": _jacobi_device,
}

for _method in ("dst", "multigrid", "cg", "jacobi"):
    for _kind in ("cpu", "cuda", "opencl"):
        if _kind == "opencl" and _method == "dst":
            continue
        registry.register(
            registry.Implementation(
                NAME,
                _method,
                _kind,
                _cufft_obstacle if (_kind, _method) == ("cuda", "dst") else registry.no_obstacle,
                _working(_method),
                _on_cpu(_method) if _kind == "cpu" else _on_devices(_method),
                _shared if _kind != "cpu" and _method in ("cg", "jacobi") else None,
                falls_short=_falls_short(_method),
            )
        )
