"""What `hetero demo` shows of Poisson's equation: a solve whose solution is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.ops.poisson import OPERATION, solve_poisson
from hetero.pricing.plan import readable

_LONGEST = 2.0  # predicted seconds of a solve
_SIDE, _SIDE_ON_GPU = 512, 2048  # points


def demonstrate(demo: Any) -> dict[str, Any]:
    """Solve -div grad u = f on the unit square by the chosen method and by the others.

    See `hetero.evaluation.demo.Demo`.
    """
    n = _SIDE_ON_GPU if demo.gpu else _SIDE
    f, exact, h = example(n)
    u, info = solve_poisson(f, spacing=h, return_info=True)  # the first one compiles
    times = demo.seconds(OPERATION, (f,), {"spacing": h}, info["plan"], _LONGEST)
    chosen = f"{info['method']} on {info['device']}"
    demo.show(f"\nPoisson's equation on {n} x {n} points to 1e-8: {info['plan']}")
    demo.show("measured: " + ", ".join(f"{name} {readable(t)}" for name, t in times.items()))
    demo.show(
        f"{chosen}: relative residual {info['relative_residual']:.1e}, "
        f"error against the exact solution {abs(u - exact).max():.1e} "
        f"({abs(u - exact).max() / h**2:.0f} h^2; the discretisation is of second order)"
    )
    found = {"points": n * n, "chosen": chosen, "measured": times, "residual": info["residual"]}
    return {"poisson": found}


def example(n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """(f, u, spacing) with -div grad u = f on n x n points of the unit square, u = 0 around it.

    u = g(y) g(x) with g(t) = t (1 - t) exp(3 t). Unlike a product of sines it is no eigenvector of
    the discrete operator, with which conjugate gradients would be done after a single step.
    """
    h = 1.0 / (n + 1)
    t = h * np.arange(1, n + 1)
    g, curvature = t * (1.0 - t) * np.exp(3.0 * t), np.exp(3.0 * t) * (4.0 - 3.0 * t - 9.0 * t * t)
    return -np.outer(curvature, g) - np.outer(g, curvature), np.outer(g, g), h
