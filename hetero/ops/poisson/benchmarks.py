"""What `hetero bench`, `verify` and `demo` ask of Poisson's equation, compared with others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial, reduce
from typing import Any

import numpy as np

from hetero.arrays import spec
from hetero.host import cpu
from hetero.ops.benchmark import (
    Axis,
    Benchmark,
    Comparison,
    Line,
    Named,
    TimedCall,
    Trial,
    compared,
    cuda_device,
    library,
)
from hetero.ops.poisson import OPERATION
from hetero.registry.problem import DEVICE_DTYPES

DTYPE = "float64"
GRIDS = (256, 1024, 4096)
ON_CPU = (128, 1024, 2048)  # where there is no GPU
CASES = {"dtu": Named("float64", tuple((n, n) for n in (16, 32, 64, 128, 256)))}  # docs/seeds.md
_LONGEST = 5.0  # predicted seconds of a solve
_LARGEST_FOR_JACOBI = 256
_LARGEST_FOR_PYAMG = 1024
_LARGEST_DRAWN = {2: 2048, 3: 128}  # extents, by the number of axes

LINES = (
    Line("n x n points", Axis("n", 16, 4096), lambda n: (n, n)),
    Line("n x n x n points", Axis("n", 8, 256), lambda n: (n, n, n)),
)


def draw(random: random.Random, on: str, largest: int) -> Trial:
    """A rectangle or a box, about as high as wide."""
    dtype = random.choice(DEVICE_DTYPES)
    ndim = random.choice((2, 2, 3))
    size = 4 * (min(largest, _LARGEST_DRAWN[ndim]) / 4) ** random.random()
    shape = tuple(max(2, round(size * random.uniform(0.7, 1.0))) for _ in range(ndim))
    return Trial((spec(shape, dtype, on=on),))


def benchmarks(dtype: str, sizes: tuple[tuple[int, ...], ...] | None = None) -> Iterator[Benchmark]:
    """Squares, host to host."""
    rtol = 1e-8 if dtype == "float64" else 1e-4
    grids = GRIDS if cuda_device() else ON_CPU
    for n in [n for n, _ in sizes] if sizes else grids:
        case = f"Poisson {n}^2 to {rtol:g}, host to host, {dtype}"
        make = partial(_compare, n, rtol, dtype)
        yield Benchmark(case, make, "solve", budget=1.0, least=2, most=9)


def moved(dtype: str) -> Iterator[Benchmark]:
    """The largest of the squares."""
    yield list(benchmarks(dtype))[-1]


def demonstrated(largest: int) -> Iterator[Benchmark]:
    """Squares that sine transforms like and, compared with PyAMG too, ones that they do not."""
    for n in (largest // 4 - 1, largest // 2):
        case = f"solve_poisson {n}x{n} points, float64, to 1e-8"
        yield Benchmark(case, partial(_compare, n, 1e-8, DTYPE, shown=True))


def _compare(n: int, rtol: float, dtype: str, shown: bool = False) -> Comparison:
    """By itself beside others, or by every method, too, that is not slow."""
    f = np.random.default_rng(2).random((n, n)).astype(dtype)
    peers, modules = _scipy(f), ()
    if n <= _LARGEST_FOR_PYAMG // (1 + shown) and dtype == "float64":
        peers, modules = peers | _pyamg(f, rtol), ("pyamg",)
    if shown:
        peers = {name: run for name, run in peers.items() if "included" not in name}
        return compared(OPERATION, (f,), {"rtol": rtol}, peers, *modules)
    found = compared(OPERATION, (f,), {"rtol": rtol}, peers, longest=_LONGEST)
    if n <= _LARGEST_FOR_JACOBI:
        return found
    others = {name: call for name, call in found.calls.items() if not name.startswith("jacobi ")}
    return found._replace(calls=others)


def _scipy(f: np.ndarray) -> dict[str, TimedCall]:
    """SciPy's sine transforms, on one thread as by default and on one for each core."""
    from scipy.fft import dstn, idstn

    one = 4.0 * np.sin(np.pi * np.arange(1, len(f) + 1) / (2 * (len(f) + 1))) ** 2
    eigenvalues = reduce(np.add.outer, [one] * f.ndim).astype(f.dtype)

    def run(workers: int, turn: int) -> Any:
        return idstn(dstn(f, type=1, workers=workers) / eigenvalues, type=1, workers=workers)

    counts = sorted({1, cpu.describe()["cores"]})
    return {f"SciPy dstn, idstn, workers: {count}": partial(run, count) for count in counts}


def _pyamg(f: np.ndarray, rtol: float) -> dict[str, TimedCall]:
    """Ruge-Stueben multigrid as preconditioner of conjugate gradients."""
    if (pyamg := library("pyamg")) is None:
        return {}
    from hetero.ops.linear_systems.operators import Poisson

    made, A = pyamg.ruge_stuben_solver, Poisson(f.shape).tocsr()
    ready, b = made(A), f.ravel()

    def run(solver: Any) -> tuple[Any, int]:
        residuals: list[float] = []
        return solver.solve(b, tol=rtol, accel="cg", residuals=residuals), len(residuals) - 1

    return {
        "PyAMG RS-CG, set-up included": lambda turn: run(made(A)),
        "PyAMG RS-CG, without set-up": lambda turn: run(ready),
    }
