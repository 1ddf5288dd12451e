"""A preconditioner for Poisson's equation in slabs: multigrid cycles on two levels.

Additive Schwarz without overlap, with a coarse grid (B. Smith, P. Bjorstad, W. Gropp, "Domain
decomposition", Cambridge University Press, 1996, chapter 2): z = sum of C_i r over the slabs, and
P C_0 R r, where C_i is one cycle on slab i with zeros around it and C_0 one on a grid four times
coarser. All ranks hold that whole grid and make the same cycle on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers import multigrid as grids
from hetero.ops.solvers.systems import Stencil

_COARSER = 2  # times by half


def two_levels(
    ranks: Ranks, lines: np.ndarray, whole: Stencil, dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], None]:
    """``apply(r, z)``, a collective call that writes z = M r for a rank's rows; M is symmetric
    positive definite.

    ``lines`` has the first row of each rank, and the number of all; ``whole`` is of the whole grid.
    """
    cpu = grids.CpuHierarchy
    begin, end = (int(row) for row in lines[ranks.rank : ranks.rank + 2])
    slab = Stencil((end - begin, *whole.shape[1:]), whole.spacing)
    own = cpu(slab, dtype).apply if end > begin else lambda r, z: None
    levels = grids.hierarchy(whole, 1)[: _COARSER + 1]
    if ranks.size == 1 or len(levels) == 1:
        return own
    fine, coarse = levels[0].shape, levels[-1].shape
    z, y, x = (_interpolation(n, m, dtype) for n, m in zip(fine, coarse, strict=True))
    rows, across = z[begin:end], load("scipy.sparse").kron(y, x, format="csr")
    met = rows.indices  # coarse rows that this rank's slab meets
    span = slice(met.min(), met.max() + 1) if met.size else slice(0, 0)
    shape = coarse[0], coarse[1] * coarse[2]
    ratios = [(n + 1) / (m + 1) for n, m in zip(fine, coarse, strict=True)]
    scale = dtype.type(1.0 / math.prod(ratios))
    kept = [0, 2] if len(whole.shape) == 2 else [0, 1, 2]
    spacing = tuple(h * ratios[axis] for h, axis in zip(whole.spacing, kept, strict=True))
    of_all = cpu(Stencil(tuple(coarse[axis] for axis in kept), spacing), dtype).apply

    def apply(r: np.ndarray, z: np.ndarray) -> None:
        # (1) The cycle on the slab, and its part of the residual on the coarse grid.
        own(r, z)
        mine = rows.T @ (r.reshape(rows.shape[0], across.shape[0]) @ across)
        parts = ranks.comm.allgather((span, mine[span] * scale))
        # (2) The cycle on the coarse grid, with the residuals of all ranks.
        right, error = np.zeros((2, *shape), z.dtype)
        for where, part in parts:  # in the order of ranks
            right[where] += part
        of_all(right.reshape(-1), error.reshape(-1))
        z += (rows @ (error @ across.T)).reshape(-1)

    return apply


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
