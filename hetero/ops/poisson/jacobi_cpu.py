"""Jacobi's method for -div grad u = f on the CPU."""

from __future__ import annotations

import math
from itertools import chain, repeat

import numpy as np

from hetero.host import threads
from hetero.host.compiled.loops import as_loops_take
from hetero.kernels.cpu import jacobi as cpu_jacobi
from hetero.ops.linear_systems.types import CONVERGED, Outcome, Stencil
from hetero.ops.poisson.jacobi_schedule import Schedule, iterate

# Bytes of a core's own cache that a band's rows may take, the most sweeps that a pass makes, and
# the fewest rows of a band for each: those at its ends are computed twice.
_CACHE = 1 << 20
_MOST = 12
_ROWS_PER_SWEEP = 8


def solve(
    stencil: Stencil,
    f: np.ndarray,
    u: np.ndarray,
    *,
    sweeps: int | None = None,
    rtol: float | None = None,
    atol: float = 0.0,
    maxiter: int = 10**9,
    blocking: int | None = None,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    stencil : Stencil
        The grid; u is zero outside of it.
    f, u : ndarray of ``stencil.shape``, float32 or float64
        ``u`` is the start and gets the result.
    sweeps : int, optional
        Make exactly that many sweeps.
    rtol, atol : float
        Without ``sweeps``: done when norm(f - A u) <= max(rtol norm(f), atol). The residual is
        looked at every so many sweeps, so that a few more may be made than were needed.
    maxiter : int
        Most sweeps.
    blocking : int, optional
        Sweeps that a pass over the memory makes. Default: what the cache has room for.

    Returns
    -------
    Outcome
        CONVERGED, LIMIT, ROUNDING (the residual no longer falls) or NOT_FINITE; the residual is
        that of the ``u`` returned, computed in double.
    """

    def sweep() -> Outcome:
        run = _CpuSolve(stencil, f, u, blocking)
        target = norm = None
        if sweeps is None:
            norm = run.residual(of_zero=True)
            if norm == 0.0:
                u[...] = 0.0
                return Outcome(CONVERGED, 0, 0.0, 0.0)
            target = max((rtol or 0.0) * norm, atol)
        outcome = iterate(run, Schedule(target, maxiter if sweeps is None else sweeps))
        run.store(u)
        return outcome._replace(right_side=norm)

    return threads.shared(f.size, sweep)


class _CpuSolve:
    """A solve: u, where the next u goes, and how many sweeps were made."""

    def __init__(
        self, stencil: Stencil, f: np.ndarray, u: np.ndarray, blocking: int | None
    ) -> None:
        flat = len(stencil.shape) == 2
        shape = (stencil.shape[0], 1, stencil.shape[1]) if flat else stencil.shape
        weights = [1.0 / step**2 for step in stencil.spacing]
        self._weights = (weights[0], 0.0, weights[1]) if flat else (*weights,)
        diagonal = 2.0 * sum(weights)
        self._factors = tuple(f.dtype.type(w / diagonal) for w in (*self._weights, 1.0))
        self._f = as_loops_take(np.ascontiguousarray(f)).reshape(shape)
        self._u = np.array(u, f.dtype, order="C").reshape(shape)
        self._u_new = np.empty_like(self._u)
        self.sweeps = 0
        rows, lines, columns = shape
        plane = lines * columns * f.itemsize
        count = threads.thread_count()
        fits = min(_MOST, _CACHE // (4 * plane), rows // (count * _ROWS_PER_SWEEP))
        self._depth = blocking or max(1, fits)
        bands = max(1, min(count, rows // (_ROWS_PER_SWEEP * self._depth)))
        self._bands = bands
        self._room = np.zeros((bands * self._depth, 3, lines + 2, columns + 2), f.dtype)

    def advance(self, sweeps: int) -> None:
        """Make sweeps."""
        full, rest = divmod(sweeps, self._depth)
        for depth in chain(repeat(self._depth, full), (rest,) if rest else ()):
            # Contiguous for every depth: for other arrays the loop would be compiled once more.
            room = self._room[: self._bands * depth]
            room = room.reshape(self._bands, depth, *room.shape[1:])
            cpu_jacobi.sweep_bands(self._u, self._f, self._u_new, self._factors, room)
            self._u, self._u_new = self._u_new, self._u
        self.sweeps += sweeps

    def residual(self, of_zero: bool = False) -> float:
        """Norm of f - A u, or of f."""
        weights = (0.0, 0.0, 0.0) if of_zero else self._weights
        sums = np.empty(len(self._u))
        u = self._f if of_zero else self._u  # with weights of zero any finite u will do
        cpu_jacobi.residual_rows(u, self._f, weights, sums)
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(sums.sum())

    def store(self, u: np.ndarray) -> None:
        """Write the present u to the caller's array."""
        u[...] = self._u.reshape(u.shape)
