"""Jacobi's method for -div grad u = f on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.host import threads
from hetero.host.loops import as_loops_take
from hetero.kernels.cpu import jacobi as cpu_jacobi
from hetero.ops.linear_systems.types import Outcome, Stencil
from hetero.ops.poisson.jacobi_schedule import iterate


def solve(
    stencil: Stencil,
    f: np.ndarray,
    u: np.ndarray,
    **limits: Any,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    stencil : Stencil
        The grid; u is zero outside of it.
    f, u : ndarray of ``stencil.shape``, float32 or float64
        ``u`` is the start and gets the result.
    **limits
        Sweeps or tolerances; see `iterate`.
    """

    def sweep() -> Outcome:
        run = _CpuSolve(stencil, f, u)
        outcome = iterate(run, **limits)
        u[...] = run.u.reshape(u.shape)
        return outcome

    return threads.shared(f.size, sweep)


class _CpuSolve:
    """A solve: u, where the next u goes, and how many sweeps were made. See `Run`."""

    def __init__(self, stencil: Stencil, f: np.ndarray, u: np.ndarray) -> None:
        shape, self._weights = stencil.box
        diagonal = 2.0 * sum(self._weights)
        self._factors = tuple(f.dtype.type(w / diagonal) for w in (*self._weights, 1.0))
        self._f = as_loops_take(np.ascontiguousarray(f)).reshape(shape)
        self.u = np.array(u, f.dtype, order="C").reshape(shape)
        self._u_new = np.empty_like(self.u)
        self.sweeps = 0

    def advance(self, sweeps: int) -> None:
        self.sweeps += sweeps
        for _ in range(sweeps):
            cpu_jacobi.sweep(self.u, self._f, self._u_new, self._factors)
            self.u, self._u_new = self._u_new, self.u

    def residual(self) -> float:
        return self._norm(self.u, self._weights)

    def right_side(self) -> float:
        return self._norm(self._f, (0.0, 0.0, 0.0))  # with which any finite u will do

    def _norm(self, u: np.ndarray, weights: tuple[float, float, float]) -> float:
        sums = np.empty(len(u))
        cpu_jacobi.residual_rows(u, self._f, weights, sums)
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(sums.sum())

    def zero(self) -> None:
        self.u[...] = 0.0
