"""A preconditioner for Poisson's equation in slabs: multigrid cycles on two levels.

Additive Schwarz without overlap, with a coarse grid (B. Smith, P. Bjorstad, W. Gropp, "Domain
decomposition", Cambridge University Press, 1996, chapter 2): z = sum of C_i r over the slabs, and
P C_0 R r, where C_i is one cycle on slab i with zeros around it and C_0 one on a grid four times
coarser. All ranks hold that whole grid and make the same cycle on it.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.kernels.multigrid.transfers import Transfer
from hetero.mpi.ranks import Ranks
from hetero.ops.linear_systems.systems import Stencil
from hetero.ops.multigrid import grids

_COARSER = 2  # times by half


class TwoLevels:
    """The preconditioner of one rank; symmetric positive definite for all of them together.

    ``lines`` has the first row of each rank, and the number of all; ``whole`` is of the whole grid.
    """

    def __init__(self, ranks: Ranks, lines: np.ndarray, whole: Stencil, dtype: np.dtype) -> None:
        cpu = load("hetero.ops.multigrid.multigrid_cpu").CpuHierarchy
        begin, end = (int(row) for row in lines[ranks.rank : ranks.rank + 2])
        own = Stencil((end - begin, *whole.shape[1:]), whole.spacing)
        self._comm, self._own = ranks.comm, cpu(own, dtype).apply if end > begin else None
        self._coarse = None
        levels = grids.hierarchy(whole, 1)[: _COARSER + 1]
        if ranks.size == 1 or len(levels) == 1:
            return
        kron, csr = load("scipy.sparse").kron, load("scipy.sparse").csr_array
        axes = [_prolongation(level.transfers) for level in levels[:-1]]
        z, y, x = (functools.reduce(operator.matmul, each) for each in zip(*axes, strict=True))
        fine, coarse = levels[0].shape, levels[-1].shape
        ratios = [(n + 1) / (m + 1) for n, m in zip(fine, coarse, strict=True)]
        self._rows = csr(z[begin:end].astype(dtype))
        self._across = csr(kron(y, x).astype(dtype))
        met = z[begin:end].indices  # coarse rows that this rank's slab meets
        self._span = slice(met.min(), met.max() + 1) if met.size else slice(0, 0)
        flat = [0, 2] if len(whole.shape) == 2 else [0, 1, 2]
        self._shape = coarse[0], coarse[1] * coarse[2]
        self._scale = dtype.type(1.0 / math.prod(ratios))
        spacing = tuple(h * ratios[axis] for h, axis in zip(whole.spacing, flat, strict=True))
        self._coarse = cpu(Stencil(tuple(coarse[axis] for axis in flat), spacing), dtype).apply

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


def _prolongation(transfers: tuple[Transfer, ...]) -> list[Any]:
    """For each axis the matrix that interpolates from the coarse grid's points to the fine."""
    matrices = []
    for axis in transfers:
        n, m = len(axis.left), len(axis.first)
        rows, columns = np.tile(np.arange(n), 2), np.concatenate([axis.left, axis.left + 1])
        values = np.concatenate([1.0 - axis.weight, axis.weight])
        there = (columns >= 0) & (columns < m)
        entries = values[there], (rows[there], columns[there])
        matrices.append(load("scipy.sparse").csr_array(entries, shape=(n, m)))
    return matrices
