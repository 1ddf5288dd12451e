"""Vectors, and A times a vector, where each rank has the rows of both that are its own.

The rows of a sparse matrix, or of a grid, are kept in two pieces, as in PETSc's MPIAIJ: the columns
of the rank itself, a square system that the loops of one process multiply with, and the few columns
of others. Their elements, the halo, travel while the first piece is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks
from hetero.ops.krylov import cg_products
from hetero.ops.linear_systems.operators import Poisson
from hetero.ops.linear_systems.types import Csr, Stencil


class Vector:
    """This rank's elements of a vector: an array or a buffer, or None after a failure."""

    def __init__(self, vectors: Vectors, values: Any) -> None:
        self._vectors, self.values, self.dtype = vectors, values, vectors.dtype

    def copy(self) -> Vector:
        """Another vector of the same elements."""
        return self._vectors.made(self._vectors.own.copy, self.values)

    def __sub__(self, other: Vector) -> Vector:
        return self._vectors.made(self._vectors.own.difference, self.values, other.values)


class Vectors:
    """The functions of `hetero.kernels.cpu.vectors` for `cg_cpu.iterate`, and a few more.

    Where a rank's own work fails, it goes on, and all ranks raise with the next sum. ``own`` works
    on this rank's elements: `HostVectors` or `DeviceVectors`.
    """

    def __init__(self, ranks: Ranks, own: Any, dtype: np.dtype) -> None:
        self._ranks, self.own, self.dtype = ranks, own, dtype

    def made(self, work: Callable[..., Any], *values: Any) -> Vector:
        """A new vector, of what ``work(*values)`` gives."""
        return Vector(self, self._ranks.attempt(work, *values))

    def dot(self, x: Vector, y: Vector) -> float:
        """Scalar product."""
        return self._ranks.total(self._ranks.attempt(self.own.dot, x.values, y.values))

    def norm(self, x: Vector) -> float:
        """2-norm."""
        return math.sqrt(self.dot(x, x))

    def scale_and_add(self, y: Vector, scale: float, x: Vector) -> None:
        """y = scale y + x."""
        self._ranks.attempt(self.own.scale_and_add, y.values, scale, x.values)

    def step(self, x: Vector, r: Vector, p: Vector, q: Vector, alpha: float) -> float:
        """r -= alpha q, x += alpha p; gives r.r, NaN where not all is finite: x is as before."""
        parts = (vector.values for vector in (x, r, p, q))
        mine = self._ranks.attempt(self.own.step, *parts, alpha)
        square = self._ranks.total(mine)
        if math.isnan(square) and not math.isnan(mine):  # another rank did not move
            self._ranks.attempt(self.own.subtract, x.values, alpha, p.values)
        return square

    def multiply(self, m: Vector, r: Vector, z: Vector) -> None:
        """z = m r, element by element."""
        self._ranks.attempt(self.own.multiply, m.values, r.values, z.values)


class HostVectors:
    """A rank's vectors in the memory of the host: arrays.

    Partial sums are made by the compiled loops, and the first one waits until these are compiled:
    NumPy adds in another order, and results would not repeat.
    """

    def __init__(self) -> None:
        loops = load("hetero.kernels.cpu.vectors")
        self.dot, self.step, self.scale_and_add = loops.dot, loops.step, loops.scale_and_add
        self.copy, self.difference, self.multiply = np.copy, np.subtract, np.multiply
        self.hold = self.on_host = np.asarray  # these functions take what is there

    def subtract(self, y: np.ndarray, alpha: float, x: np.ndarray) -> None:
        """y -= alpha x."""
        y -= y.dtype.type(alpha) * x


class Halo:
    """Elements that a rank's rows meet and that others own.

    ``starts`` has the first element of each rank, and the number of all; ``foreign`` the elements
    that this rank needs, by their numbers in the whole vector, ascending.
    """

    def __init__(
        self, ranks: Ranks, starts: np.ndarray, foreign: np.ndarray, dtype: np.dtype
    ) -> None:
        comm = ranks.comm
        wanted, asked = ranks.agreed(
            lambda: (np.diff(np.searchsorted(foreign, starts)), np.empty(ranks.size, np.int64))
        )
        comm.Alltoall(wanted, asked)
        room = (asked.sum(), np.int64), (asked.sum(), dtype), (foreign.size, dtype)
        arrays = ranks.agreed(lambda: [np.empty(size, of) for size, of in room])
        self.places, self.packed, self.values = arrays
        comm.Alltoallv([foreign, wanted], [self.places, asked])
        self.places -= starts[ranks.rank]
        self._requests = []
        for make, buffer, counts in (
            (comm.Recv_init, self.values, wanted),
            (comm.Send_init, self.packed, asked),
        ):
            after = np.cumsum(counts)
            for other in np.flatnonzero(counts):
                part = buffer[after[other] - counts[other] : after[other]]
                self._requests.append(make(part, int(other)))
        self._many = load("mpi4py.MPI").Prequest

    def pack(self, p: np.ndarray) -> None:
        """Take the elements of p that others need."""
        np.take(p, self.places, out=self.packed, mode="clip")

    def send(self) -> None:
        """Send ``packed``, the elements at ``places``."""
        self._many.Startall(self._requests)

    def end(self) -> np.ndarray:
        """The elements from others, in the order in which they were asked for."""
        self._many.Waitall(self._requests)
        return self.values

    def close(self) -> None:
        """Free the requests."""
        for request in self._requests:
            request.Free()


class Rows:
    """A rank's rows of a system, for products.

    ``own`` is the square piece, ``foreign`` the columns of other ranks, ascending. ``rest`` is the
    other piece, (own rows, k); of a grid whether rows lie before the slab, and after.
    ``add(dtype)`` gives ``f(q, values)``, which adds that piece's product to q.
    """

    def __init__(
        self,
        ranks: Ranks,
        starts: np.ndarray,
        own: Csr | Stencil,
        foreign: np.ndarray,
        rest: Any,
        add: Callable[[np.dtype], Callable[[np.ndarray, np.ndarray], None]],
    ) -> None:
        self._ranks, self._starts, self.own, self.foreign = ranks, starts, own, foreign
        self.rest = rest
        self._add, self.unknowns = add, int(starts[-1])
        self._halos: list[Halo] = []

    def product(self, dtype: np.dtype) -> cg_products.Product:
        """The product for vectors of a dtype; a collective call."""
        ranks, halo = self._ranks, self.halo(dtype)
        times, add = ranks.agreed(self._pieces, dtype)

        def whole(p: Vector, q: Vector) -> None:
            ranks.attempt(halo.pack, p.values)
            halo.send()
            ranks.attempt(times, p.values, q.values)
            values = halo.end()
            if values.size:
                ranks.attempt(add, q.values, values)

        return cg_products.Product(whole)

    def _pieces(self, dtype: np.dtype) -> tuple[cg_products.Times, cg_products.Times]:
        """The product with the square piece, and what adds that with the other one."""
        own = self.own
        if not np.diff(self._starts)[self._ranks.rank]:
            return (lambda p, q: None), (lambda q, values: None)
        if isinstance(own, Csr):
            own = own._replace(data=own.data.astype(dtype, copy=False))
        return cg_products.compiled(own, dtype).times, self._add(dtype)

    def square(self, dtype: np.dtype) -> Any:
        """The square piece as `hetero.solve_cg` takes it."""
        if isinstance(self.own, Stencil):
            return Poisson(*self.own, dtype)
        n = len(self.own.indptr) - 1
        return load("scipy.sparse").csr_array(self.own[::-1], shape=(n, n))

    def halo(self, dtype: np.dtype) -> Halo:
        """What a product exchanges; a collective call."""
        self._halos.append(Halo(self._ranks, self._starts, self.foreign, dtype))
        return self._halos[-1]

    def close(self) -> None:
        """Free what the products hold of MPI."""
        while self._halos:
            self._halos.pop().close()


def sparse_rows(ranks: Ranks, starts: np.ndarray, matrix: Any) -> Rows:
    """Rows of a sparse matrix: ``matrix`` is a SciPy CSR of (own rows, n) with global columns."""
    csr_array = load("scipy.sparse").csr_array
    begin, end = starts[ranks.rank : ranks.rank + 2]
    indices = matrix.indices
    outside = (indices < begin) | (indices >= end)
    own = csr_array(matrix[:, begin:end])
    foreign, columns = np.unique(indices[outside].astype(np.int64), return_inverse=True)
    each = np.repeat(np.arange(end - begin), np.diff(matrix.indptr))[outside]
    size = int(end - begin), foreign.size
    rest = csr_array((matrix.data[outside], (each, columns)), shape=size)
    met = np.flatnonzero(np.diff(rest.indptr))

    def add(dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray], None]:
        piece = rest[met].astype(dtype)

        def add(q: np.ndarray, values: np.ndarray) -> None:
            q[met] += piece @ values

        return add

    return Rows(ranks, starts, Csr(own.indptr, own.indices, own.data), foreign, rest, add)


def grid_rows(ranks: Ranks, lines: np.ndarray, stencil: Stencil) -> Rows:
    """Rows, or planes, of a grid; ``lines``: of each rank the first, and the number of all.

    ``stencil`` is that of the rank's own slab. Beyond its edges are zeros to it; what lies there on
    other ranks is subtracted afterwards.
    """
    plane = math.prod(stencil.shape[1:])
    begin, end = lines[ranks.rank : ranks.rank + 2]
    edges = [row for row in (begin - 1, end) if 0 <= row < lines[-1] and begin < end]
    foreign = (np.array(edges, np.int64)[:, None] * plane + np.arange(plane)).reshape(-1)

    def add(dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray], None]:
        weight = dtype.type(1.0 / stencil.spacing[0] ** 2)

        def add(q: np.ndarray, values: np.ndarray) -> None:
            for number, row in enumerate(edges):
                edge = q[:plane] if row < begin else q[-plane:]
                edge -= weight * values[number * plane : (number + 1) * plane]

        return add

    around = begin - 1 in edges, end in edges
    return Rows(ranks, lines * plane, stencil, foreign, around, add)


class DenseRows:
    """Rows of a dense matrix: ``array`` is (own rows, n). Each product gathers the whole vector."""

    def __init__(self, ranks: Ranks, starts: np.ndarray, array: np.ndarray) -> None:
        self._ranks, self._starts, self._array = ranks, starts, array
        self.unknowns = int(starts[-1])

    def product(self, dtype: np.dtype) -> cg_products.Product:
        """The product for vectors of a dtype; a collective call."""
        ranks, counts = self._ranks, np.diff(self._starts)

        def arrays() -> tuple[np.ndarray, ...]:
            room = (np.empty(size, dtype) for size in (counts[ranks.rank], self.unknowns))
            return self._array.astype(dtype, copy=False), *room

        array, mine, vector = ranks.agreed(arrays)

        def times(p: Vector, q: Vector) -> None:
            ranks.attempt(np.copyto, mine, p.values)
            ranks.comm.Allgatherv(mine, [vector, counts])
            ranks.attempt(np.dot, array, vector, q.values)

        return cg_products.Product(times)

    def close(self) -> None:
        """Nothing is held."""
