"""Solves, k-means and products over the ranks of an MPI communicator, each with its own rows.

==================================  ==========================================================
`solve_cg`                          conjugate gradients, with the contract of `hetero.solve_cg`
`solve_poisson`                     Poisson's equation on a grid that is cut into slabs
`kmeans`                            clusters of rows, as by `hetero.kmeans`
`matvec`, `matmul`                  a rank's rows of a dense product
`rows`                              how many rows each rank should take
==================================  ==========================================================

They need mpi4py, the extra ``mpi``. A script runs as ``mpirun -n 4 python -m mpi4py script.py``:
without ``-m mpi4py`` a rank that raises alone leaves the others waiting. docs/several.md has an
example, what the ranks exchange, and the limits.
"""

from __future__ import annotations

from hetero.mpi.cg import solve_cg
from hetero.mpi.clustering import kmeans
from hetero.mpi.multiplying import matmul, matvec
from hetero.mpi.poisson import solve_poisson
from hetero.mpi.sharing import rows

__all__ = ["kmeans", "matmul", "matvec", "rows", "solve_cg", "solve_poisson"]
