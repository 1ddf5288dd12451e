"""The compiled loops of Jacobi's method on the CPU."""

from __future__ import annotations

import numpy as np

from hetero.host.compiled import loops
from hetero.imports import load
from hetero.ops.linear_systems.types import Stencil

SWEEPS = loops.register(loops.Family("sweeps", 3.0, f"{__name__}:sweeps"))


def sweeps(dtype: np.dtype) -> None:
    """Call every loop."""
    jacobi_cpu = load("hetero.ops.poisson.jacobi_cpu")
    f = np.ones((40, 40), dtype)
    jacobi_cpu.solve(Stencil(f.shape, (1.0, 1.0)), f, np.zeros_like(f), rtol=1e-3, maxiter=20)
