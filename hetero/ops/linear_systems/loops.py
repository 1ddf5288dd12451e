"""The compiled loops of solves on the CPU by family, and small systems that call all of them."""

from __future__ import annotations

import numpy as np

from hetero.host.loops import Family, register
from hetero.imports import load
from hetero.ops.linear_systems.systems import Csr, Solve, Stencil

ROWS = register(Family("rows", f"{__name__}:rows"))
STENCILS = register(Family("stencils", f"{__name__}:stencils"))
CYCLES = register(Family("multigrid", f"{__name__}:cycles"))
SWEEPS = register(Family("sweeps", f"{__name__}:sweeps"))
_N = 64


def rows(dtype: np.dtype) -> None:
    """Conjugate gradients on matrices in compressed rows."""
    chunk = load("hetero.kernels.cpu.csr").CHUNK
    for n in (_N, chunk):  # in which runs of rows are looked for
        indptr = np.arange(n + 1, dtype=np.int32)
        _solve_cg(Csr(indptr, indptr[:-1].copy(), np.full(n, 2.0, dtype)), n, dtype)


def stencils(dtype: np.dtype) -> None:
    """Conjugate gradients on grids."""
    _solve_cg(Stencil((1, _N), (1.0, 1.0)), _N, dtype)


def cycles(dtype: np.dtype) -> None:
    """Multigrid: a cycle goes through all of its loops."""
    _solve_poisson("hetero.ops.multigrid.multigrid_cpu", dtype, 2)


def sweeps(dtype: np.dtype) -> None:
    """Jacobi's method."""
    _solve_poisson("hetero.ops.poisson.jacobi", dtype, 20)


def _solve_cg(system: Csr | Stencil, n: int, dtype: np.dtype) -> None:
    for start in (0.0, 1.0):  # from another start than 0 the residual is computed
        given = np.ones(n, dtype), np.full(n, start, dtype), Solve(system, 1e-3, 0.0, 3)
        load("hetero.ops.krylov.cg").solve(system, *given)


def _solve_poisson(module: str, dtype: np.dtype, maxiter: int) -> None:
    f, grid = np.ones((40, 40), dtype), Stencil((40, 40), (1.0, 1.0))
    load(module).solve((), Solve(grid, 1e-3, 0.0, maxiter), f, np.zeros_like(f), dtype)


def vectors(dtype: np.dtype) -> None:
    """Operations on vectors."""
    loops = load("hetero.kernels.cpu.vectors")
    x, r, p, q = np.ones((4, 16), dtype)
    loops.norm(x)
    loops.scale_and_add(p, 0.5, r)
    loops.step(x, r, p, q, 0.5)
    loops.times_zero(x)
