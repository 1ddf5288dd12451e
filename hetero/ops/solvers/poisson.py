"""Poisson's equation on boxes: the public function, and the equation of one call.

That is f with the boundary's share, in its own units or in others: where the spacing, f or the
boundary's values are so large or small that squares or quotients of them overflow or vanish, the
units are powers of two, which change no digit: A' v = g with spacing' = spacing / 2^e,
g = f 2^(2 e - k) and u = v 2^k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np

from hetero import registry
from hetero.arrays import HOST, Array, array_or_spec, describe
from hetero.calling import planner
from hetero.host import loops
from hetero.imports import load
from hetero.ops.solvers import poisson_methods as methods
from hetero.ops.solvers import systems
from hetero.ops.solvers.poisson_methods import JACOBI, NAME, UNLIMITED, from_dims, problem
from hetero.ops.solvers.systems import Outcome, Solve, Stencil, execute, judged, like, on_host, warn
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.tables import bind

__all__ = ["from_dims", "problem", "solve_poisson"]

# Exponents of two between which spacings and right-hand sides are taken as they are. Sums of
# squares are in double; solutions and sine transforms are at most 2^70 times as large as f h^2.
_SPACING = {"float32": 16, "float64": 100}
_VALUES = {"float32": 32, "float64": 300}
_FARTHEST = 100  # a spacing 2^100 times the least decouples its axis whatever the extents
_START = 2.0**40  # an initial guess this many times as large as f h^2 is farther from u than zero
_ROUNDINGS = 4.0  # how often that of u may be in what a method leaves
# Residuals below are those of numbers of which the squares may have vanished.
_LEAST_RESIDUAL = {"float32": 1e-30, "float64": 1e-150}
_DOUBLE = np.dtype(np.float64)


@overload
def solve_poisson(f: Array, *, return_info: Literal[False] = False, **options: Any) -> Array: ...
@overload
def solve_poisson(f: Array, *, return_info: bool, **options: Any) -> Any: ...
def solve_poisson(
    f: Any,
    *,
    spacing: float | tuple[float, ...] = 1.0,
    boundary: Any = 0.0,
    x0: Any = None,
    method: str | None = None,
    rtol: float | None = None,
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
        Start of the iterative methods. Default: zero, also for one farther from u than that.
    method : {"dst", "multigrid", "jacobi"}, optional
        "dst": direct, by sine transforms. "multigrid": geometric V-cycles. "jacobi": sweeps.
        Default: whichever is fastest. Conjugate gradients are
        ``solve_cg(hetero.Poisson(...), b)``.
    rtol : float, optional
        Done when norm(f - A u) <= rtol norm(f), f with the boundary's share. Default: 1e-8, in
        float32 1.2e-7, or what rounding leaves: that of u alone makes up to eps norm(A) norm(u),
        for smooth f a share of norm(f) that grows with n^2 (in float32 0.005 at 1000 x 1000). 0:
        as far as rounding lets it.
    maxiter : int, optional
        Most cycles, iterations or sweeps. A method that is not expected to meet rtol within
        them is chosen only where there is no other. ``rtol=0`` with "jacobi" (or
        a kernel on its way) makes exactly that many sweeps.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*": on all GPUs by "multigrid" and
        "jacobi", or on the first of them by another method where that is faster.
    return_info : bool
        Also return how it was done.

    Returns
    -------
    u : array of f's shape and kind
        float32 if f is no wider, else float64.
    info : dict, if ``return_info``
        device, method, iterations (cycles, iterations, sweeps), residual (2-norm of the true
        residual f - A u), relative_residual (by norm(f)), converged (bool), status ("converged",
        "iteration limit", "rounding", "not finite"), plan.

    Raises
    ------
    ValueError
        For a shape that is no grid, complex f, spacing <= 0, a negative tolerance or limit.
    MemoryError
        Before a solve on the CPU that takes more memory than there is. On grids with an axis that
        is longer than the others by far, "dst" and "multigrid" take some 10 to 45 times f's memory,
        "jacobi" up to 8 times.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    Warns
    -----
    RuntimeWarning
        Once, where the tolerance is not met: at maxiter, where rounding keeps the residual above a
        tolerance that was asked for, or where numbers are not finite.

    Notes
    -----
    The values of f, spacing and boundary may have any magnitude: where squares would overflow
    or vanish, the equation is solved in units of powers of two.

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
    f, x0 = array_or_spec(f), None if x0 is None else array_or_spec(x0)
    spacing = systems.checked_spacing(spacing, len(f.shape))
    rtol = None if rtol is None else systems.checked_tolerance("rtol", rtol)
    maxiter = None if maxiter is None else systems.checked_limit(maxiter, UNLIMITED)
    faces = checked_faces(f.shape, boundary)

    def make() -> Callable[..., Any]:
        asked = {"spacing": spacing, "rtol": rtol, "maxiter": maxiter, "method": method}
        plan = systems.ready(planner.of_call(problem(f, x0=x0, **asked), device, method))
        run = _bound(plan, spacing, rtol, maxiter)
        if (plan.chosen.device, plan.chosen.method) != (CPU, methods.DST):
            return run
        return systems.without_numba(run, loops.named(systems.VECTORS, plan.problem.dtype))

    # A plan that is made before devices are looked for is not the last one.
    key = NAME, device, method, spacing, rtol, maxiter, _facts(f), x0 is not None and _facts(x0)
    run = bind(key if inventory.looked() else None, make)
    return run(f, x0, faces, return_info)


def _facts(x: Any) -> tuple[Any, ...]:
    """What a plan depends on of an array."""
    if type(x) is np.ndarray:
        return x.shape, x.strides, x.dtype
    operand = describe(x)
    return operand.shape, operand.strides, operand.dtype, operand.location


def _bound(
    plan: Plan, spacing: tuple[float, ...], rtol: float | None, maxiter: int | None
) -> Callable[..., Any]:
    """The function ``run(f, x0, faces, return_info)`` of a plan, for checked arguments."""
    chosen, shape, dtype = plan.chosen, plan.problem.dims, np.dtype(plan.problem.dtype)
    tolerance, limit, _ = plan.problem.options
    wanted = Solve(
        system=Stencil(shape, spacing),
        rtol=max(tolerance, systems.least_tolerance(dtype)),
        atol=0.0,
        maxiter=limit,
        exactly=tolerance == 0.0 and maxiter is not None,
        from_zero=True,
        lenient=rtol is None,
        measured=False,
    )
    most = 2.0 ** _SPACING[dtype.name]
    is_ordinary = 1.0 / most <= min(spacing) and max(spacing) <= most

    def run(f: Any, x0: Any, faces: list[Face], return_info: bool) -> Any:
        done, stencil, exponent = None, wanted.system, 0
        given = plan, wanted._replace(measured=True) if return_info else wanted
        if 0 in shape:
            nothing = Outcome(systems.CONVERGED, 0, 0.0, 0.0)
            execution = load("hetero.calling.execution")
            done = execution.Done(np.zeros(shape, dtype), nothing, chosen.device, chosen.method)
        elif is_ordinary:
            done = execute(*given, _right_side(f, faces, spacing, dtype), x0)
            if done.outcome.status == systems.CONVERGED and math.isnan(done.outcome.residual):
                return done.value  # which nobody asked to measure
        if done is None or _is_out_of_range(done.outcome, shape, dtype):
            done, stencil, exponent = _in_other_units(*given, f, x0, faces)
        status, iterations, residual, whole = done.outcome
        if status == systems.ROUNDING and (wanted.lenient or tolerance == 0.0):
            # Rounding u alone leaves up to eps norm(A) norm(u) <= eps cond(A) norm(f).
            low, high = stencil.eigenvalue_bounds()
            if residual <= _ROUNDINGS * float(np.finfo(dtype).eps) * high / low * whole:
                status = systems.CONVERGED
        relative = residual / whole if whole and whole > 0.0 else math.inf if residual else 0.0
        as_asked = wanted.exactly and done.method == JACOBI and iterations == maxiter
        if status != systems.CONVERGED and not (as_asked and math.isfinite(residual)):
            left = f"norm(f - A u) is {relative:.3g} of norm(f), rtol is {tolerance:.3g}"
            warn(f"solve_poisson ({done.method})", done.outcome, left)
        if not return_info:
            return done.value
        with np.errstate(all="ignore"):
            residual = float(np.ldexp(residual, exponent))
        return done.value, {
            "device": done.device,
            "method": done.method,
            "iterations": iterations,
            "residual": residual,
            "relative_residual": relative,
            "converged": status == systems.CONVERGED,
            "status": status,
            "plan": plan,
        }

    return run


# -- The equation ---------------------------------------------------------------------------------


# Boundary values on one side: the axis, the layer of the points next to it, 0 or -1, and a number
# or an array of f's shape without the axis.
Face = tuple[int, int, np.ndarray]


def checked_faces(shape: tuple[int, ...], boundary: Any) -> list[Face]:
    """The sides with values other than zero; ValueError for what are no boundary values."""
    if isinstance(boundary, float) and boundary == 0.0:
        return []
    if not isinstance(boundary, (tuple, list)) and np.ndim(boundary) == 0:
        boundary = [(boundary, boundary)] * len(shape)
    try:
        sides = [tuple(pair) for pair in boundary]
    except TypeError:  # a number in a pair's place
        sides = []
    if list(map(len, sides)) != [2] * len(shape):
        raise ValueError(f"boundary must be a number or {len(shape)} pairs, got {boundary!r}")
    faces = []
    for axis, pair in enumerate(sides):
        across = (*shape[:axis], *shape[axis + 1 :])
        for layer, value in zip((0, -1), map(np.asarray, pair), strict=True):
            if value.dtype.kind not in "fiub":
                raise ValueError(f"boundary must be real, got dtype {value.dtype}")
            if value.shape not in ((), across):
                raise ValueError(
                    f"boundary of axis {axis} must be a number or of shape {across}, "
                    f"got shape {value.shape}"
                )
            if np.any(value):
                faces.append((axis, layer, value))
    return faces


def _right_side(f: Any, faces: list[Face], spacing: tuple[float, ...], dtype: np.dtype) -> Any:
    """f plus value / spacing**2 next to each side; an array of f's kind, or f itself."""
    if not faces:
        return f
    operand = describe(f)
    total = np.array(on_host(f, dtype, operand))
    with np.errstate(all="ignore"):  # what is not finite then is solved in other units
        add_boundary(total, faces, spacing)
    return total if operand.location == HOST else like(f, total)


def add_boundary(total: np.ndarray, faces: list[Face], spacing: tuple[float, ...]) -> None:
    """Add value / spacing**2 next to each side."""
    for axis, layer, value in faces:
        side = np.moveaxis(total, axis, 0)[layer]
        side += np.asarray(value, np.result_type(total, _DOUBLE)) / spacing[axis] ** 2


def _is_out_of_range(outcome: Outcome, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether a solve did not end well, perhaps because right-hand side or initial guess are too
    large or too small for their squares. Nothing is fetched from a device."""
    status, _, residual, whole = outcome
    vanishes = residual < _LEAST_RESIDUAL[dtype.name] or residual == math.inf
    if status == systems.CONVERGED and not vanishes and whole != math.inf:
        return False
    most = 2.0 ** _VALUES[dtype.name]
    fits = whole is not None and math.sqrt(math.prod(shape)) / most <= whole <= most
    return not fits or status == systems.NOT_FINITE


def _in_other_units(
    plan: Plan, asked: Solve, f: Any, x0: Any, faces: list[Face]
) -> tuple[Any, Stencil, int]:
    """The solve in units in which the largest value of the right-hand side is about 1: an
    `execution.Done`, the stencil, and the exponent of f's units.

    The solution is in the caller's units, and judged anew where its dtype has not the range.
    """
    dtype = np.dtype(plan.problem.dtype)
    values, parts = on_host(f, _DOUBLE), [math.frexp(h) for h in asked.system.spacing]
    e, start = min(n for _, n in parts), None
    spacing = tuple(math.ldexp(h, min(n - e, _FARTHEST)) for h, n in parts)
    with np.errstate(all="ignore"):
        total = values * np.ldexp(np.longdouble(1.0), 2 * e)  # which have a larger range
        add_boundary(total, faces, spacing)
        largest = np.abs(total).max()
        k = int(np.frexp(largest)[1]) if 0.0 < largest < math.inf else 0
        rhs = np.ldexp(total, -k).astype(dtype)
        if x0 is not None and largest > 0.0:
            start = np.ldexp(on_host(x0, _DOUBLE).reshape(values.shape), -k)
            start = None if np.abs(start).max() > _START else start.astype(dtype)
    stencil = Stencil(values.shape, spacing)
    plan = replace(plan, problem=replace(plan.problem, next_device=None))
    done = execute(plan, asked._replace(system=stencil), rhs, start)
    outcome = done.outcome
    with np.errstate(all="ignore"):
        u = np.ldexp(done.value, k)
        returned = np.ldexp(u, -k)
        if not np.array_equal(returned, done.value):
            _, residual, whole = load("hetero.ops.solvers.dst").residual(stencil, rhs, returned)
            bound = asked.rtol * whole
            otherwise = systems.ROUNDING if outcome.status == systems.CONVERGED else outcome.status
            outcome = judged(residual, bound, otherwise, outcome.iterations, whole)
    if describe(f).location != HOST:
        u = like(f, u)
    return done._replace(value=u, outcome=outcome), stencil, k - 2 * e


registry.register_operation(
    registry.Operation(
        name=NAME,
        function="solve_poisson",
        call=solve_poisson,
        summary="Poisson's equation on a rectangle or a box",
        dims=methods.DIMS,
        problem=problem,
        from_dims=from_dims,
        keeps=lambda problem: False,
        iterations=methods.iterations,
    )
)
