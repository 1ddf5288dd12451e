"""What solve_cg is asked, checked and made a problem; the system and M that its solve takes."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetero import arrays
from hetero.arrays import HOST, Operand, Spec, array_or_spec, describe, is_device_array
from hetero.host import loops
from hetero.imports import load
from hetero.moving import transfer
from hetero.ops.solvers import systems
from hetero.ops.solvers.systems import Csr, Dense, DeviceCsr, Stencil, digits, on_host
from hetero.registry import Problem, check_dims, shapes_of
from hetero.registry.models import Work

NAME = "cg"
_OTHER = "other"  # operand than an array on the host, a matrix or an operator
DIMS = ("N", "NY NX", "NZ NY NX")
_DENSE_TERMS = ((), (0,), (0, 0))  # launches, vectors, the matrix


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
    *given, rtol, _, limit = checked(A, b, x0, M, rtol, atol, maxiter)
    return problem_of(*given, rtol, limit)


def checked(
    A: Any, b: Any, x0: Any, M: Any, rtol: Any, atol: Any, maxiter: Any
) -> tuple[Any, Any, Any, Any, float, float, int]:
    """The arguments, each checked by itself."""
    A, b = checked_matrix(A), array_or_spec(b)
    rtol, atol = systems.checked_tolerance("rtol", rtol), systems.checked_tolerance("atol", atol)
    limit = systems.checked_limit(maxiter, 10 * A.shape[0])
    x0 = x0 if x0 is None or isinstance(x0, str) else array_or_spec(x0)
    return A, b, x0, of_scipy(M), rtol, atol, limit


def from_dims(dims: tuple[int, ...], dtype: str, on: str, iterations: Any = None) -> Problem:
    """A Poisson problem of NY NX or NZ NY NX points, or with N alone a dense one of n unknowns.

    Of as many ``iterations``, a number or its digits, or of those to expect.
    """
    check_dims(NAME, dims, *DIMS)
    if len(dims) == 1:
        asked = problem(Spec(dims * 2, dtype, on=on), Spec(dims, dtype, on=on))
    else:
        Poisson = load("hetero.ops.solvers.operators").Poisson
        asked = problem(Poisson(dims, dtype=dtype), Spec((math.prod(dims),), dtype, on=on))
    if iterations is None:
        return asked
    if not (str(iterations).isdecimal() and int(iterations) >= 1):
        raise ValueError(f"iterations must be a whole number of at least 1, got {iterations!r}")
    return replace(asked, options=asked.options._replace(iterations=int(iterations), known=True))


def checked_matrix(A: Any) -> Any:
    """A as ndarray, device array, spec, CSR array, `DeviceCsr` or LinearOperator; ValueError if not
    square."""
    if isinstance(A, np.ndarray):
        A = np.asarray(A)  # np.matrix has a diagonal of its own kind
    elif there := _rows_on_device(A):
        A = there
    elif (
        type(A) is not Spec and not hasattr(A, "stencil") and not is_device_array(A := of_scipy(A))
    ):
        if load("scipy.sparse").issparse(A):
            A = A.tocsr()
        else:
            A = _linear_operator(A) if hasattr(A, "matvec") else np.asarray(A)
    if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"A must be square, got shape {tuple(A.shape)}")
    return A


@functools.cache
def _is_cupys(kind: type) -> bool:
    """Whether a class is one of CuPy's matrices or operators, or derived from one."""
    return any(base.__module__.startswith("cupyx.") for base in kind.__mro__[:-1])


def _rows_on_device(A: Any) -> DeviceCsr | None:
    """A matrix of CuPy's or torch's in compressed rows on a device; None for all else, and where
    kernels do not take its dtypes, or arrays with gaps."""
    if hasattr(A, "crow_indices"):  # a torch.Tensor
        if "sparse_csr" not in str(A.layout) or not A.is_cuda:
            return None
        own = A.detach()
        parts = own.crow_indices(), own.col_indices(), own.values()
    elif getattr(A, "format", "") == "csr" and is_device_array(A.data):
        parts = A.indptr, A.indices, A.data
    else:
        return None
    found = DeviceCsr(A.shape, parts, functools.partial(of_scipy, A))
    return found if found.is_usual else None


def of_scipy(A: Any) -> Any:
    """A sparse matrix or LinearOperator of CuPy's or torch's as SciPy's; all else as it is.

    Matrices are copied to the host. An operator computes where it is, from copies of vectors.
    """
    if A is None or type(A) is np.ndarray:
        return A
    if hasattr(A, "crow_indices") and "sparse" in str(A.layout):  # a torch.Tensor
        A = A.detach().to_sparse_csr().cpu()
        parts = A.values().resolve_conj(), A.col_indices(), A.crow_indices()
        csr_array = load("scipy.sparse").csr_array
        return csr_array(tuple([part.numpy() for part in parts]), shape=tuple(A.shape))
    if _is_cupys(type(A)):
        if hasattr(A, "tocsr"):
            return A.get()
        cupy, LinearOperator = load("cupy"), load("scipy.sparse.linalg").LinearOperator
        return LinearOperator(
            A.shape, lambda v: cupy.asnumpy(A.matvec(cupy.asarray(v))), dtype=A.dtype
        )
    return A


def _linear_operator(A: Any) -> Any:
    """A matrix, or what has ``matvec``, as a LinearOperator of SciPy's."""
    return load("scipy.sparse.linalg").aslinearoperator(A)


class CgOptions(NamedTuple):
    """What a price depends on besides the operands."""

    rtol: float  # how much smaller the residual must get
    iterations: int  # how many to expect
    known: bool = False  # whether this number is certain


def problem_of(A: Any, b: Any, x0: Any, M: Any, rtol: float, limit: int) -> Problem:
    """The problem of a call, of ``limit`` iterations at most; ValueError where the arguments do not
    fit together."""
    n = A.shape[0]
    if isinstance(x0, str) and x0 != "Mb":
        raise ValueError(f"x0 must be a vector or 'Mb', got {x0!r}")
    given = {"b": b} | ({} if x0 is None or isinstance(x0, str) else {"x0": x0})
    for name, vector in given.items():
        if tuple(vector.shape) not in ((n,), (n, 1)):
            raise ValueError(f"{name} must have shape ({n},) or ({n}, 1), got {vector.shape}")
    vectors = tuple(describe(vector).unkept()._replace(pointer=0) for vector in given.values())
    layout, entries, matrix, obstacle = _layout(A)
    # A LinearOperator may not say of which dtype it is.
    given_dtype = matrix[0].dtype if layout == "dense" else A.dtype or float
    dtype = systems.real_dtype("real or complex", A=given_dtype, b=vectors[0].dtype)
    if dtype.kind != "c" and "x0" in given:
        systems.real_dtype(x0=vectors[1].dtype)
    layout, by_M, share = _preconditioned(n, M, layout, dtype)
    obstacle = obstacle or by_M
    if dtype.kind == "c":
        layout, matrix, obstacle = "operator", (), "complex numbers compute on the CPU"
    expected = round(_expected(A, rtol, dtype) * share)
    shown = (f"CSR {n} x {n}, {entries} entries on host", *shapes_of(vectors))
    return Problem(
        NAME,
        (n, entries),
        arrays.name_of(dtype),
        (*matrix, *vectors),
        arrays.dense((n,), dtype, vectors[0].location),
        layout=layout,
        function="solve_cg",
        device_obstacle=obstacle or (None if n else "nothing to solve"),
        options=CgOptions(rtol, max(1, min(expected, limit))),
        shown=shown if layout == "csr" else (),
    )


def _layout(A: Any) -> tuple[str, int, tuple[Operand, ...], str | None]:
    """What decides the speed of A times a vector, its entries, what of it is moved, and why no
    device can do it."""
    n = A.shape[0]
    if isinstance(A, (np.ndarray, Spec)) or is_device_array(A):
        return "dense", n * n, (describe(A)._replace(pointer=0),), None
    if hasattr(A, "stencil"):
        axes = len(A.stencil.shape)
        return f"stencil{axes}", (2 * axes + 1) * n, (), None
    if isinstance(A, DeviceCsr):
        return "csr", A.nnz, A.operands, None
    if hasattr(A, "indptr"):
        parts = A.data, A.indices, A.indptr
        moved = tuple([describe(part).unkept() for part in parts])  # by the solve itself
        return "csr", A.nnz, moved, None
    return "operator", n, (), "a LinearOperator computes on the CPU"


def _preconditioned(n: int, M: Any, layout: str, dtype: np.dtype) -> tuple[str, str | None, float]:
    """With a preconditioner: the layout, why no device can do it, and the share of the iterations
    without it that are left."""
    if M is None:
        return layout, None, 1.0
    if isinstance(M, str):
        if M not in ("jacobi", "multigrid"):
            raise ValueError(f"M must be 'jacobi', 'multigrid' or a matrix, got {M!r}")
        if M == "jacobi" and layout == "operator":
            raise ValueError("M='jacobi' needs A's diagonal, which a LinearOperator hides")
        if M == "multigrid" and not layout.startswith("stencil"):
            raise ValueError("M='multigrid' needs A to be a hetero.Poisson")
        return (layout, None, 1.0) if M == "jacobi" else (f"{layout}-multigrid", None, 0.0)
    shape = tuple(M.shape) if hasattr(M, "shape") else np.shape(M)
    if shape not in ((n,), (n, n)):
        raise ValueError(f"M must have shape ({n}, {n}) or ({n},), got {shape}")
    given = M.dtype if hasattr(M, "dtype") else np.asarray(M).dtype
    if dtype.kind != "c" and np.dtype(given or float).kind == "c":
        raise ValueError(f"M must be real where A and b are, got dtype {given}")
    if shape == (n,):
        return layout, None, 1.0
    return layout, "the preconditioner M computes on the CPU", 0.5


def _expected(A: Any, rtol: float, dtype: np.dtype) -> float:
    """Iterations to expect.

    From the spectrum where it is known (`Poisson.expected_iterations`). Else a rule: a sparse
    matrix is taken for the five-point operator on a square grid of as many unknowns, a dense one
    for one of condition number 100.
    """
    if hasattr(A, "expected_iterations"):
        return A.expected_iterations(max(rtol, float(np.finfo(dtype).eps)))
    logarithm = digits(rtol, dtype) + math.log(2.0)
    if hasattr(A, "nnz"):
        return 0.5 * (2.0 / math.pi) * math.sqrt(A.shape[0]) * logarithm
    return min(A.shape[0], 5.0 * logarithm)


def least_iterations(rtol: float, dtype: np.dtype) -> float:
    """Iterations that a solve takes at least: those of condition number 2."""
    return 0.5 * math.sqrt(2.0) * (digits(rtol, dtype) + math.log(2.0))


def work(problem: Problem, info: dict[str, Any]) -> Work:
    """One iteration: the matrix once, and ten passes over a vector, which a stencil stays with."""
    n, entries = problem.dims
    dtype, (kind, _, M) = np.dtype(problem.dtype), problem.layout.partition("-")
    matrix = {"dense": dtype.itemsize, "csr": dtype.itemsize + 4}.get(kind, 0) * entries
    dims = (n, max(entries // max(n, 1), 1)) if kind == "csr" else (n,)
    rtol, repeat, _ = problem.options
    if M:
        repeat = max(2, math.ceil(digits(rtol, dtype) / 2.6))
    terms = _DENSE_TERMS if kind == "dense" else ()
    nbytes = matrix + 10.0 * n * dtype.itemsize
    return Work(dims, 2.0 * entries + 10.0 * n, nbytes, repeat, terms=terms)


def key_of(A: Any, b: Any, x0: Any, M: Any, *others: Any) -> Any:
    """What the plan of a call from host memory depends on; None for any other call, and where A may
    have copies on devices."""
    is_kept = type(A) is np.ndarray and arrays.describe_used(A).kept is not None
    facts = _facts(A), _facts(b), _facts(x0), _facts(M)
    unusual = is_kept or type(b) is not np.ndarray or _OTHER in facts
    return None if unusual else (NAME, *facts, *others)


def _facts(given: Any) -> Any:
    """What a plan depends on of an operand."""
    if given is None or isinstance(given, str):
        return given
    if type(given) is np.ndarray:
        return given.shape, given.strides, given.dtype
    if hasattr(given, "stencil"):
        return given.stencil, given.dtype
    if hasattr(given, "indptr"):
        indices = given.indices.dtype, given.indptr.dtype
        return given.shape, given.nnz, given.data.dtype, *indices
    return ("operator", given.shape, given.dtype) if hasattr(given, "matvec") else _OTHER


def system_of(A: Any, M: Any, dtype: np.dtype, used: tuple[Any, ...]) -> tuple[Any, Any]:
    """System and preconditioner in the solve's dtype, as those devices want them; none: the CPU.

    The system is a Stencil, Csr, Dense or LinearOperator. The preconditioner is None, the diagonal
    of an approximate inverse of A, ``apply(r, z)`` on the CPU, or a `DeviceHierarchy`.
    """
    return _system(A, dtype, used), _preconditioner(A, M, dtype, used)


def _system(A: Any, dtype: np.dtype, used: tuple[Any, ...]) -> Any:
    if isinstance(A, DeviceCsr):
        if [device.name for device in used] == [A.location] and A.dtype == dtype:
            return Csr(*A.parts)
        A = A.host
    if dtype.kind == "c":
        if is_device_array(A):
            A = on_host(A, dtype)
        return _linear_operator(np.asarray(A, dtype) if isinstance(A, np.ndarray) else A)
    if hasattr(A, "stencil"):
        return A.stencil
    if hasattr(A, "indptr"):
        return Csr(A.indptr, A.indices, A.data.astype(dtype, copy=False))
    if not isinstance(A, np.ndarray) and not is_device_array(A):
        return A
    if used or not isinstance(A, np.ndarray):
        operand = describe(A)
        strides = operand.staged_strides()
        if len(used) == 1 and operand.dtype == dtype and strides is not None:
            with used[0].active():
                [(buffer, owner)] = transfer.stage_all(used[0], (A,), (operand,))
            return Dense(buffer, A.shape[0], strides, owner)
        if operand.location != HOST:
            A = on_host(A, dtype, operand)
    A = np.asarray(A, dtype)
    if not (A.flags.c_contiguous or A.flags.f_contiguous):
        A = np.ascontiguousarray(A)
    return Dense(A, A.shape[0], tuple(s // A.itemsize for s in A.strides))


def _preconditioner(A: Any, M: Any, dtype: np.dtype, used: tuple[Any, ...]) -> Any:
    if M is None:
        return None
    if isinstance(M, str):
        if M == "multigrid":
            return _multigrid(A.stencil, dtype, used)
        if hasattr(A, "stencil"):  # a constant diagonal changes no iterate
            return None
        A = on_host(A, dtype) if is_device_array(A) else getattr(A, "host", A)
        with np.errstate(all="ignore"):
            inverse = 1.0 / A.diagonal().real.astype(dtype.type(0).real.dtype)
        return np.repeat(inverse, 2) if dtype.kind == "c" else inverse
    if np.ndim(M) != 1:
        multiply = _linear_operator(M).matvec
    else:
        inverse = np.ascontiguousarray(M, dtype)
        if dtype.kind != "c":
            return inverse
        multiply = inverse.__mul__
    return load("hetero.ops.solvers.cg_loop").into("M times a vector", multiply, dtype)


def _multigrid(stencil: Stencil, dtype: np.dtype, used: tuple[Any, ...]) -> Any:
    """One cycle; on the CPU, where its loops are not compiled, the inverse itself."""
    real = dtype.type(0).real.dtype
    if used:
        multigrid_device = load("hetero.ops.solvers.multigrid_device")
        with used[0].active():
            return multigrid_device.DeviceHierarchy(used[:1], stencil, real)
    if loops.is_ready(loops.named(systems.CYCLES, real)):
        apply = load("hetero.ops.solvers.multigrid").CpuHierarchy(stencil, real).apply
    else:
        vectors = systems.on_vectors(real, math.prod(stencil.shape))
        inverse = load("hetero.ops.solvers.dst").applied(stencil, real, vectors)

        def apply(r: np.ndarray, z: np.ndarray) -> None:
            inverse(r.reshape(stencil.shape), z.reshape(stencil.shape))

    if dtype.kind != "c":
        return apply

    def by_parts(r: np.ndarray, z: np.ndarray) -> None:
        for part in (0, 1):
            of_z = np.empty(r.size // 2, r.dtype)
            apply(np.ascontiguousarray(r[part::2]), of_z)
            z[part::2] = of_z

    return by_parts
