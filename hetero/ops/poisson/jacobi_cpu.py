"""Jacobi's method for -div grad u = f on the CPU."""

from __future__ import annotations

import math
from itertools import chain, repeat
from typing import Any

import numpy as np

from hetero.host import threads
from hetero.host.compiled.loops import as_loops_take
from hetero.kernels.cpu import jacobi as cpu_jacobi
from hetero.ops.linear_systems.types import Outcome, Stencil
from hetero.ops.poisson.jacobi_schedule import iterate

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
    blocking: int | None = None,
    **limits: Any,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    stencil : Stencil
        The grid; u is zero outside of it.
    f, u : ndarray of ``stencil.shape``, float32 or float64
        ``u`` is the start and gets the result.
    blocking : int, optional
        Sweeps that a pass over the memory makes. Default: what the cache has room for.
    **limits
        Sweeps or tolerances; see `iterate`.
    """

    def sweep() -> Outcome:
        run = _CpuSolve(stencil, f, u, blocking)
        outcome = iterate(run, **limits)
        u[...] = run.u.reshape(u.shape)
        return outcome

    return threads.shared(f.size, sweep)


class _CpuSolve:
    """A solve: u, where the next u goes, and how many sweeps were made. See `Run`."""

    def __init__(
        self, stencil: Stencil, f: np.ndarray, u: np.ndarray, blocking: int | None
    ) -> None:
        shape, self._weights = stencil.box
        diagonal = 2.0 * sum(self._weights)
        self._factors = tuple(f.dtype.type(w / diagonal) for w in (*self._weights, 1.0))
        self._f = as_loops_take(np.ascontiguousarray(f)).reshape(shape)
        self.u = np.array(u, f.dtype, order="C").reshape(shape)
        self._u_new = np.empty_like(self.u)
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
        self.sweeps += sweeps
        full, rest = divmod(sweeps, self._depth)
        for depth in chain(repeat(self._depth, full), (rest,) if rest else ()):
            # Contiguous for every depth: for other arrays the loop would be compiled once more.
            room = self._room[: self._bands * depth]
            room = room.reshape(self._bands, depth, *room.shape[1:])
            cpu_jacobi.sweep_bands(self.u, self._f, self._u_new, self._factors, room)
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
