"""Conjugate gradients: the public function, and the ways to do them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, Array, describe, is_device_array
from hetero.calling import planner
from hetero.host import loops
from hetero.imports import load
from hetero.ops.solvers import cg_problem, systems
from hetero.ops.solvers.cg_problem import NAME, from_dims, problem, work
from hetero.ops.solvers.systems import CONVERGED, Outcome, Solve, execute, on_host, warn
from hetero.pricing.plan import Plan
from hetero.registry import Arguments, Problem
from hetero.tables import bind

if TYPE_CHECKING:
    from hetero.devices.base import Device

__all__ = ["from_dims", "problem", "solve_cg"]

_LEAST_SHARED = 1024  # unknowns from which several devices may share
# Layouts of problems that a method takes, in words.
_DENSE, _OPERATORS = {"dense": "dense matrices"}, {"operator": "LinearOperators"}
_SPARSE = {"csr": "sparse matrices", "stencil2": "hetero.Poisson", "stencil3": "hetero.Poisson"}


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
        Dense on the host or on a device; any SciPy format. CuPy's and torch's CSR matrices are
        multiplied where they are, their other formats go by way of the host. A LinearOperator
        computes on the CPU (one of CuPy's where it is, on copies of vectors), and so does whatever
        is complex. Symmetry is not checked.
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
    matrix, rhs, x0, M, rtol, atol, limit = cg_problem.checked(A, b, x0, M, *until)
    key = cg_problem.key_of(matrix, rhs, x0, M, rtol, limit, device, method)

    def make() -> Callable[..., Any]:
        problem = cg_problem.problem_of(matrix, rhs, x0, M, rtol, limit)
        plan = systems.ready(planner.of_call(problem, device, method))
        run = functools.partial(_solve, plan)
        is_plain = plan.chosen.method == "scipy"
        return systems.without_numba(run, *_loops(problem)) if is_plain else run

    return bind(key, make)(matrix, rhs, x0, M, rtol, atol, limit, callback)


def _solve(
    plan: Plan, A: Any, b: Any, x0: Any, M: Any, rtol: float, atol: float, *limits: Any
) -> tuple[Any, Outcome]:
    """Run a plan for arguments that were checked; ``limits``: maxiter, callback."""
    n, dtype = A.shape[0], np.dtype(plan.problem.dtype)
    if len(b.shape) == 2:
        b = b.reshape(n)
    if not n:
        return np.zeros(0, dtype), Outcome(CONVERGED, 0, 0.0)
    system = functools.partial(cg_problem.system_of, A, M, dtype)
    if isinstance(x0, str):
        x0, inverse = on_host(b, dtype).copy(), system(())[1]
        if callable(inverse):
            inverse(systems.real_view(x0.copy()), systems.real_view(x0))
        elif inverse is not None:
            systems.real_view(x0)[...] *= inverse
    elif x0 is not None:
        x0 = x0.reshape(n)
    read = A.operands if isinstance(A, systems.DeviceCsr) else ()
    if plan.problem.layout == "dense" and is_device_array(A):
        read = (describe(A),)
    asked = Solve(system, rtol, atol, *limits)
    x, outcome, *_ = execute(plan, asked, b, x0, read)
    if outcome.status == systems.OUT_OF_RANGE:

        def run(b: np.ndarray, x: np.ndarray, asked: Solve) -> Outcome:
            again = execute(plan, asked, b, x, read)
            x[...] = on_host(again.value, dtype)
            return again.outcome

        u = np.zeros(n, dtype) if x0 is None else on_host(x0, dtype).copy()
        outcome = systems.scaled(run, on_host(b, dtype), u, asked)
        x = u if type(x) is np.ndarray else systems.like(x, u)
    elif outcome.status == systems.NOT_FINITE and not np.isfinite(on_host(x, dtype)).all():
        # A device does not look at x: what it started from is left.
        x, at_start, *_ = execute(plan, asked._replace(maxiter=0, callback=None), b, x0, read)
        outcome = outcome._replace(residual=at_start.residual)
    norm_b = outcome.right_side  # which devices tell
    of_host = type(b) is type(x) is np.ndarray and not read
    if norm_b is not None and outcome.status == CONVERGED and of_host:
        # In float64, where rounding to float32 may decide it.
        bound = max(rtol * norm_b, atol)
        true_residual = load("hetero.ops.solvers.cg_loop").true_residual
        given = b.astype(dtype, copy=False), x, outcome.residual, bound, norm_b
        residual = true_residual(system(())[0], *given)
        if residual != outcome.residual and not residual <= bound:
            outcome = outcome._replace(status=systems.LIMIT, residual=residual)
    return x, outcome


# -- The ways to do it -----------------------------------------------------------------------------


def _excludes(
    method: str, taken: dict[str, str], problem: Problem, info: dict[str, Any]
) -> str | None:
    """See `registry.Implementation`; ``taken`` are layouts."""
    if method == "hybrid" and problem.layout.endswith("multigrid"):
        return "has a diagonal preconditioner at most"
    if method == "adaptive" and problem.device is not None:
        return "does not apply: it is for arrays on the host"
    if method == "adaptive" and problem.options.known:
        return "is for an unknown number of iterations"
    reason = None
    if problem.dtype.startswith("complex") and method != "operator":
        reason = "does not apply: it is for real numbers"
    elif problem.layout.partition("-")[0] not in taken:
        reason = f"does not apply: it is for {' and '.join(dict.fromkeys(taken.values()))}"
    if method == "scipy" and not registry.missing(_loops(problem), info):
        return registry.Unasked("is used only while 'numba' is compiled", reason)
    if method == "adaptive" and reason is None and info.get("asked"):
        return registry.Unasked("begins on the CPU; name it with method='adaptive' to use it")
    return reason


def _shared(problem: Problem) -> bool:
    """Stencils and matrices of the host are cut by rows, without multigrid cycles."""
    kind = problem.layout
    here = kind in ("dense", "csr") and problem.inputs[0].location == HOST
    return (here or kind in ("stencil2", "stencil3")) and problem.dims[0] >= _LEAST_SHARED


def iterations(dims: tuple[int, ...], dtype: str) -> dict[str, registry.Iteration]:
    """See `registry.Operation`; nothing of a dense matrix.

    Vectors are b, x, its start, two p and two r; rows of p and r are exchanged, and four sums.
    """
    if len(dims) == 1:
        return {}
    halo = load("hetero.kernels.cg.plan").HALO
    row = math.prod(dims[1:]) * np.dtype(dtype).itemsize
    iteration = registry.Iteration(row, 7, halo, 2 * halo, sums=1, sum_bytes=4 * 8)
    return dict.fromkeys(("fused", "numba"), iteration)


def _loops(problem: Problem) -> tuple[str, ...]:
    """What is compiled for sparse matrices and stencils on the CPU."""
    family = systems.ROWS if problem.layout == "csr" else systems.STENCILS
    return (loops.named(family, problem.dtype),)


def _run(
    devices: tuple[Device, ...], problem: Problem, arguments: Arguments, plain: bool = False
) -> Outcome:
    """Solve; on the CPU, if ``plain``, with nothing that has to be compiled."""
    (b,), x, asked = arguments
    if asked.from_zero and len(devices) != 1:  # for one device it was written
        x[...] = 0.0
    if devices:
        return load("hetero.ops.solvers.cg_device").solve(devices, arguments, problem.dtype)
    system, M = asked.system(())
    return load("hetero.ops.solvers.cg_loop").solve(system, b, x, asked, M, plain=plain)


def _in_turn(name: str) -> dict[str, Any]:
    """What a method runs that takes turns with the CPU, and its price: see its module."""

    def later(function: str) -> Callable[..., Any]:
        return lambda *given: getattr(load(f"hetero.ops.solvers.cg_{name}"), function)(*given)

    return {"run": later("solve"), "blocks": registry.IN_TURN, "price": later("price")}


def _row(method: str, taken: dict[str, str], *kinds: str, **row: Any) -> None:
    row = {"work": work, "run": _run, "excludes": functools.partial(_excludes, method, taken)} | row
    registry.register_method(operation=NAME, kinds=kinds, method=method, **row)


_row("blas", _DENSE, "cpu")
_row("numba", _SPARSE, "cpu", loops=_loops)
_row("scipy", _SPARSE, "cpu", run=functools.partial(_run, plain=True))
_row("operator", _OPERATORS, "cpu")
_row("fused", _DENSE | _SPARSE, *registry.PORTABLE, shared=_shared)
_row("hybrid", _DENSE | _SPARSE, *registry.PORTABLE, **_in_turn("hybrid"))
_row("adaptive", _DENSE, *registry.PORTABLE, **_in_turn("adaptive"))

registry.register_operation(
    registry.Operation(
        name=NAME,
        function="solve_cg",
        call=solve_cg,
        summary="conjugate gradients, with the contract of scipy.sparse.linalg.cg",
        dims=cg_problem.DIMS,
        options=("iterations",),
        problem=problem,
        from_dims=from_dims,
        keeps=lambda problem: problem.layout == "dense",
        iterations=iterations,
    )
)
