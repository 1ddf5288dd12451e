"""What `hetero bench` and `verify` ask of conjugate gradients, beside SciPy's and CuPy's."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from hetero.arrays import spec
from hetero.calling import planner
from hetero.ops.benchmark import (
    Axis,
    Benchmark,
    Comparison,
    Iterations,
    Line,
    TimedCall,
    Trial,
    compared,
    cuda_device,
    library,
    name_of,
)
from hetero.ops.cg import OPERATION, solve_cg
from hetero.pricing.plan import CPU
from hetero.registry.problem import DEVICE_DTYPES

DTYPE = "float64"
_SPREAD = 100.0  # of the dense systems, which then need more than 256 iterations in either dtype
DENSE = (512, 1024, 2048, 4096, 8192, 16384)
GRIDS = (512, 1024, 2048, 4096)
_SHOWN = 200  # iterations in demo
_LARGEST_ON_CPU = 2048  # of dense matrices, and of grids whose matrix is stored
_LARGEST_FOR_SCIPY = 1024
_LARGEST_DRAWN = {"dense": 2048, "stored": 1024, "matrix-free": 1024, "operator": 512}

LINES = (
    Line("five-point operator on n x n points", Axis("n", 16, 4096), lambda n: (n, n)),
    Line("dense, of n x n", Axis("n", 16, 8192), lambda n: (n,)),
)


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """The five-point operator, matrix-free, stored or as SciPy's operator, or a dense matrix."""
    dtype = random.choice(DEVICE_DTYPES)
    kind = random.choice(tuple(_LARGEST_DRAWN))
    most = min(largest, _LARGEST_DRAWN[kind])
    n, m = (max(2, round(2.0 ** random.uniform(2, math.log2(most)))) for _ in range(2))
    if kind == "dense":
        return Trial((dense(n, dtype), spec(n, dtype, on=on)))
    A = _operator((n, m), dtype)
    if kind != "matrix-free":
        A = A.tocsr()
    if kind == "operator":
        from scipy.sparse.linalg import aslinearoperator

        A = aslinearoperator(A)
    return Trial((A, spec(n * m, dtype, on=on)))


def _operator(shape: tuple[int, int], dtype: str) -> Any:
    from hetero.ops.linear_systems.operators import Poisson  # with all of SciPy's solvers

    return Poisson(shape, dtype=dtype)


def dense(n: int, dtype: str, spread: float = 1.0) -> np.ndarray:
    """A random symmetric matrix that is positive definite.

    Its rows and columns are scaled by factors from 1 to 1 / spread: it has a wide spectrum then.
    """
    A = np.random.default_rng(1).random((n, n), dtype=np.float32).astype(dtype)
    A += A.T
    A[np.diag_indices(n)] += 4.0 * math.sqrt(n)
    factors = np.geomspace(1.0, 1.0 / spread, n, dtype=dtype)
    A *= factors
    A *= factors[:, None]
    return A


def benchmarks(dtype: str) -> Iterator[Benchmark]:
    """One iteration on the five-point operator; whole solves with dense matrices, host to host."""
    gpu = cuda_device()
    for n in GRIDS:
        for kind in ("matrix-free", "CSR"):
            if kind == "matrix-free" or n <= _LARGEST_ON_CPU or gpu is not None:
                facts = {
                    "floor_bytes": 10.0 * n * n * np.dtype(dtype).itemsize,
                    "passes": " in ten passes",
                    "asked": _few_and_many(n)[1],
                }
                case = f"{n}^2 five-point, {kind}, {dtype}"
                yield Benchmark(case, partial(_of_stencil, n, kind, dtype), "iteration", facts)
    for n in DENSE:
        for count in (8, 256) if n <= _LARGEST_ON_CPU or gpu is not None else ():
            case = f"dense {n}, {count} iterations, host to host, {dtype}"
            make = partial(_of_dense, n, count, dtype)
            yield Benchmark(case, make, "solve", {"asked": count}, budget=1.0, most=9)


def _few_and_many(n: int) -> tuple[int, int]:
    """Iterations on n^2 points, the same for all: of large grids fewer can be timed as well."""
    return 20, 20 + max(20, 200 * GRIDS[0] // n)


def _of_stencil(n: int, kind: str, dtype: str) -> Comparison:
    operator = _operator((n, n), dtype)
    b = np.random.default_rng(0).random(n * n).astype(dtype)
    A = operator if kind == "matrix-free" else operator.tocsr()
    calls = {}
    for place in filter(None, (CPU, cuda_device())):
        chosen = planner.plan_call(OPERATION, (A, b), {}, place).chosen
        calls[name_of(chosen)] = Iterations(partial(_solve, A, b, place), *_few_and_many(n))
    peers = _peers(operator.tocsr(), b, slow=n > _LARGEST_FOR_SCIPY)
    return Comparison(calls, {name: Iterations(run, *_few_and_many(n)) for name, run in peers})


def demonstrated(largest: int) -> Iterator[Benchmark]:
    """As many iterations on a five-point matrix, stored by SciPy."""
    n = min(max(largest // 8, 64), GRIDS[0])  # smaller ones are solved before
    yield Benchmark(
        f"solve_cg {n}x{n} unknowns, float64: {_SHOWN} iterations, five-point matrix in CSR",
        partial(_of_as_many, n),
    )


def _of_as_many(n: int) -> Comparison:
    A, b = _operator((n, n), DTYPE).tocsr(), np.random.default_rng(0).random(n * n)
    peers = {
        name: lambda turn, run=run: run(_SHOWN)
        for name, run in _peers(A, b, slow=False)
        if name.startswith("SciPy")
    }
    peers |= _from_host_by_cupy(A, b, _SHOWN)
    return compared(OPERATION, (A, b), {"rtol": 0.0, "maxiter": _SHOWN}, peers)


def _solve(A: Any, b: np.ndarray, device: str | None, count: int, turn: int = 0) -> Any:
    return solve_cg(A, b, rtol=0.0, maxiter=count, device=device)


def _by_scipy(A: Any, b: np.ndarray, count: int, turn: int = 0) -> Any:
    from scipy.sparse.linalg import cg

    return cg(A, b, rtol=0.0, maxiter=count)


def _peers(A: Any, b: np.ndarray, slow: bool) -> Iterator[tuple[str, TimedCall]]:
    """SciPy's cg and CuPy's, both on CSR."""
    if not slow:
        yield "SciPy, CSR", partial(_by_scipy, A, b)
    if (by_cupy := _cupys_solver()) is not None:
        cupy = library("cupy")
        there, rhs = library("cupyx.scipy.sparse").csr_matrix(A), cupy.asarray(b)

        def run(count: int) -> Any:
            found = by_cupy(there, rhs, maxiter=count)
            cupy.cuda.Device().synchronize()
            return found

        yield "CuPy, CSR", run


def _cupys_solver() -> Callable[..., Any] | None:
    """CuPy's cg with tolerances that no residual meets; None where there is no GPU or no CuPy."""
    if cuda_device() is None or library("cupy") is None:
        return None
    if (linalg := library("cupyx.scipy.sparse.linalg")) is None:
        return None
    renamed = "rtol" if "rtol" in inspect.signature(linalg.cg).parameters else "tol"
    return partial(linalg.cg, atol=0.0, **{renamed: 0.0})


def _from_host_by_cupy(A: Any, b: np.ndarray, count: int) -> dict[str, TimedCall]:
    """CuPy's solve with copies of host arrays, its result copied back; empty without CuPy."""
    if (by_cupy := _cupys_solver()) is None:
        return {}
    cupy, kind, move = library("cupy"), "dense", library("cupy").asarray
    if not isinstance(A, np.ndarray):
        kind, move = "CSR", library("cupyx.scipy.sparse").csr_matrix

    def run(turn: int) -> Any:
        x, made = by_cupy(move(A), cupy.asarray(b), maxiter=count)
        return cupy.asnumpy(x), made

    return {f"CuPy, {kind}": run}


def _of_dense(n: int, count: int, dtype: str) -> Comparison:
    """Solves of that many iterations, transfers included."""
    A, b = dense(n, dtype, _SPREAD), np.random.default_rng(0).random(n).astype(dtype)
    options = {"rtol": 0.0, "maxiter": count}

    def by(device: str | None) -> TimedCall:
        return partial(_solve, A, b, device, count)

    calls: dict[str, TimedCall] = {"automatic": by(None), "hetero on cpu": by(CPU)}
    peers: dict[str, TimedCall] = {"SciPy, dense": partial(_by_scipy, A, b, count)}
    if (gpu := cuda_device()) is not None:
        calls[f"hetero on {gpu}"] = by(gpu)
    peers |= _from_host_by_cupy(A, b, count)
    return Comparison(calls, peers, name_of(planner.plan_call(OPERATION, (A, b), options).chosen))
