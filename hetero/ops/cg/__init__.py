"""Conjugate gradients: the public function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import Array, describe, is_device_array
from hetero.calling import planner
from hetero.host import pages
from hetero.imports import load
from hetero.ops.cg import methods, operands  # the former registers them
from hetero.ops.cg.operands import from_dims, problem
from hetero.ops.cg.preconditioners import times
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    LIMIT,
    Outcome,
    Solve,
    execute,
    on_host,
    warn,
)
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments
from hetero.tables import bind

__all__ = ["OPERATION", "from_dims", "problem", "solve_cg"]


def solve_cg(
    A: Any,
    b: Array,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    device: str | None = None,
    method: str | None = None,
) -> tuple[Array, int]:
    """Solve A x = b for a symmetric or Hermitian positive definite A, as `scipy.sparse.linalg.cg`.

    Parameters
    ----------
    A : (n, n) array_or_spec, sparse matrix or array, LinearOperator, or `hetero.Poisson`
        Dense on the host or on a device; any SciPy format. CuPy's and torch's sparse matrices go
        by way of the host. A LinearOperator computes on the CPU (one of CuPy's where it is, on
        copies of vectors), and so does whatever is complex. Symmetry is not checked.
    b : (n,) or (n, 1) array
    x0 : (n,) or (n, 1) array, or "Mb", optional
        Start; it is not changed. "Mb": the preconditioner times b. Default: zero.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol norm(b), atol).
    maxiter : int, optional
        Default: 10 n. With 0, x is the start, and info 1 unless that meets the tolerance.
    M : optional
        Approximate inverse of A: "jacobi" (the diagonal's inverse), "multigrid" (one cycle, for
        `hetero.Poisson`), a vector (a diagonal matrix), or an array, sparse matrix or
        LinearOperator, SciPy's, CuPy's or torch's (these compute on the CPU).
    callback : callable, optional
        Called as ``callback(x)`` after each iteration. On a device x is fetched for it each time.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*" for all GPUs, by row partition. Default:
        where it is fastest.
    method : str, optional
        "blas" (dense), "numba" (sparse matrices and grids; "scipy" where that is not compiled) or
        "operator" on the CPU; "fused" on a device, "hybrid": A p there, vectors on the CPU, or
        "adaptive" (dense): it begins on the CPU, and moves where the iterations to come pay for it.

    Returns
    -------
    x : (n,) array
        float32 if A and b are no wider, else float64; complex64 or complex128 if one of them is
        complex; on the device where b lies. The dtypes of x0 and M do not count.
    info : int
        0: the true residual b - A x, computed anew, meets the tolerance; for float32 and
        complex64 it is computed in float64 where the tolerance is near rounding, unless A is a
        function, A or b lies on a device, or n is above a million. Positive: iterations
        done when they ran out, or when rounding kept the residual from falling. Negative, with a
        RuntimeWarning: -1 where p.Ap <= 0 or r.Mr <= 0 showed that A or M is not positive
        definite; -2 where something was not finite. Then x is the last iterate that was finite;
        where x itself overflows on a device, or b needed scaling, it is the start. Unlike SciPy's,
        0 also where the last iteration allowed converged, and not 0 where maxiter is 0.

    Raises
    ------
    ValueError
        For shapes that do not fit, a tolerance or limit that is negative or no number, complex x0
        or M where A and b are real.
    TypeError
        If a LinearOperator returns complex numbers where A and b are real.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    See Also
    --------
    hetero.solve_poisson, hetero.plan

    References
    ----------
    M. R. Hestenes and E. Stiefel, "Methods of conjugate gradients for solving linear systems",
    J. Res. Nat. Bur. Stand. 49 (1952), 409-436. A. White, "Modeling and Optimization of Parallel
    Matrix-based Computations on GPU", Auburn University, 2013, section 5.2.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> x, info = hetero.solve_cg(np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0]))
    >>> info, np.round(x, 4)
    (0, array([0.0909, 0.6364]))
    """
    x, outcome = solved(A, b, x0, M, callback, (rtol, atol, maxiter), device, method)
    if outcome.status == CONVERGED:
        return x, 0
    if outcome.info < 0:
        warn("solve_cg", outcome, f"norm(b - A x) is {outcome.residual:.3g} for the x returned")
    return x, outcome.info


def solved(
    A: Any, b: Any, x0: Any, M: Any, callback: Any, until: tuple[Any, ...], *placed: str | None
) -> tuple[Any, Outcome]:
    """What `solve_cg` computes, and how it ended, of which nothing warns.

    ``until`` is rtol, atol and maxiter, ``placed`` device and method.
    """
    device, method = planner.placement(*placed)
    matrix, rhs, x0, M, rtol, atol, limit = operands.checked(A, b, x0, M, *until)
    key = operands.key_of(matrix, rhs, x0, M, rtol, limit, device, method)

    def make() -> Callable[..., Any]:
        problem = operands.problem_of(matrix, rhs, x0, M, rtol, limit)

        def planned() -> Callable[..., Any]:
            return partial(_solve, planner.of_call(problem, device, method))

        looked = device is not None or inventory.looked()
        if key is None or not looked or not inventory.is_host_alone(device):
            return planned()
        # The CPU has one method for each layout, whatever the size; and where only the CPU can, it
        # serves whatever method was named.
        only = problem.device_obstacle is not None
        return bind((operands.NAME, device, method, problem.layout, problem.dtype, only), planned)

    return bind(key, make)(matrix, rhs, x0, M, rtol, atol, limit, callback)


def _solve(
    plan: Plan, A: Any, b: Any, x0: Any, M: Any, rtol: float, atol: float, *limits: Any
) -> tuple[Any, Outcome]:
    """Run a plan for arguments that were checked; ``limits``: maxiter, callback."""
    n = A.shape[0]
    dtype = np.dtype(plan.problem.dtype)
    if len(b.shape) == 2:
        b = b.reshape(n)
    if not n:
        return np.zeros(0, dtype), Outcome(CONVERGED, 0, 0.0)
    system = partial(operands.system_of, A, M, dtype)
    if isinstance(x0, str):
        x0 = times(system(())[1], on_host(b, dtype))
    elif x0 is not None:
        x0 = x0.reshape(n)
    on_device = plan.problem.layout == "dense" and is_device_array(A)
    read = (describe(A),) if on_device else ()
    asked = Solve(system, rtol, atol, *limits, from_zero=x0 is None)
    if x0 is None and type(b) is np.ndarray and b.dtype is dtype and _is_plain(plan):
        b, x = np.ascontiguousarray(b), pages.empty(b.shape, dtype)
        x[...] = 0.0
        outcome = plan.chosen.implementation.run((), plan.problem, Arguments((b,), x, asked))
    else:
        x, outcome, *_ = execute(plan, asked, b, x0, read)
    norm_b = outcome.right_side
    by_device = norm_b is not None and outcome.status == CONVERGED
    if by_device and type(b) is type(x) is np.ndarray and not on_device:
        # In float64, where rounding to float32 may decide it.
        bound = max(rtol * norm_b, atol)
        true_residual = load("hetero.ops.krylov.matrices").true_residual
        given = b.astype(dtype, copy=False), x, outcome.residual, bound, norm_b
        residual = true_residual(system(())[0], *given)
        if residual != outcome.residual and not residual <= bound:
            outcome = outcome._replace(status=LIMIT, residual=residual)
    return x, outcome


def _is_plain(plan: Plan) -> bool:
    """Whether a solve on the CPU compiles nothing, and its result is an array of the host."""
    chosen = plan.chosen
    is_here = chosen.device == CPU and not plan.kept and plan.problem.next_device is None
    return is_here and chosen.method == "operator"


OPERATION = registry.register_operation(
    registry.Operation(
        name=operands.NAME,
        function="solve_cg",
        call=solve_cg,
        summary="conjugate gradients, with the contract of scipy.sparse.linalg.cg",
        dims=operands.DIMS,
        dims_note=" (N: a dense matrix; else hetero.Poisson)",
        options={"iterations": (("a number",), "default: those to expect")},
        problem=problem,
        from_dims=from_dims,
        keeps=lambda problem: problem.layout == "dense",
        iterations=methods.iterations,
    )
)
