"""Vector operations on the CPU: compiled loops, or NumPy's where these are not compiled."""

from __future__ import annotations

import numpy as np

from hetero.host import loops
from hetero.imports import load

_FAMILY = loops.register(loops.Family("vectors", 3.0, f"{__name__}:examples"))

# ``serving(dtype)`` for float32 or float64.
serving = loops.Serving(_FAMILY, "hetero.kernels.cpu.vectors", "hetero.kernels.cpu.vectors_numpy")


def examples(dtype: np.dtype) -> None:
    """Call every loop."""
    vectors = load("hetero.kernels.cpu.vectors")
    x, r, p, q = np.ones((4, 16), dtype)
    vectors.norm(x)
    vectors.scale_and_add(p, 0.5, r)
    vectors.step(x, r, p, q, 0.5)
    vectors.times_zero(x)
