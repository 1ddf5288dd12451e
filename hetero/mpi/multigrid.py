"""A preconditioner for Poisson's equation in slabs: multigrid cycles on two levels.

Additive Schwarz without overlap, with a coarse grid (B. Smith, P. Bjorstad, W. Gropp, "Domain
decomposition", Cambridge University Press, 1996, chapter 2): z = sum of C_i r over the slabs, and
P C_0 R r, where C_i is one cycle on slab i with zeros around it and C_0 one on a grid four times
coarser. All ranks hold that whole grid and make the same cycle on it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers import multigrid as grids
from hetero.ops.solvers.systems import Stencil

_COARSER = 2  # times by half


class TwoLevels:
    """The preconditioner of one rank; symmetric positive definite for all of them together.

    ``lines`` has the first row of each rank, and the number of all; ``whole`` is of the whole grid.
    """

    def __init__(self, ranks: Ranks, lines: np.ndarray, whole: Stencil, dtype: np.dtype) -> None:
        cpu = load("hetero.ops.solvers.multigrid").CpuHierarchy
        begin, end = (int(row) for row in lines[ranks.rank : ranks.rank + 2])
        own = Stencil((end - begin, *whole.shape[1:]), whole.spacing)
        self._comm, self._own = ranks.comm, cpu(own, dtype).apply if end > begin else None
        levels = grids.hierarchy(whole, 1)[: _COARSER + 1]
        self._coarse = None
        if ranks.size == 1 or len(levels) == 1:
            return
        fine, coarse = levels[0].shape, levels[-1].shape
        z, y, x = (_interpolation(n, m, dtype) for n, m in zip(fine, coarse, strict=True))
        self._rows, self._across = z[begin:end], load("scipy.sparse").kron(y, x, format="csr")
        met = self._rows.indices  # coarse rows that this rank's slab meets
        self._span = slice(met.min(), met.max() + 1) if met.size else slice(0, 0)
        self._shape = coarse[0], coarse[1] * coarse[2]
        ratios = [(n + 1) / (m + 1) for n, m in zip(fine, coarse, strict=True)]
        self._scale = dtype.type(1.0 / math.prod(ratios))
        kept = [0, 2] if len(whole.shape) == 2 else [0, 1, 2]
        spacing = tuple(h * ratios[axis] for h, axis in zip(whole.spacing, kept, strict=True))
        self._coarse = cpu(Stencil(tuple(coarse[axis] for axis in kept), spacing), dtype).apply

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """z = M r, for this rank's rows; a collective call."""
        # (1) The cycle on the slab, and its part of the residual on the coarse grid.
        if self._own is not None:
            self._own(r, z)
        if self._coarse is None:
            return
        planes = r.reshape(self._rows.shape[0], self._across.shape[0])
        mine = self._rows.T @ (planes @ self._across)
        parts = self._comm.allgather((self._span, mine[self._span] * self._scale))
        # (2) The cycle on the coarse grid, with the residuals of all ranks.
        right, error = np.zeros((2, *self._shape), z.dtype)
        for span, part in parts:  # in the order of ranks
            right[span] += part
        self._coarse(right.reshape(-1), error.reshape(-1))
        z += (self._rows @ (error @ self._across.T)).reshape(-1)


def _interpolation(n: int, m: int, dtype: np.dtype) -> Any:
    """The (n, m) matrix that interpolates along a line, from m points within it to n, with zeros
    at both ends."""
    place = np.arange(1, n + 1) * ((m + 1) / (n + 1))
    left = np.minimum(place.astype(int), m)
    right = (place - left).astype(dtype)
    entries = np.concatenate([1.0 - right, right]), np.concatenate([left, left + 1])
    matrix = load("scipy.sparse").csr_array(
        (entries[0], (np.tile(np.arange(n), 2), entries[1])), shape=(n, m + 2)
    )
    return matrix[:, 1:-1]
