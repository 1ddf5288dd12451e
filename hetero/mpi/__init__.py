"""Solves over the ranks of an MPI communicator, each with its own rows.

==================================  ==========================================================
`solve_cg`                          conjugate gradients, with the contract of `hetero.solve_cg`
`solve_poisson`                     Poisson's equation on a grid that is cut into slabs
`rows`                              which rows each rank takes, in equal parts
==================================  ==========================================================

They need mpi4py, the extra ``mpi``. A script runs as ``mpirun -n 4 python -m mpi4py script.py``:
without ``-m mpi4py`` a rank that raises alone leaves the others waiting. docs/several.md has an
example, what the ranks exchange, and the limits.
"""

from __future__ import annotations

from hetero.mpi.cg import solve_cg
from hetero.mpi.poisson import solve_poisson
from hetero.mpi.ranks import rows

__all__ = ["rows", "solve_cg", "solve_poisson"]

_REMOVED = ("kmeans", "matmul", "matvec")


def __getattr__(name: str) -> object:
    if name in _REMOVED:
        raise AttributeError(f"hetero.mpi.{name} is removed: use hetero.dask.{name}")
    raise AttributeError(f"module 'hetero.mpi' has no attribute {name!r}")
