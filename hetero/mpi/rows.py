"""How many rows each rank should take, so that all end an iteration together."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hetero.mpi.ranks import ranks_of
from hetero.ops.krylov import cg_products
from hetero.ops.linear_systems.types import Stencil

_SIDE, _TIMES = 512, 5  # of the grid that is multiplied


def rows(n: int, comm: Any = None, *, equal: bool = False) -> tuple[int, int]:
    """The rows that this rank should take of n, in proportion to its speed.

    A collective call. All ranks multiply a small grid at once, for some milliseconds, and agree on
    their speeds.

    Parameters
    ----------
    n : int
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.
    equal : bool
        Cut evenly and measure nothing: the same in every run.

    Returns
    -------
    begin, end : int
        First row, and the one after the last.

    Raises
    ------
    ValueError
        On every rank, where n is not the same on all of them or negative.

    Examples
    --------
    >>> begin, end = hetero.mpi.rows(1000)  # doctest: +SKIP
    """
    ranks = ranks_of(comm)
    failed = None if n >= 0 else ValueError(f"n must be at least 0, got {n}")
    ranks.agree(failed, n=int(n), equal=bool(equal))
    speeds = np.ones(ranks.size) if equal else ranks.gather(_speed(ranks))[:, 0]
    cuts = np.rint(np.concatenate([[0.0], np.cumsum(speeds)]) / speeds.sum() * n).astype(int)
    return int(cuts[ranks.rank]), int(cuts[ranks.rank + 1])


def _speed(ranks: Any) -> float:
    """Products a second with the operator of a grid, while the other ranks make theirs."""
    grid = Stencil((_SIDE, _SIDE), (1.0, 1.0))
    product = cg_products.compiled(grid, np.dtype(np.float64))
    p, q = np.ones((2, _SIDE * _SIDE))
    product.times(p, q)
    ranks.comm.Barrier()
    began = time.perf_counter()
    for _ in range(_TIMES):
        product.times(p, q)
    return _TIMES / (time.perf_counter() - began)
