"""Vectors, and A times a vector, where each rank has the rows of both that are its own.

The rows of a sparse matrix, or of a grid, are kept in two pieces, as in PETSc's MPIAIJ: the columns
of the rank itself, a square system that the loops of one process multiply with, and the few columns
of others. Their elements, the halo, travel while the first piece is multiplied.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers import cg_loop as matrices
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import Csr, Stencil

Pieces = tuple[Any, np.ndarray, Any]  # of `Rows`


class HostVectors:
    """The functions of `hetero.kernels.cpu.vectors` for `cg.iterate`, and a few more.

    Vectors are this rank's elements, arrays on the host. Partial sums are made by the compiled
    loops, for NumPy adds in another order: results would not repeat.
    """

    def __init__(self, ranks: Ranks) -> None:
        loops = load("hetero.kernels.cpu.vectors")
        self._ranks, self._dot, self._step = ranks, loops.dot, loops.step
        self.scale_and_add, self.multiply = loops.scale_and_add, np.multiply
        self.hold = self.on_host = np.asarray  # these functions take what is there

    def dot(self, x: Any, y: Any) -> float:
        """Scalar product."""
        return self._ranks.total(self._dot(x, y))

    def norm(self, x: Any) -> float:
        """2-norm."""
        return math.sqrt(self.dot(x, x))

    def step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        """r -= alpha q, x += alpha p; gives r.r, NaN where not all is finite: x is as before."""
        mine = self._step(x, r, p, q, alpha)
        square = self._ranks.total(mine)
        if math.isnan(square) and not math.isnan(mine):  # another rank did not move
            self.subtract(x, alpha, p)
        return square

    def subtract(self, y: Any, alpha: float, x: Any) -> None:
        """y -= alpha x."""
        y -= y.dtype.type(alpha) * x


class Rows:
    """A rank's rows of a sparse matrix or of a grid; it is made by a collective call.

    ``own`` is the square piece, ``foreign`` the columns of other ranks that it meets, ascending,
    and ``rest`` a (own rows, k) CSR matrix of these columns. ``starts`` has the first row of each
    rank, and the number of all. Others ask for this rank's elements at ``places``.
    """

    def __init__(
        self, ranks: Ranks, starts: np.ndarray, own: Csr | Stencil, foreign: np.ndarray, rest: Any
    ) -> None:
        self._comm, self.own, self.foreign, self.rest = ranks.comm, own, foreign, rest
        self._wanted, self._asked = (
            np.diff(np.searchsorted(foreign, starts)),
            np.empty_like(starts[1:]),
        )
        self._comm.Alltoall(self._wanted, self._asked)
        self.places = np.empty(self._asked.sum(), np.int64)
        self._comm.Alltoallv([foreign, self._wanted], [self.places, self._asked])
        self.first = int(starts[ranks.rank])
        self.places -= self.first

    def send(self, packed: np.ndarray) -> tuple[np.ndarray, Any]:
        """Send the elements at ``places``; gives where those of ``foreign`` come, and the request
        to wait for."""
        values = np.empty(self.foreign.size, packed.dtype)
        given = [packed, self._asked], [values, self._wanted]
        return values, self._comm.Ialltoallv(*given)

    def product(self, dtype: np.dtype) -> matrices.Matrix:
        """The product for vectors of a dtype."""
        own, times, met = self.own, None, np.flatnonzero(np.diff(self.rest.indptr))
        piece = self.rest[met].astype(dtype)
        if self.rest.shape[0]:
            if isinstance(own, Csr):
                own = own._replace(data=own.data.astype(dtype, copy=False))
            times = matrices.compiled(own, dtype).times

        def whole(p: np.ndarray, q: np.ndarray) -> None:
            values, request = self.send(p[self.places])
            if times is not None:
                times(p, q)
            request.Wait()
            if values.size:
                q[met] += piece @ values

        return matrices.Matrix(whole)

    def square(self, dtype: np.dtype) -> Any:
        """The square piece as `hetero.solve_cg` takes it."""
        if isinstance(self.own, Stencil):
            return Poisson(*self.own, dtype)
        n = self.rest.shape[0]
        return load("scipy.sparse").csr_array(self.own[::-1], shape=(n, n))


def sparse_rows(ranks: Ranks, starts: np.ndarray, matrix: Any) -> Pieces:
    """Rows of a sparse matrix: a SciPy CSR of (own rows, n) with global columns."""
    csr_array, indices = load("scipy.sparse").csr_array, matrix.indices
    begin, end = starts[ranks.rank : ranks.rank + 2]
    outside = (indices < begin) | (indices >= end)
    own = csr_array(matrix[:, begin:end])
    foreign, columns = np.unique(indices[outside].astype(np.int64), return_inverse=True)
    each = np.repeat(np.arange(end - begin), np.diff(matrix.indptr))[outside]
    entries = matrix.data[outside], (each, columns)
    rest = csr_array(entries, shape=(int(end - begin), foreign.size))
    return Csr(own.indptr, own.indices, own.data), foreign, rest


def grid_rows(ranks: Ranks, lines: np.ndarray, stencil: Stencil) -> Pieces:
    """Rows, or planes, of a grid; ``lines``: of each rank the first, and the number of all.

    ``stencil`` is that of the rank's own slab, to which zeros lie beyond its edges.
    """
    plane, (begin, end) = math.prod(stencil.shape[1:]), map(int, lines[ranks.rank :][:2])
    edges = [(begin - 1, 0), (end, end - begin - 1)]  # of others, and of this rank's own
    edges = [one for one in edges if begin < end and 0 <= one[0] < lines[-1]]
    within = np.arange(plane) + plane * np.array(edges, np.int64).reshape(-1, 2).T[..., None]
    foreign, mine = within.reshape(2, -1)
    values = np.full(foreign.size, -1.0 / stencil.spacing[0] ** 2)
    entries, shape = (
        (values, (mine, np.arange(foreign.size))),
        ((end - begin) * plane, foreign.size),
    )
    return stencil, foreign, load("scipy.sparse").csr_array(entries, shape=shape)


class DenseRows:
    """Rows of a dense matrix: ``array`` is (own rows, n). Each product gathers the whole vector."""

    def __init__(self, ranks: Ranks, starts: np.ndarray, array: np.ndarray) -> None:
        self._comm, self._counts, self._array = ranks.comm, np.diff(starts), array

    def product(self, dtype: np.dtype) -> matrices.Matrix:
        """The product for vectors of a dtype."""
        array = self._array.astype(dtype, copy=False)
        vector = np.empty(array.shape[1], dtype)

        def times(p: np.ndarray, q: np.ndarray) -> None:
            self._comm.Allgatherv(p, [vector, self._counts])
            np.dot(array, vector, q)

        return matrices.Matrix(times)
