"""What solvers are given and what they give back, a plan of theirs run; solves at another scale."""

from __future__ import annotations

import math
import operator
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import tables
from hetero.arrays import HOST, Operand, describe
from hetero.errors import outside
from hetero.host import cpu
from hetero.host.loops import is_ready, register, vectors_for
from hetero.imports import load
from hetero.pricing.plan import CPU, Plan
from hetero.registry import Arguments

CONVERGED = "converged"
LIMIT = "iteration limit"
ROUNDING = "rounding"  # it keeps the residual above the tolerance
INDEFINITE = "not positive definite"
NOT_FINITE = "not finite"
OUT_OF_RANGE = "out of range"  # the squares of b, so that nothing was done; see `scaled`
# By the numbers with which conjugate gradients in kernels and compiled loops end.
ENDED = (LIMIT, CONVERGED, INDEFINITE, NOT_FINITE)

# The compiled loops of solves on the CPU, and what calls all of each family.
ROWS = register("rows", "hetero.ops.solvers.cg_loop:rows")
STENCILS = register("stencils", "hetero.ops.solvers.cg_loop:stencils")
CYCLES = register("multigrid", "hetero.ops.solvers.multigrid:example")
SWEEPS = register("sweeps", "hetero.ops.solvers.jacobi:example")
VECTORS = register("vectors", f"{__name__}:vectors")
# ``on_vectors(dtype)`` for float32 or float64: compiled, or NumPy's where they are not.
on_vectors = partial(vectors_for, VECTORS)
_LARGEST_FACTOR = 386  # from here on all prime factors cost a transform the same
_IMPORT = 0.25  # seconds, of Numba
_spent = {"seconds": 0.0}  # by solves without it
_FEW_POINTS = 1 << 16  # of which threads of transforms, however many, cost more than they save
# Norms of b that need no scaling: a residual may fall by many orders, and its square counts.
_SAFE = {4: 2.0**50, 8: 2.0**300}


class Stencil(NamedTuple):
    """-div grad on a box of interior points, Dirichlet: 5 points in 2-D, 7 in 3-D.

    (A u)_i = sum over axes of (2 u_i - u_before - u_after) / spacing**2, with zero outside. Arrays
    are C-contiguous.
    """

    shape: tuple[int, ...]  # points of each axis, (ny, nx) or (nz, ny, nx)
    spacing: tuple[float, ...]  # distance of neighbours, per axis

    @property
    def box(self) -> tuple[tuple[int, int, int], tuple[float, float, float]]:
        """Extents and 1 / spacing^2 of rows, lines and columns; 2-D has one line, of weight 0."""
        weights = [1.0 / h**2 for h in self.spacing]
        flat = 3 - len(weights)
        return (
            (self.shape[0], *(1,) * flat, *self.shape[1:]),
            (weights[0], *(0.0,) * flat, *weights[1:]),
        )

    def eigenvalue_bounds(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue: sums over the axes of 4 / h^2 sin^2 and cos^2."""
        axes = [(4.0 / h**2, math.pi / (2 * (n + 1))) for n, h in zip(*self, strict=True)]
        low = sum(weight * math.sin(angle) ** 2 for weight, angle in axes)
        return low, sum(weight * math.cos(angle) ** 2 for weight, angle in axes)

    def eigenvalues(self) -> list[np.ndarray]:
        """Of -d^2/dx^2 along each axis: 4 / h^2 sin^2(pi k / (2 (n + 1))), float64."""
        angles = [np.arange(1, n + 1) * (np.pi / (2 * (n + 1))) for n in self.shape]
        each = zip(self.spacing, angles, strict=True)
        return [4.0 * (1.0 / h**2) * np.sin(angle) ** 2 for h, angle in each]

    def eigenvectors(self) -> list[np.ndarray]:
        """Along each axis, as a symmetric, orthogonal matrix of sines, float64: its own inverse."""
        each = [(n + 1, np.arange(1, n + 1)) for n in self.shape]
        turns = [(m, np.outer(k, k) % (2 * m)) for m, k in each]  # small angles are exact
        return [math.sqrt(2.0 / m) * np.sin(np.pi / m * whole) for m, whole in turns]


def by_threads(points: int, cores: int) -> bool:
    """Whether the CPU's cores share sine transforms of this many points."""
    return cores > 1 and points >= _FEW_POINTS


def largest_factor(n: int) -> int:
    """The largest prime factor of a transform's length; in place of one above 386 maybe a multiple
    of it."""
    prime, largest = 2, 1
    while prime * prime <= n and prime < _LARGEST_FACTOR:
        while n % prime == 0:
            n, largest = n // prime, prime
        prime += 1
    return max(largest, n)


def transform_cost(n: int, kind: str) -> float:
    """How much longer a sine transform of n points takes for the prime factors of n + 1.

    Measured: SciPy's 1.4 to 1.8 times with a prime factor of 29 to 43, 5 to 11 times beyond 250;
    cuFFT's 3.8 times beyond 127.
    """
    largest = largest_factor(n + 1)
    if kind == "cpu":
        return 1.0 + min(largest / 55.0, 7.0)
    return 3.8 if largest > 127 else 1.0


def checked_spacing(spacing: Any, ndim: int) -> tuple[float, ...]:
    """Distances of neighbouring points, one per axis; ValueError where they are none."""
    if type(spacing) is float and 0.0 < spacing < math.inf:
        return (spacing,) * ndim
    try:
        given = [spacing] * ndim if np.ndim(spacing) == 0 else spacing
        distances = tuple(map(float, given))
    except (TypeError, ValueError):
        distances = ()
    if len(distances) != ndim:
        raise ValueError(f"spacing must be one number or {ndim}, got {spacing!r}")
    if not all(0.0 < h < math.inf for h in distances):
        raise ValueError(f"spacing must be positive, got {spacing!r}")
    return distances


class Csr(NamedTuple):
    """A square sparse matrix in compressed rows; index arrays are int32, or int64 if they must.

    Of arrays on the host, or all on the one device that solves.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class DeviceCsr:
    """A square matrix in compressed rows of CuPy's or torch's, where it is: its pointers, indices
    and data, arrays on one device, and ``copy()``, which gives it as one of SciPy's."""

    def __init__(self, shape: Any, parts: tuple[Any, Any, Any], copy: Callable[[], Any]) -> None:
        self.shape, self.parts, self._copy, self._host = tuple(shape), parts, copy, None
        pointers, indices, data = self.operands = tuple([describe(part).unkept() for part in parts])
        self.dtype, self.nnz, self.location = data.dtype, data.size, data.location
        self.is_usual = pointers.dtype == indices.dtype and data.dtype.char in "fd"
        self.is_usual &= all(operand.is_c_contiguous() for operand in self.operands)

    @property
    def host(self) -> Any:
        """The matrix on the host, which is copied once."""
        self._host = self._copy().tocsr() if self._host is None else self._host
        return self._host


class Dense(NamedTuple):
    """A dense n x n matrix."""

    array: Any  # numpy.ndarray or device buffer
    n: int
    strides: tuple[int, int]  # of rows and of columns, in elements
    owner: Any = None  # of a buffer that lives no longer than this


def unknowns(system: Stencil | Csr | Dense) -> int:
    """How many unknowns a system has."""
    if isinstance(system, Stencil):
        return math.prod(system.shape)
    return system.n if isinstance(system, Dense) else system.indptr.shape[0] - 1


class Outcome(NamedTuple):
    """How a solve ended."""

    status: str  # one of those above
    iterations: int  # iterations, sweeps or cycles done
    residual: float  # 2-norm of the true residual b - A x of the x that is returned
    right_side: float | None = None  # 2-norm of b; None from a solver that did not need it

    @property
    def info(self) -> int:
        """What SciPy's solvers return: 0, the iterations done, or below 0 where it broke down."""
        if self.status == LIMIT:
            return max(self.iterations, 1)
        return {CONVERGED: 0, INDEFINITE: -1, NOT_FINITE: -2}[self.status]


def judged(
    residual: float, bound: float, otherwise: str, iterations: int, right_side: float
) -> Outcome:
    """The outcome of a solve that ended with a residual; ``otherwise`` is why where that is above
    the bound."""
    status = CONVERGED if residual <= bound else otherwise
    if not math.isfinite(residual):
        status = NOT_FINITE
    return Outcome(status, iterations, residual, right_side)


class Solve(NamedTuple):
    """What a solver's ``run`` gets; done when norm(b - A x) <= max(rtol norm(b), atol)."""

    # A Stencil, or ``system(devices)``: system and preconditioner there, of none for the CPU.
    system: Any
    rtol: float
    atol: float
    maxiter: int
    callback: Callable[[Any], object] | None = None  # called with x after each iteration
    exactly: bool = False  # makes maxiter iterations whatever the residual is, if it can
    from_zero: bool = False  # starts from zero, which x need not hold but for one device
    lenient: bool = False  # a residual that rounding x leaves will do
    measured: bool = True  # the residual is asked for, also of a direct solve, which needs none


def ready(plan: Plan) -> Plan:
    """A plan of which the loops are compiled, where it runs on the CPU."""
    if plan.chosen.device == CPU:
        load("hetero.calling.execution").compile_loops(plan)
    return plan


def execute(plan: Plan, asked: Solve, b: Any, x0: Any, read: tuple[Operand, ...] = ()) -> Any:
    """Run a solve's plan from the caller's x0, for a result where b lies: an `execution.Done`, its
    value of the caller's array type.

    ``read`` describes device arrays that the system holds. The plan is `ready`. On the CPU, of
    arrays on the host, its method runs at once: nothing moves, and no device can fail.
    """
    execution = load("hetero.calling.execution")
    if asked.from_zero != (x0 is None):
        asked = asked._replace(from_zero=x0 is None)
    problem, dtype, chosen = plan.problem, np.dtype(plan.problem.dtype), plan.chosen
    start = 0.0 if x0 is None else on_host(x0, dtype).reshape(b.shape)
    is_here = type(b) is np.ndarray and chosen.device == CPU
    if is_here and problem.next_device is None and not plan.kept:
        x = cpu.empty(b.shape, dtype)
        if x0 is not None:
            x[...] = start
        given = Arguments((np.ascontiguousarray(b, dtype),), x, asked)
        outcome = chosen.implementation.run((), problem, given)
        return execution.Done(x, outcome, CPU, chosen.method)
    rhs, operand = b, describe(b)
    if operand.location == HOST or operand.dtype != dtype or not operand.is_c_contiguous():
        rhs = on_host(b, dtype, operand)
    moved = (operand if rhs is b else describe(rhs)).unkept()
    if moved.location != problem.output.location:
        output = problem.output._replace(location=moved.location)
        plan = replace(plan, problem=replace(problem, output=output))
    call = execution.Call((rhs,), (moved,), options=asked, start=start, read=read)
    done = execution.run(plan, call)
    if moved.location != operand.location:
        done = done._replace(value=like(b, done.value))
    return done


def warn(what: str, outcome: Any, residual: str) -> None:
    """A RuntimeWarning, of the public function's caller, that tells why a solve ended."""
    warnings.warn(
        f"{what} stopped after {outcome.iterations} iterations: {outcome.status}; {residual}",
        RuntimeWarning,
        stacklevel=outside(),
    )


def without_numba(run: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Solves without the loops of these names, which are compiled, while Numba is not imported: it
    is imported once they have taken as long as that does, and they are planned anew."""
    if "numba" in sys.modules or not all(map(is_ready, names)):
        return run

    def solve(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = run(*arguments)
        _spent["seconds"] += time.perf_counter() - began
        if _spent["seconds"] >= _IMPORT:
            load("numba")
            tables.forget()
        return result

    return solve


def least_tolerance(dtype: Any) -> float:
    """What stands for a relative tolerance of 0: a thousandth of rounding."""
    return float(np.finfo(dtype).eps) / 1024.0


def real_dtype(kinds: str = "real", **dtypes: Any) -> np.dtype:
    """float32 if all dtypes fit in it, else float64; ValueError for what is not real.

    ``kinds`` "real or complex": complex64 or complex128 where one of them is complex.
    """
    given = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
    for name, dtype in given.items():
        if dtype.kind not in ("fiub" if kinds == "real" else "fiubc"):
            raise ValueError(f"{name} must be {kinds}, got dtype {dtype}")
    small = all(dtype.char in "efF" for dtype in given.values())
    is_complex = any(dtype.kind == "c" for dtype in given.values())
    return np.dtype(("fd", "FD")[is_complex][not small])


def checked_tolerance(name: str, value: Any) -> float:
    """A tolerance as float; ValueError where it is no number, negative or NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}") from None
    if not number >= 0.0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")
    return number


def checked_limit(maxiter: Any, default: int) -> int:
    """``maxiter`` as int; ValueError where it is no whole number, or negative."""
    if maxiter is None:
        return default
    try:
        number = operator.index(maxiter)
    except TypeError:
        raise ValueError(f"maxiter must be a whole number, got {maxiter!r}") from None
    if number < 0:
        raise ValueError(f"maxiter must be at least 0, got {maxiter!r}")
    return number


def digits(rtol: float, dtype: np.dtype) -> float:
    """ln of the factor a residual must shrink by, no further than rounding lets it."""
    return -math.log(min(max(rtol, float(np.finfo(dtype).eps)), 1.0))


def on_host(array: Any, dtype: np.dtype, operand: Operand | None = None) -> np.ndarray:
    """Values of an array on the host, C-contiguous and of the solve's dtype."""
    operand = describe(array) if operand is None else operand
    if operand.location != HOST:
        array = load("hetero.moving.transfer").to_host(array, operand)
    return np.ascontiguousarray(array, dtype)


def like(array: Any, values: np.ndarray) -> Any:
    """Host values as a new array of the kind of a device array, on its device."""
    transfer = load("hetero.moving.transfer")
    made, _ = transfer.empty_like(array, describe(array), values.shape, values.dtype)
    transfer.from_host(values, describe(made))
    return made


def is_safe(norm: float, itemsize: int) -> bool:
    """Whether a solve may begin with a right-hand side of this norm as it is.

    The norm may be 0 or inf, where the sum of squares vanished or overflowed, or NaN; a real number
    has ``itemsize`` bytes.
    """
    most = _SAFE[itemsize]
    return 1.0 / most <= norm <= most


def scaled(
    run: Callable[[np.ndarray, np.ndarray, Solve], Outcome],
    b: np.ndarray,
    x: np.ndarray,
    asked: Solve,
    most: Callable[[float], float] = float,
) -> Outcome:
    """Solve A x = b with the largest element of b brought to about 1 by a power of two.

    A x = b and A (s x) = s b have the same iterates but for the factor s, and a power of two costs
    no digits. The norms and scalar products of a solve then stay in the middle of the range.

    ``run(b, x, asked)`` solves from x, which it overwrites. A start next to which b vanishes is
    taken for zero. The callback gets x at its own scale; CONVERGED only where x itself, rounded to
    that, meets the tolerance. ``most`` gives the largest number of all processes that hold parts of
    b and x.
    """
    with np.errstate(all="ignore"):
        largest = most(np.abs(real_view(b)).max(initial=0.0))
        if largest == 0.0:
            x[...] = 0.0
            return Outcome(CONVERGED, 0, 0.0)
        if not math.isfinite(largest):
            return Outcome(NOT_FINITE, 0, math.nan)
        exponent = math.frexp(largest)[1]
        rhs, y = times_power(b, -exponent), times_power(x, -exponent)
        if not most(np.abs(real_view(y)).max(initial=0.0)) <= _SAFE[real_view(y).itemsize]:
            y[...] = 0.0
        report = asked.callback and (lambda y: asked.callback(times_power(y, exponent)))
        there = asked._replace(atol=float(np.ldexp(asked.atol, -exponent)), callback=report)
        look = there._replace(maxiter=0, callback=None, from_zero=False)
        kept = y.copy()
        outcome = run(rhs, y, there)
        result, status = times_power(y, exponent), outcome.status
        if most(not np.isfinite(result).all()):
            status = NOT_FINITE
        elif outcome.iterations or status == CONVERGED:
            x[...] = result
            kept = times_power(result, -exponent)
        again = run(rhs, kept, look)
        if status == CONVERGED != again.status:
            status = LIMIT
        residual = float(np.ldexp(again.residual, exponent))
        whole = outcome.right_side and float(np.ldexp(outcome.right_side, exponent))
        return Outcome(status, outcome.iterations, residual, whole)


def real_view(x: np.ndarray) -> np.ndarray:
    """The real and imaginary parts of a contiguous complex vector in turn; a real one itself."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x


def times_power(x: np.ndarray, exponent: int) -> np.ndarray:
    """A copy of x times 2**exponent."""
    return np.ldexp(real_view(x), exponent).view(x.dtype)


def vectors(dtype: np.dtype) -> None:
    """Call the compiled operations on vectors."""
    loops = load("hetero.kernels.cpu.vectors")
    x, r, p, q = np.ones((4, 16), dtype)
    loops.norm(x)
    loops.scale_and_add(p, 0.5, r)
    loops.step(x, r, p, q, 0.5)
    loops.times_zero(x)
    loops.tridiagonal(x.reshape(4, 4), r[:4], p, np.array([0, 16]), x[0])
