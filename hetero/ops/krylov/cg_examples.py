"""Small systems that call all compiled loops of conjugate gradients on the CPU."""

from __future__ import annotations

import numpy as np

from hetero.kernels.cpu import csr
from hetero.ops.krylov import cg_cpu
from hetero.ops.linear_systems.types import Csr, Stencil

_N = 64


def rows(dtype: np.dtype) -> None:
    """Matrices in compressed rows."""
    for n in (_N, csr.CHUNK):  # in which runs of rows are looked for
        indptr = np.arange(n + 1, dtype=np.int32)
        _solve(Csr(indptr, indptr[:-1].copy(), np.full(n, 2.0, dtype)), n, dtype)


def stencils(dtype: np.dtype) -> None:
    """Grids."""
    _solve(Stencil((1, _N), (1.0, 1.0)), _N, dtype)


def _solve(system: Csr | Stencil, n: int, dtype: np.dtype) -> None:
    for start in (0.0, 1.0):  # from another start than 0 the residual is computed
        x = np.full(n, start, dtype)
        cg_cpu.solve(system, np.ones(n, dtype), x, rtol=1e-3, atol=0.0, maxiter=3)
