"""The compiled loops of multigrid on the CPU."""

from __future__ import annotations

import numpy as np

from hetero.host.compiled import loops
from hetero.imports import load
from hetero.ops.linear_systems.types import Stencil

CYCLES = loops.register(loops.Family("multigrid", 6.5, f"{__name__}:examples"))


def examples(dtype: np.dtype) -> None:
    """Call every loop: a cycle goes through all of them."""
    multigrid_cpu = load("hetero.ops.multigrid.multigrid_cpu")
    f = np.ones((40, 40), dtype)
    multigrid_cpu.solve(Stencil(f.shape, (1.0, 1.0)), f, np.zeros_like(f), rtol=1e-3, maxiter=2)
