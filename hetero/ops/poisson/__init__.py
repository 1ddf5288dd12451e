"""Poisson's equation on boxes: the public function and its implementations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from hetero import registry
from hetero.arrays import HOST, Array, array_or_spec, describe
from hetero.calling import planner
from hetero.host import pages
from hetero.imports import load
from hetero.moving.results import staying
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    Solve,
    Stencil,
    checked_limit,
    checked_spacing,
    checked_tolerance,
    least_tolerance,
    warn,
)
from hetero.ops.poisson import methods
from hetero.ops.poisson.equation import Face, checked_faces, is_ordinary, solve
from hetero.ops.poisson.methods import JACOBI, NAME, UNLIMITED, from_dims, problem
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments
from hetero.tables import bind

__all__ = ["OPERATION", "from_dims", "problem", "solve_poisson"]


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
    spacing = checked_spacing(spacing, len(f.shape))
    rtol = None if rtol is None else checked_tolerance("rtol", rtol)
    maxiter = None if maxiter is None else checked_limit(maxiter, UNLIMITED)
    faces = checked_faces(f.shape, boundary)

    def make() -> Callable[..., Any]:
        asked = {"spacing": spacing, "rtol": rtol, "maxiter": maxiter, "method": method}
        plan = planner.of_call(problem(f, x0=x0, **asked), device, method)
        return _bound(plan, spacing, rtol, maxiter)

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
    """The function ``run(f, x0, faces, return_info)`` of a plan, for arguments that were checked.

    On the CPU nothing but the method itself is between a call and its result, from the second call
    on: in the first one its loops are compiled, or what that would gain is reported.
    """
    asked, chosen = plan.problem, plan.chosen
    dtype, shape = np.dtype(asked.dtype), asked.dims
    tolerance, limit, _ = asked.options
    wanted = Solve(
        system=Stencil(shape, spacing),
        rtol=max(tolerance, least_tolerance(dtype)),
        atol=0.0,
        maxiter=limit,
        exactly=tolerance == 0.0 and maxiter is not None,
        lenient=rtol is None,
        measured=False,
    )

    def general(f: Any, x0: Any, faces: list[Face], return_info: bool, done: Any = None) -> Any:
        """Run the plan, unless ``done`` is its result, and judge that."""
        done, info = solve(plan, wanted._replace(measured=return_info), f, x0, faces, done)
        outcome, method = done.outcome, done.method
        as_asked = wanted.exactly and method == JACOBI and outcome.iterations == maxiter
        if not info["converged"] and not (as_asked and math.isfinite(outcome.residual)):
            relative = f"{info['relative_residual']:.3g} of norm(f), rtol is {tolerance:.3g}"
            warn(f"solve_poisson ({method})", outcome, f"norm(f - A u) is {relative}")
        return (done.value, info) if return_info else done.value

    (of_f, *others), on_cpu = asked.inputs, chosen.implementation.run
    is_host = chosen.device == CPU and of_f.location == HOST and asked.next_device is None
    if not is_host or others or 0 in shape or not is_ordinary(spacing, asked.dtype):
        return general
    is_first, starts = True, bool(methods.BY_NAME[chosen.method].iterations)

    def at_once(f: np.ndarray, x0: None, faces: list[Face], return_info: bool) -> Any:
        nonlocal is_first
        if is_first or faces or return_info:
            is_first = False
            return general(f, x0, faces, return_info)
        u = pages.empty(shape, dtype)
        if starts:
            u[...] = 0.0
        outcome = on_cpu((), asked, Arguments((np.ascontiguousarray(f, dtype),), u, wanted))
        if outcome.status == CONVERGED and math.isnan(outcome.residual):
            return u
        Done = load("hetero.calling.execution").Done
        return general(f, x0, faces, return_info, Done(u, outcome, CPU, chosen.method))

    return at_once


def _plan(
    given: tuple[Any, ...],
    options: dict[str, Any],
    device: str | None,
    method: str | None,
    machine: planner.Machine = planner.HERE,
) -> Plan:
    asked = problem(*given, **options, method=method)
    if machine.is_here:
        asked = staying(asked, device)
    return machine.plan(asked, device, method)


OPERATION = registry.register_operation(
    registry.Operation(
        name=NAME,
        function="solve_poisson",
        call=solve_poisson,
        summary="Poisson's equation on a rectangle or a box",
        dims=methods.DIMS,
        problem=problem,
        from_dims=from_dims,
        plan=_plan,
        keeps=lambda problem: False,
        iterations=methods.iterations,
    )
)
