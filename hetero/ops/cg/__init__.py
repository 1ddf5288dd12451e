"""Conjugate gradients: the public function and its implementations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, Spec, describe, is_device_array
from hetero.ops.linear_systems import solving
from hetero.ops.linear_systems.solving import Request
from hetero.runtime import planner, registry
from hetero.runtime.models import Work
from hetero.runtime.problem import Problem, check_dims

OPERATION = "cg"
_LEAST_SHARED = 1024  # unknowns from which several devices may share
_STOPPED = {"iteration limit": 1, "not positive definite": -1, "not finite": -2}


def solve_cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    device: str | None = None,
    method: str | None = None,
) -> tuple[Any, int]:
    """Solve A x = b for a symmetric or Hermitian positive definite A, as `scipy.sparse.linalg.cg`.

    Parameters
    ----------
    A : (n, n) array_like, sparse matrix or array, LinearOperator, or `hetero.Poisson`
        Dense on the host or on a device; any SciPy format. A LinearOperator computes on the CPU,
        and so does whatever is complex. Symmetry is not checked.
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
        LinearOperator (these compute on the CPU).
    callback : callable, optional
        Called as ``callback(x)`` after each iteration. On a device x is fetched for it each time.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0", or "cuda:*" for all GPUs, by row partition. Default:
        where it is fastest.
    method : str, optional
        "blas", "numba" or "operator" on the CPU; "fused" on a device.

    Returns
    -------
    x : (n,) array
        float32 if A and b are no wider, else float64; complex64 or complex128 if one of them is
        complex; on the device where b lies. The dtypes of x0 and M do not count.
    info : int
        0: the true residual b - A x, computed anew, meets the tolerance. Positive: iterations
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
    device, method = planner.placement(device, method)
    matrix, rhs = _matrix(A), solving.array_like(b)
    n = matrix.shape[0]
    rtol = solving.checked_tolerance("rtol", rtol)
    atol = solving.checked_tolerance("atol", atol)
    limit = solving.checked_limit(maxiter, 10 * n)
    if x0 is not None and not isinstance(x0, str):
        x0 = solving.array_like(x0)
    key = _key(matrix, rhs, x0, rtol, limit, M, device, method)
    plan = None if key is None else _plans.get(key)
    if plan is None:
        generation = planner.generation()
        kind = _inspected(matrix, rhs, x0, M)
        of_any_size = None
        if key is not None and planner.is_host_alone(device):
            of_any_size = (kind.layout, kind.dtype, device, method)
            plan = _plans.get(of_any_size)
        if plan is None:
            plan = planner.plan(_problem(matrix, kind, rtol, limit), device, method)
            if of_any_size is not None:
                planner.remember(_plans, of_any_size, plan, generation)
        if key is not None:
            planner.remember(_plans, key, plan, generation)
    dtype = np.dtype(plan.problem.dtype)
    if len(rhs.shape) == 2:
        rhs = rhs.reshape(n)
    if not n:
        return np.zeros(0, dtype), 0
    system = System(matrix, dtype, M)
    if isinstance(x0, str):
        x0 = system.times_preconditioner(solving.on_host(rhs, describe(rhs), dtype))
    elif x0 is not None:
        x0 = x0.reshape(n)
    request = Request(None, None, None, rtol, atol, limit, None, callback)
    solved = solving.execute(plan, request, rhs, x0, system.on)
    outcome = solved.outcome
    if outcome.status == "converged":
        return solved.x, 0
    sign = _STOPPED[outcome.status]
    if sign < 0:
        solving.warn("solve_cg", outcome)
        return solved.x, sign
    return solved.x, max(outcome.iterations, 1)


# By what `_key` gives; and, where nothing but the CPU can be chosen, one for all sizes of a layout:
# it has one method for each.
_plans = planner.shortcut_table()


def _key(A: Any, b: Any, x0: Any, rtol: float, limit: int, M: Any, device: Any, method: Any) -> Any:
    """What the plan of a call from host memory depends on; None for any other call."""
    if type(b) is not np.ndarray:
        return None
    if type(A) is np.ndarray:
        matrix = (A.shape, A.strides, A.dtype)
    elif hasattr(A, "stencil"):
        matrix = (A.stencil, A.dtype)
    elif hasattr(A, "indptr"):
        matrix = (A.shape, A.nnz, A.data.dtype, A.indices.dtype, A.indptr.dtype)
    elif isinstance(A, Spec) or is_device_array(A):
        return None
    else:
        matrix = ("operator", A.shape, A.dtype)
    if x0 is None or isinstance(x0, str):
        start = x0
    elif type(x0) is np.ndarray:
        start = (x0.shape, x0.strides, x0.dtype)
    else:
        return None
    if M is None or isinstance(M, str):
        inverse = M
    elif hasattr(M, "shape") and hasattr(M, "dtype"):
        inverse = (tuple(M.shape), M.dtype)
    else:
        return None
    return matrix, b.shape, b.strides, b.dtype, start, rtol, limit, inverse, device, method


def problem(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> Problem:
    """The problem of ``solve_cg(A, b, ...)``, for arrays or `hetero.spec` stand-ins."""
    A = _matrix(A)
    solving.checked_tolerance("atol", atol)
    rtol = solving.checked_tolerance("rtol", rtol)
    limit = solving.checked_limit(maxiter, 10 * A.shape[0])
    if x0 is not None and not isinstance(x0, str):
        x0 = solving.array_like(x0)
    return _problem(A, _inspected(A, solving.array_like(b), x0, M), rtol, limit)


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """A Poisson problem of NY NX or NZ NY NX points, or with N alone a dense one of n unknowns."""
    check_dims(OPERATION, dims, "N", "NY NX", "NZ NY NX")
    if len(dims) == 1:
        return problem(Spec(dims * 2, dtype, on=on), Spec(dims, dtype, on=on))
    from hetero.ops.linear_systems.operators import Poisson

    return problem(Poisson(dims, dtype=dtype), Spec((math.prod(dims),), dtype, on=on))


def _matrix(A: Any) -> Any:
    """A as ndarray, device array, spec, CSR array or LinearOperator; ValueError if not square."""
    if isinstance(A, np.ndarray):
        A = np.asarray(A)  # np.matrix has a diagonal of its own kind
    elif not (isinstance(A, Spec) or is_device_array(A)):
        issparse, LinearOperator, aslinearoperator = _scipy()
        if issparse(A):
            A = A.tocsr()
        elif not isinstance(A, LinearOperator):
            A = aslinearoperator(A) if hasattr(A, "matvec") else np.asarray(A)
    if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"A must be square, got shape {tuple(A.shape)}")
    return A


@functools.cache
def _scipy() -> tuple[Any, Any, Any]:
    """issparse, LinearOperator, aslinearoperator: a statement of imports takes 2 us each time."""
    from scipy.sparse import issparse
    from scipy.sparse.linalg import LinearOperator, aslinearoperator

    return issparse, LinearOperator, aslinearoperator


class _Kind(NamedTuple):
    """What a call is, but for its tolerances.

    Attributes
    ----------
    vectors : tuple of Operand
        b, and x0 where it is a vector.
    dtype : numpy.dtype
    layout : str
        Of A, with the preconditioner that counts.
    entries : int
        Of A.
    obstacle : str or None
        Why no device can do it.
    share : float
        Of the iterations without M, that are left with it.
    """

    vectors: tuple[Operand, ...]
    dtype: np.dtype
    layout: str
    entries: int
    obstacle: str | None
    share: float


def _inspected(A: Any, b: Any, x0: Any, M: Any) -> _Kind:
    """Look at the arguments; ValueError where they do not fit together."""
    n = A.shape[0]
    operands = {"b": b}
    if isinstance(x0, str):
        if x0 != "Mb":
            raise ValueError(f"x0 must be a vector or 'Mb', got {x0!r}")
    elif x0 is not None:
        operands["x0"] = x0
    for name, vector in operands.items():
        if tuple(vector.shape) not in ((n,), (n, 1)):
            raise ValueError(f"{name} must have shape ({n},) or ({n}, 1), got {vector.shape}")
    vectors = tuple(describe(vector)._replace(pointer=0) for vector in operands.values())
    dtype = solving.number_dtype(A=_dtype(A), b=vectors[0].dtype)
    if dtype.kind != "c" and "x0" in operands:
        solving.real_dtype(x0=vectors[1].dtype)
    layout, entries, obstacle = _layout(A)
    layout, obstacle, share = _preconditioned(A, M, layout, obstacle, dtype)
    if dtype.kind == "c":
        layout, obstacle = "operator", "complex numbers compute on the CPU"
    return _Kind(vectors, dtype, layout, entries, obstacle, share)


def _problem(A: Any, kind: _Kind, rtol: float, limit: int) -> Problem:
    n, dtype = A.shape[0], kind.dtype
    matrix = () if kind.layout == "operator" else _matrix_operands(A, dtype)
    return Problem(
        OPERATION,
        (n, kind.entries),
        dtype.name,
        (*matrix, *kind.vectors),
        solving.result_operand((n,), dtype, kind.vectors[0].location),
        layout=kind.layout,
        function="solve_cg",
        device_obstacle=kind.obstacle or (None if n else "nothing to solve"),
        rtol=rtol,
        iterations=max(1, min(round(_expected(A, rtol, dtype) * kind.share), limit)),
    )


def _dtype(A: Any) -> np.dtype:
    if isinstance(A, Spec) or is_device_array(A):
        return describe(A).dtype
    return np.dtype(A.dtype if A.dtype is not None else float)  # a LinearOperator may not say


def _layout(A: Any) -> tuple[str, int, str | None]:
    """What decides the speed of A times a vector, its entries, and why no device can do it."""
    n = A.shape[0]
    if isinstance(A, (np.ndarray, Spec)) or is_device_array(A):
        return "dense", n * n, None
    stencil = getattr(A, "stencil", None)
    if stencil is not None:
        return f"stencil{len(stencil.shape)}", (2 * len(stencil.shape) + 1) * n, None
    if hasattr(A, "indptr"):
        return "csr", A.nnz, None
    return "operator", n, "a LinearOperator computes on the CPU"


def _matrix_operands(A: Any, dtype: np.dtype) -> tuple[Operand, ...]:
    if hasattr(A, "indptr"):
        parts = (A.data.astype(dtype, copy=False), A.indices, A.indptr)
        return tuple(map(describe, parts))
    if hasattr(A, "stencil"):
        return ()
    return (describe(A)._replace(pointer=0),)


def _preconditioned(
    A: Any, M: Any, layout: str, obstacle: str | None, dtype: np.dtype
) -> tuple[str, str | None, float]:
    """Layout, obstacle, and the share of iterations that are left, with a preconditioner."""
    if M is None:
        return layout, obstacle, 1.0
    if isinstance(M, str):
        if M == "jacobi":
            if layout == "operator":
                raise ValueError("M='jacobi' needs A's diagonal, which a LinearOperator hides")
            return layout, obstacle, 1.0
        if M == "multigrid":
            if not layout.startswith("stencil"):
                raise ValueError("M='multigrid' needs A to be a hetero.Poisson")
            return f"{layout}-multigrid", obstacle, 0.0
        raise ValueError(f"M must be 'jacobi', 'multigrid' or a matrix, got {M!r}")
    n = A.shape[0]
    shape = tuple(M.shape) if hasattr(M, "shape") else np.shape(M)
    if shape not in ((n,), (n, n)):
        raise ValueError(f"M must have shape ({n}, {n}) or ({n},), got {shape}")
    given = M.dtype if hasattr(M, "dtype") else np.asarray(M).dtype
    if dtype.kind != "c" and np.dtype(given or float).kind == "c":
        raise ValueError(f"M must be real where A and b are, got dtype {given}")
    if shape == (n,):
        return layout, obstacle, 1.0
    return layout, obstacle or "the preconditioner M computes on the CPU", 0.5


def _expected(A: Any, rtol: float, dtype: np.dtype) -> float:
    """Iterations to expect.

    From the spectrum where it is known (`Poisson.expected_iterations`). Else a rule: a sparse
    matrix is taken for the five-point operator on a square grid of as many unknowns, a dense one
    for one of condition number 100.
    """
    if hasattr(A, "expected_iterations"):
        return A.expected_iterations(max(rtol, float(np.finfo(dtype).eps)))
    logarithm = solving.digits(rtol, dtype) + math.log(2.0)
    if hasattr(A, "indptr"):
        return 0.5 * (2.0 / math.pi) * math.sqrt(A.shape[0]) * logarithm
    return min(A.shape[0], 5.0 * logarithm)


class System:
    """A's own arrays in the solve's dtype, and the preconditioner for the CPU or a device."""

    def __init__(self, A: Any, dtype: np.dtype, M: Any) -> None:
        self._matrix = A
        self._dtype = dtype
        self._M = M

    def on(self, used: list[Any] | None) -> tuple[Any, Any]:
        """System and preconditioner as those devices want them; None: the CPU."""
        return self._system(used), self._preconditioner(used)

    def times_preconditioner(self, b: np.ndarray) -> np.ndarray:
        """M b on the host."""
        from hetero.ops.linear_systems.scaling import real_view

        M = self._preconditioner(None)
        if M is None:
            return b.copy()
        real, z = real_view(b), np.empty_like(b)
        if callable(M):
            M(real, real_view(z))
        else:
            np.multiply(M, real, out=real_view(z))
        return z

    def _system(self, used: list[Any] | None) -> Any:
        from hetero.ops.linear_systems import types as words

        A, dtype = self._matrix, self._dtype
        if dtype.kind == "c":
            return self._complex()
        if hasattr(A, "stencil"):
            return A.stencil
        if hasattr(A, "indptr"):
            return words.Csr(A.indptr, A.indices, A.data.astype(dtype, copy=False))
        if not isinstance(A, np.ndarray) and not is_device_array(A):
            return A
        operand = describe(A)
        steps = operand.staged_strides()
        here = used is not None and len(used) == 1 and operand.location == used[0].name
        if here and operand.dtype == dtype and steps is not None:
            return words.Dense(operand.pointer, A.shape[0], steps)
        if operand.location != HOST:
            A = solving.on_host(A, operand, dtype)
        A = np.asarray(A, dtype)
        if not (A.flags.c_contiguous or A.flags.f_contiguous):
            A = np.ascontiguousarray(A)
        return words.Dense(A, A.shape[0], tuple(s // A.itemsize for s in A.strides))

    def _complex(self) -> Any:
        A = self._matrix
        if is_device_array(A):
            A = solving.on_host(A, describe(A), self._dtype)
        elif isinstance(A, np.ndarray):
            A = np.asarray(A, self._dtype)
        return _scipy()[2](A)

    def _preconditioner(self, used: list[Any] | None) -> Any:
        M, dtype = self._M, self._dtype
        if M is None:
            return None
        if isinstance(M, str) and M == "jacobi":
            inverse = self._inverse_diagonal()
            return np.repeat(inverse, 2) if dtype.kind == "c" and inverse is not None else inverse
        if isinstance(M, str):
            return self._multigrid(used)
        from hetero.ops.krylov.cg_cpu import into

        if np.ndim(M) == 1:
            inverse = np.ascontiguousarray(M, dtype)
            if dtype.kind != "c":
                return inverse
            return into("M times a vector", lambda r: inverse * r, dtype)
        return into("M times a vector", _scipy()[2](M).matvec, dtype)

    def _inverse_diagonal(self) -> np.ndarray | None:
        A = self._matrix
        if hasattr(A, "stencil"):  # a constant diagonal changes no iterate
            return None
        if hasattr(A, "indptr"):
            diagonal = A.diagonal()
        elif is_device_array(A):
            diagonal = solving.on_host(A, describe(A), self._dtype).diagonal()
        else:
            diagonal = A.diagonal()
        with np.errstate(all="ignore"):
            return 1.0 / diagonal.real.astype(self._dtype.type(0).real.dtype)

    def _multigrid(self, used: list[Any] | None) -> Any:
        stencil, dtype = self._matrix.stencil, self._dtype
        if used is not None:
            from hetero.ops.multigrid import multigrid_device

            with used[0].active():
                return multigrid_device.Hierarchy(used[0], stencil, dtype)
        from hetero.ops.multigrid import multigrid_cpu

        if dtype.kind != "c":
            return multigrid_cpu.Hierarchy(stencil, dtype).apply
        apply = multigrid_cpu.Hierarchy(stencil, dtype.type(0).real.dtype).apply

        def by_parts(r: np.ndarray, z: np.ndarray) -> None:
            for part in (0, 1):
                of_z = np.empty(r.size // 2, r.dtype)
                apply(np.ascontiguousarray(r[part::2]), of_z)
                z[part::2] = of_z

        return by_parts


def _obstacle(*layouts: str) -> Callable[[Problem, dict[str, Any]], str | None]:
    def excludes(problem: Problem, info: dict[str, Any]) -> str | None:
        if problem.dtype.startswith("complex") and "operator" not in layouts:
            return "is for real numbers"
        if problem.layout.partition("-")[0] not in layouts:
            return f"is for {' and '.join(layouts)} matrices"
        return None

    return excludes


def _work(problem: Problem, info: dict[str, Any]) -> Work:
    """One iteration: the matrix once, and ten passes over a vector, which a stencil stays with."""
    n, entries = problem.dims
    size = np.dtype(problem.dtype).itemsize
    kind = problem.layout.partition("-")[0]
    matrix = {"dense": size, "csr": size + 4}.get(kind, 0) * entries
    dims = (n, max(entries // max(n, 1), 1)) if kind == "csr" else (n,)
    repeat = problem.iterations
    if problem.layout.endswith("multigrid"):
        repeat = max(2, math.ceil(solving.digits(problem.rtol, np.dtype(problem.dtype)) / 2.6))
    return Work(dims, 2.0 * entries + 10.0 * n, matrix + 10.0 * n * size, repeat)


def _shared(problem: Problem) -> bool:
    """Stencils and sparse matrices are cut by rows; one multigrid cycle is one device's."""
    return problem.layout in ("csr", "stencil2", "stencil3") and problem.dims[0] >= _LEAST_SHARED


def _run_on_cpu(device: None, problem: Problem, request: Request) -> Any:
    from hetero.ops.krylov import cg_cpu

    return cg_cpu.solve(
        request.system,
        request.b,
        request.x,
        rtol=request.rtol,
        atol=request.atol,
        maxiter=request.maxiter,
        preconditioner=request.preconditioner,
        callback=request.callback,
    )


def _run_on_devices(devices: list[Any], problem: Problem, request: Request) -> Any:
    from hetero.ops.krylov import cg_device

    return cg_device.solve(
        devices,
        request.system,
        request.b,
        request.x,
        rtol=request.rtol,
        atol=request.atol,
        maxiter=request.maxiter,
        preconditioner=request.preconditioner,
        callback=request.callback,
        dtype=problem.dtype,
    )


_ON_DEVICES = ("dense", "csr", "stencil2", "stencil3")
for _method, _kind, _layouts, _run in (
    ("blas", "cpu", ("dense",), _run_on_cpu),
    ("numba", "cpu", ("csr", "stencil2", "stencil3"), _run_on_cpu),
    ("operator", "cpu", ("operator",), _run_on_cpu),
    ("fused", "cuda", _ON_DEVICES, _run_on_devices),
    ("fused", "opencl", _ON_DEVICES, _run_on_devices),
):
    registry.register(
        registry.Implementation(
            OPERATION,
            _method,
            _kind,
            _obstacle(*_layouts),
            _work,
            _run,
            None if _kind == "cpu" else _shared,
        )
    )
