"""Poisson's equation on boxes: the public function and its implementations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.arrays import HOST, Spec, array_or_spec, dense, describe, name_of
from hetero.ops.linear_systems.solve import Solve, Solved, execute, warn
from hetero.ops.linear_systems.tolerances import checked_limit, checked_tolerance
from hetero.ops.linear_systems.vectors import like, on_host, real_dtype
from hetero.ops.poisson import sides as poisson_sides
from hetero.ops.poisson.methods import NAME, UNLIMITED, PoissonOptions
from hetero.ops.poisson.rungs import SWEEPING
from hetero.runtime import call_cache, planner, registry
from hetero.runtime.plan import Plan
from hetero.runtime.problem import Problem, check_dims
from hetero.runtime.results import on_host as with_host_result
from hetero.runtime.results import staying

if TYPE_CHECKING:
    from hetero.ops.linear_systems.types import Outcome

_RTOL = {"float32": float(np.finfo(np.float32).eps), "float64": 1e-8}
_ROUNDINGS = 4.0  # how often that of u may be in what a method leaves
# Residuals below are those of numbers whose squares may have vanished.
_LEAST_RESIDUAL = {"float32": 1e-30, "float64": 1e-150}


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
    method : {"dst", "multigrid", "cg", "jacobi"}, optional
        "dst": direct, by sine transforms. "multigrid": geometric V-cycles. "cg": conjugate
        gradients, matrix-free. "jacobi": sweeps. Default: whichever is fastest. On a GPU, by name
        alone, the kernels on the way to the one that sweeps best: "sequential", "naive", "shared".
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
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*" for all GPUs ("cg", "jacobi").
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
        is longer than the others by far, "dst" and "multigrid" take some 10 to 25 times f's memory,
        "cg" and "jacobi" up to 8 times.
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
    from hetero.ops.linear_systems.types import least_tolerance

    device, method = planner.placement(device, method)
    f, x0 = array_or_spec(f), None if x0 is None else array_or_spec(x0)
    spacing = _spacings(spacing, len(f.shape))
    rtol = None if rtol is None else checked_tolerance("rtol", rtol)
    maxiter = None if maxiter is None else checked_limit(maxiter, UNLIMITED)
    faces = poisson_sides.checked_faces(tuple(f.shape), boundary)
    asked = {"spacing": spacing, "rtol": rtol, "maxiter": maxiter, "method": method}

    def make() -> Plan:
        return planner.plan(staying(problem(f, x0=x0, **asked), device), device, method)

    arrays = call_cache.facts(describe(f).unkept(), x0 if x0 is None else describe(x0).unkept())
    plan = _calls.plan((device, tuple(asked.values()), arrays), make)
    found = plan.problem
    equation = _Equation(f, x0, spacing, faces, np.dtype(found.dtype))
    tolerance, limit, _ = found.options
    exactly = tolerance == 0.0 and maxiter is not None
    least = least_tolerance(found.dtype)
    solve = Solve(None, max(tolerance, least), 0.0, limit, exactly=exactly)
    solved = equation.solve(plan, solve)
    as_asked = exactly and solved.method in SWEEPING and solved.outcome.iterations == maxiter
    converged = equation.converged(solved.outcome, to_rounding=not rtol)
    if not converged and not (as_asked and math.isfinite(solved.outcome.residual)):
        relative = equation.relative_residual(solved.outcome)
        residual = f"norm(f - A u) is {relative:.3g} of norm(f), rtol is {tolerance:.3g}"
        warn(f"solve_poisson ({solved.method})", solved.outcome, residual)
    if not return_info:
        return solved.x
    return solved.x, {
        "device": solved.device,
        "method": solved.method,
        "iterations": solved.outcome.iterations,
        "residual": equation.residual(solved.outcome),
        "relative_residual": equation.relative_residual(solved.outcome),
        "converged": converged,
        "status": "converged" if converged else solved.outcome.status,
        "plan": plan,
    }


_calls = call_cache.Calls()


class _Equation:
    """What is to be solved, in its own units or in those of `poisson_sides.Scaled`."""

    def __init__(
        self,
        f: Any,
        x0: Any,
        spacing: tuple[float, ...],
        faces: list[poisson_sides.Face],
        dtype: np.dtype,
    ) -> None:
        self.f, self.x0, self.spacing, self.faces, self.dtype = f, x0, spacing, faces, dtype
        self._rhs = f
        self._scaled: poisson_sides.Scaled | None = None

    def solve(self, plan: Plan, solve: Solve) -> Solved:
        """Run the plan; in other units where the numbers at hand turn out to need it."""
        from hetero.ops.linear_systems.types import CONVERGED, Outcome, Stencil

        shape = tuple(self.f.shape)
        if 0 in shape:
            nothing = Outcome(CONVERGED, 0, 0.0, 0.0)
            return Solved(
                np.zeros(shape, self.dtype), nothing, plan.chosen.device, plan.chosen.method
            )
        if not poisson_sides.unusual(self.spacing, self.dtype):
            self._rhs = poisson_sides.with_boundary(self.f, self.spacing, self.faces, self.dtype)
            solved = self._run(plan, solve, Stencil(shape, self.spacing), self._rhs, self.x0)
            least = _LEAST_RESIDUAL[name_of(self.dtype)]
            outcome = solved.outcome
            if outcome.status == CONVERGED and least <= outcome.residual < math.inf:
                return solved
            given = self.f, self.x0, self.spacing, self.faces, self.dtype
            if not poisson_sides.out_of_range(*given, outcome.right_side):
                return solved
        self._scaled = scaled = poisson_sides.scaled(
            self.f, self.x0, self.spacing, self.faces, self.dtype
        )
        self._rhs = scaled.f
        stencil = Stencil(shape, scaled.spacing)
        solved = self._run(with_host_result(plan), solve, stencil, scaled.f, scaled.x0)
        return self._in_own_units(solved, stencil, solve.rtol)

    @staticmethod
    def _run(plan: Plan, solve: Solve, stencil: Any, rhs: Any, x0: Any) -> Solved:
        return execute(plan, solve, rhs, x0, lambda used: (stencil, None))

    def _in_own_units(self, solved: Solved, stencil: Any, rtol: float) -> Solved:
        """The solution as it is to be returned, judged anew where its dtype has not the range."""
        from hetero.ops.linear_systems import types
        from hetero.ops.poisson import dst_cpu

        assert self._scaled is not None
        exponent = self._scaled.solution
        outcome = solved.outcome
        with np.errstate(all="ignore"):
            u = np.ldexp(solved.x, exponent)
            returned = np.ldexp(u, -exponent)
            if not np.array_equal(returned, solved.x):
                residual = dst_cpu.residual_norm(stencil, self._scaled.f, returned)
                status = types.ROUNDING
                if not math.isfinite(residual):
                    status = types.NOT_FINITE
                elif residual <= rtol * self._right_side(outcome):
                    status = types.CONVERGED
                outcome = outcome._replace(status=status, residual=residual)
        if describe(self.f).location != HOST:
            u = like(self.f, u)
        return solved._replace(x=u, outcome=outcome)

    def _right_side(self, outcome: Outcome) -> float:
        """2-norm of the right-hand side as it was solved for."""
        if outcome.right_side is not None:
            return outcome.right_side
        return poisson_sides.norm(on_host(self._rhs, describe(self._rhs), self.dtype))

    def converged(self, outcome: Outcome, *, to_rounding: bool) -> bool:
        """Whether the tolerance is met; with ``to_rounding``, also where that ended the solve.

        Rounding u alone leaves up to eps norm(A) norm(u) <= eps cond(A) norm(f).
        """
        from hetero.ops.linear_systems import types
        from hetero.ops.linear_systems.operators import Poisson

        if outcome.status != types.ROUNDING or not to_rounding:
            return outcome.status == types.CONVERGED
        spacing = self._scaled.spacing if self._scaled else self.spacing
        condition = Poisson(tuple(self.f.shape), spacing).condition_number()
        most = _ROUNDINGS * float(np.finfo(self.dtype).eps) * condition
        return outcome.residual <= most * self._right_side(outcome)

    def residual(self, outcome: Outcome) -> float:
        """2-norm of f - A u, in f's units."""
        if self._scaled is None:
            return outcome.residual
        with np.errstate(all="ignore"):
            return float(np.ldexp(outcome.residual, self._scaled.residual))

    def relative_residual(self, outcome: Outcome) -> float:
        """norm(f - A u) / norm(f); 0 where f is."""
        if outcome.residual == 0.0:
            return 0.0
        whole = self._right_side(outcome)
        return outcome.residual / whole if whole > 0.0 else math.inf


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
    spacings = _spacings(spacing, len(f.shape))
    limit = checked_limit(maxiter, UNLIMITED)
    inputs = {"f": describe(f).unkept()._replace(pointer=0)}
    if x0 is not None:
        x0 = array_or_spec(x0)
        if tuple(x0.shape) != tuple(f.shape):
            raise ValueError(f"x0 must have f's shape {tuple(f.shape)}, got {tuple(x0.shape)}")
        inputs["x0"] = describe(x0).unkept()._replace(pointer=0)
        real_dtype(x0=inputs["x0"].dtype)
    dtype = real_dtype(f=inputs["f"].dtype)
    rtol = _RTOL[name_of(dtype)] if rtol is None else checked_tolerance("rtol", rtol)
    exactly = method in SWEEPING and rtol == 0.0 and maxiter is not None
    even = max(spacings) <= 1.0001 * min(spacings)
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
    check_dims(NAME, dims, *OPERATION.dims)
    return problem(Spec(dims, dtype, on=on))


def _spacings(spacing: Any, ndim: int) -> tuple[float, ...]:
    if isinstance(spacing, float):
        spacings = (float(spacing),) * ndim
    elif np.shape(spacing) in ((), (ndim,)):
        spacings = tuple(map(float, np.broadcast_to(np.asarray(spacing, float), (ndim,))))
    else:
        raise ValueError(f"spacing must be one number or {ndim}, got {spacing!r}")
    if not all(0.0 < h < math.inf for h in spacings):
        raise ValueError(f"spacing must be positive, got {spacing!r}")
    return spacings


def _plan(
    operands: tuple[Any, ...],
    options: dict[str, Any],
    device: str | None,
    method: str | None,
    machine: planner.Machine = planner.HERE,
) -> Plan:
    asked = problem(*operands, **options, method=method)
    if machine.is_here:
        asked = staying(asked, device)
    return machine.plan(asked, device, method)


OPERATION = registry.register_operation(
    registry.Operation(
        name=NAME,
        function="solve_poisson",
        call=solve_poisson,
        summary="Poisson's equation on a rectangle or a box",
        dims=("NY NX", "NZ NY NX"),
        problem=problem,
        from_dims=from_dims,
        plan=_plan,
        cases="hetero.ops.poisson.cases",
        benchmarks="hetero.ops.poisson.benchmarks",
        ladder={"jacobi": "several sweeps in one pass over the memory"},
    )
)
