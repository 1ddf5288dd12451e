"""Poisson's equation on boxes: the public function and its implementations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import planner, registry
from hetero.arrays import HOST, Spec, describe
from hetero.models import Work
from hetero.ops import solving
from hetero.ops.solving import Request
from hetero.problem import Problem, check_dims

OPERATION = "poisson"
_CYCLE_FACTOR = {2: 0.07, 3: 0.1}  # what one multigrid cycle leaves of the residual
_LEAST_ROWS = 16  # a device's share, at least
_SWEEPS_PER_CYCLE = 10.0  # passes over the finest grid, for profiles without measured constants


def solve_poisson(
    f: Any,
    *,
    spacing: float | tuple[float, ...] = 1.0,
    boundary: Any = 0.0,
    x0: Any = None,
    method: str | None = None,
    rtol: float = 1e-8,
    maxiter: int | None = None,
    device: str | None = None,
    return_info: bool = False,
) -> Any:
    """Solve -div grad u = f on a rectangle or a box with Dirichlet boundary values.

    The grid's points are the interior ones; the boundary lies one spacing outside of them. The
    equation is discretised with 5 points in 2-D and 7 in 3-D, to second order.

    Parameters
    ----------
    f : (ny, nx) or (nz, ny, nx) array
        On the host or on a device.
    spacing : float or one per axis
        Distance of neighbouring points.
    boundary : float, or a pair per axis
        Values of u on the boundary: one number for all, or for each axis (before, after), each a
        number or an array of the shape of that side (f's shape without the axis).
    x0 : array like f, optional
        Start of the iterative methods. Default: zero.
    method : {"dst", "multigrid", "cg", "jacobi"}, optional
        "dst": direct, by sine transforms. "multigrid": geometric V-cycles. "cg": conjugate
        gradients, matrix-free. "jacobi": sweeps. Default: whichever is fastest.
    rtol : float
        Done when norm(f - A u) <= rtol norm(f), f with the boundary's share. Where rounding keeps
        the residual above that (always in float32 with the default), the iteration ends there.
    maxiter : int, optional
        Most cycles, iterations or sweeps. ``rtol=0`` with "jacobi" makes exactly that many sweeps.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*" for all GPUs ("cg", "jacobi").
    return_info : bool
        Also return how it was done.

    Returns
    -------
    u : array of f's shape and kind
        float32 if f is no wider, else float64.
    info : dict, if ``return_info``
        device, method, iterations (cycles, iterations, sweeps), residual (2-norm of the true
        residual f - A u), relative_residual, converged (bool), status, plan.

    Raises
    ------
    ValueError
        For a shape that is no grid, complex f, spacing <= 0, a negative tolerance or limit.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    References
    ----------
    U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001. B. Buzbee,
    G. Golub, C. Nielson, "On direct methods for solving Poisson's equations", SIAM J. Numer.
    Anal. 7 (1970), 627-656.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> s = np.sin(np.pi * np.arange(1, 64) / 64)
    >>> u = hetero.solve_poisson(2 * np.pi**2 * np.outer(s, s), spacing=1 / 64)
    >>> bool(abs(u - np.outer(s, s)).max() < 3e-4)
    True
    """
    device, method = planner.placement(device, method)
    f = solving.array_like(f)
    limit = solving.checked_limit(maxiter, 10**9)
    found = problem(f, spacing=spacing, x0=x0, rtol=rtol, maxiter=maxiter)
    steps = _spacing(spacing, len(f.shape))
    f = _with_boundary(f, steps, boundary, np.dtype(found.dtype))
    plan = planner.plan(found, device, method)
    if 0 in f.shape:
        u = np.zeros(f.shape, found.dtype)
        return (u, {"iterations": 0, "residual": 0.0, "converged": True}) if return_info else u
    from hetero.solvers.words import CONVERGED, NOT_FINITE, Stencil

    stencil = Stencil(tuple(f.shape), steps)
    request = Request(stencil, None, None, float(rtol), 0.0, limit)
    solved = solving.execute(plan, request, f, x0, lambda request, used: request)
    outcome = solved.outcome
    if outcome.status == NOT_FINITE:
        solving.warn("solve_poisson", outcome)
    if not return_info:
        return solved.x
    return solved.x, {
        "device": solved.device,
        "method": solved.method,
        "iterations": outcome.iterations,
        "residual": outcome.residual,
        "converged": outcome.status == CONVERGED,
        "status": outcome.status,
        "plan": plan,
    }


def problem(
    f: Any,
    *,
    spacing: Any = 1.0,
    boundary: Any = 0.0,
    x0: Any = None,
    rtol: float = 1e-8,
    maxiter: int | None = None,
) -> Problem:
    """The problem of ``solve_poisson(f, ...)``, for an array or a `hetero.spec` stand-in."""
    f = solving.array_like(f)
    if len(f.shape) not in (2, 3):
        raise ValueError(f"f must have 2 or 3 dimensions, got shape {tuple(f.shape)}")
    steps = _spacing(spacing, len(f.shape))
    rtol = solving.checked_tolerance("rtol", rtol)
    limit = solving.checked_limit(maxiter, 10**9)
    inputs = {"f": describe(f)._replace(pointer=0)}
    if x0 is not None:
        x0 = solving.array_like(x0)
        if tuple(x0.shape) != tuple(f.shape):
            raise ValueError(f"x0 must have f's shape {tuple(f.shape)}, got {tuple(x0.shape)}")
        inputs["x0"] = describe(x0)._replace(pointer=0)
    dtype = solving.real_dtype(**{name: operand.dtype for name, operand in inputs.items()})
    even = max(steps) <= 1.0001 * min(steps)
    return Problem(
        OPERATION,
        tuple(f.shape),
        dtype.name,
        tuple(inputs.values()),
        solving.result_operand(tuple(f.shape), dtype, inputs["f"].location),
        layout=f"{len(f.shape)}d" if even else f"{len(f.shape)}d uneven",
        function="solve_poisson",
        device_obstacle=None if 0 not in f.shape else "nothing to solve",
        rtol=rtol,
        iterations=limit,
    )


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with NY NX or NZ NY NX points, as ``hetero explain poisson`` asks for it."""
    check_dims(OPERATION, dims, "NY NX", "NZ NY NX")
    return problem(Spec(dims, dtype, on=on))


def _spacing(spacing: Any, ndim: int) -> tuple[float, ...]:
    steps = (
        tuple(map(float, np.broadcast_to(np.asarray(spacing, float), (ndim,))))
        if (np.ndim(spacing) == 0 or np.shape(spacing) == (ndim,))
        else None
    )
    if steps is None:
        raise ValueError(f"spacing must be one number or {ndim}, got {spacing!r}")
    if not all(0.0 < h < math.inf for h in steps):
        raise ValueError(f"spacing must be positive, got {spacing!r}")
    return steps


def _with_boundary(f: Any, steps: tuple[float, ...], boundary: Any, dtype: np.dtype) -> Any:
    """F plus what the boundary's values add next to it: value / spacing**2 of its axis."""
    ndim = len(f.shape)
    if not isinstance(boundary, (tuple, list)) and np.ndim(boundary) == 0:
        sides = ((boundary, boundary),) * ndim
    else:
        sides = tuple(boundary)
        if len(sides) != ndim or any(len(pair) != 2 for pair in sides):
            raise ValueError(f"boundary must be a number or {ndim} pairs, got {boundary!r}")
    checked = []
    for axis, pair in enumerate(sides):
        face = tuple(f.shape[:axis]) + tuple(f.shape[axis + 1 :])
        for value in pair:
            value = np.asarray(value)
            if value.dtype.kind not in "fiub":
                raise ValueError(f"boundary must be real, got dtype {value.dtype}")
            if value.shape not in ((), face):
                raise ValueError(
                    f"boundary of axis {axis} must be a number or of shape {face}, "
                    f"got shape {value.shape}"
                )
            checked.append((axis, value))
    if not any(np.any(value) for _, value in checked):
        return f
    operand = describe(f)
    total = np.array(solving.on_host(f, operand, dtype))
    for number, (axis, value) in enumerate(checked):
        layer = [slice(None)] * ndim
        layer[axis] = -1 if number % 2 else 0
        if 0 not in f.shape:
            total[tuple(layer)] += value / steps[axis] ** 2
    if operand.location == HOST:
        return total
    from hetero import transfer

    made, _ = transfer.empty_like(f, operand, total.shape, dtype)
    transfer.from_host(total, made, describe(made))
    return made


def _steps(problem: Problem, method: str) -> int:
    """Cycles, iterations or sweeps to expect; spacings are taken as equal.

    Multigrid: a cycle leaves 0.07 of the residual in 2-D, 0.1 in 3-D. Conjugate gradients: a
    quarter of the square root of the condition number times ln(2 / rtol), as
    `Poisson.expected_iterations`. Jacobi: ln(1 / rtol) / -ln cos(pi / (n + 1)), n the longest axis.
    """
    longest = max(problem.dims)
    logarithm = solving.digits(problem.rtol, np.dtype(problem.dtype))
    if method == "dst":
        return 1
    if method == "multigrid":
        steps = logarithm / -math.log(_CYCLE_FACTOR[len(problem.dims)])
    elif method == "cg":
        steps = (longest + 1) / (2.0 * math.pi) * (logarithm + math.log(2.0))
    elif problem.rtol == 0.0:
        steps = problem.iterations
    else:
        # -log cos(angle), also where cos is 1
        angle = math.pi / (max(longest, 2) + 1)
        steps = logarithm / -math.log1p(-2.0 * math.sin(0.5 * angle) ** 2)
    return max(1, min(math.ceil(steps), problem.iterations))


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
        return _METHODS_CPU[method](request)

    return run


def _dst_cpu(request: Request) -> Any:
    from hetero.solvers import dst_cpu

    return dst_cpu.solve(request.system, request.b, request.x, rtol=request.rtol)


def _multigrid_cpu(request: Request) -> Any:
    from hetero.solvers import multigrid_cpu

    return multigrid_cpu.solve(
        request.system, request.b, request.x, rtol=request.rtol, maxiter=request.maxiter
    )


def _cg_cpu(request: Request) -> Any:
    from hetero.solvers import cg_cpu

    return cg_cpu.solve(
        request.system,
        request.b.reshape(-1),
        request.x.reshape(-1),
        rtol=request.rtol,
        atol=0.0,
        maxiter=min(request.maxiter, 10 * request.b.size),
    )


def _jacobi_cpu(request: Request) -> Any:
    from hetero.solvers import jacobi_cpu

    sweeps = request.maxiter if request.rtol == 0.0 else None
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
    from hetero.solvers import dst_device

    return dst_device.solve(
        devices[0], request.system, request.b, request.x, dtype=dtype, rtol=request.rtol
    )


def _multigrid_device(devices: list[Any], request: Request, dtype: str) -> Any:
    from hetero.solvers import multigrid_device

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
    from hetero.solvers import cg_device

    flat = [v.reshape(-1) if isinstance(v, np.ndarray) else v for v in (request.b, request.x)]
    return cg_device.solve(
        devices,
        request.system,
        *flat,
        rtol=request.rtol,
        atol=0.0,
        maxiter=min(request.maxiter, 10 * math.prod(request.system.shape)),
        dtype=dtype,
    )


def _jacobi_device(devices: list[Any], request: Request, dtype: str) -> Any:
    from hetero.solvers import jacobi_device

    sweeps = request.maxiter if request.rtol == 0.0 else None
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
                OPERATION,
                _method,
                _kind,
                _cufft_obstacle if (_kind, _method) == ("cuda", "dst") else registry.no_obstacle,
                _working(_method),
                _on_cpu(_method) if _kind == "cpu" else _on_devices(_method),
                _shared if _kind != "cpu" and _method in ("cg", "jacobi") else None,
            )
        )
