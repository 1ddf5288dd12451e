"""Vectors, and A times a vector, where each rank has the rows of both that are its own.

The rows of a sparse matrix, or of a grid, are kept in two pieces, as in PETSc's MPIAIJ: the columns
of the rank itself, a square system that the loops of one process multiply with, and the few columns
of others. Their elements, the halo, travel while the first piece is multiplied.

Where a rank's rows lie on a device, only the halo and the partial sums leave it: they are
downloaded, sent, received and uploaded. Ranks on the CPU take part in the same iteration.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.imports import load
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.common.launch import Launch
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers.cg_launches import rows_of
from hetero.ops.solvers.cg_loop import Matrix, product
from hetero.ops.solvers.exchange import Part
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import Csr, Stencil


class HostVectors:
    """The functions of `hetero.kernels.cpu.vectors` for `cg_loop.solve_unscaled`, and a few more.

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
        if not (math.isfinite(square) or math.isnan(mine)):  # another rank did not move
            x -= x.dtype.type(alpha) * p
        return square


class Rows:
    """A rank's rows of the whole system; it is made by a collective call.

    ``own``, Csr or Stencil, is the square piece; dense rows have none. ``foreign`` (k,) are the
    other columns that they meet, ascending, and ``rest`` (own rows, k) holds these. Others ask for
    this rank's elements at ``places``.

    ``starts`` has the first row of each rank, and the number of all; ``system`` is (own rows, n) of
    a matrix, dense or CSR, or the stencil of the rank's own slab of a grid.
    """

    def __init__(self, ranks: Ranks, starts: np.ndarray, system: Any) -> None:
        begin, end, n = *map(int, starts[ranks.rank :][:2]), int(starts[-1])
        self._comm, self.first = ranks.comm, begin
        if isinstance(system, np.ndarray):
            self.own, self.foreign, self.rest = None, np.arange(n), system
        elif isinstance(system, Stencil):
            self.own, (self.foreign, self.rest) = system, _around(system, begin, end, n)
        else:
            csr_array, columns = load("scipy.sparse").csr_array, np.unique(system.indices)
            own = csr_array(system[:, begin:end])
            self.own = Csr(own.indptr, own.indices, own.data)
            self.foreign = columns[(columns < begin) | (columns >= end)].astype(np.int64)
            self.rest = csr_array(system[:, self.foreign])
        self._wanted = np.diff(np.searchsorted(self.foreign, starts))
        if self.own is None:  # all take all
            return
        self._asked = np.empty_like(self._wanted)
        self._comm.Alltoall(self._wanted, self._asked)
        self.places = np.empty(self._asked.sum(), np.int64)
        self._comm.Alltoallv([self.foreign, self._wanted], [self.places, self._asked])
        self.places -= begin

    def send(self, packed: np.ndarray) -> tuple[np.ndarray, Any]:
        """Send the elements at ``places``; gives where those of ``foreign`` come, and the request
        to wait for."""
        values = np.empty(self.foreign.size, packed.dtype)
        given = [packed, self._asked], [values, self._wanted]
        return values, self._comm.Ialltoallv(*given)

    def product(self, dtype: np.dtype) -> Matrix:
        """The product for vectors of a dtype."""
        own, rest = self.own, self.rest
        if own is None:
            array = rest.astype(dtype, copy=False)
            vector = np.empty(self.foreign.size, dtype)

            def dense(p: np.ndarray, q: np.ndarray) -> None:
                self._comm.Allgatherv(p, [vector, self._wanted])
                np.dot(array, vector, q)

            return Matrix(dense)
        met, times = np.flatnonzero(np.diff(rest.indptr)), lambda p, q: None
        piece = rest[met].astype(dtype)
        if rest.shape[0]:
            if isinstance(own, Csr):
                own = own._replace(data=own.data.astype(dtype, copy=False))
            times = product(own, dtype).times

        def whole(p: np.ndarray, q: np.ndarray) -> None:
            values, request = self.send(p[self.places])
            times(p, q)
            request.Wait()
            if values.size:
                q[met] += piece @ values

        return Matrix(whole)

    def square(self, dtype: np.dtype) -> Any:
        """The square piece as `hetero.solve_cg` takes it."""
        if isinstance(self.own, Stencil):
            return Poisson(*self.own, dtype)
        return load("scipy.sparse").csr_array(self.own[::-1], shape=self.rest.shape[:1] * 2)


def _around(slab: Stencil, begin: int, end: int, n: int) -> tuple[np.ndarray, Any]:
    """The columns outside of a slab that it meets: of the planes before and after it, which its
    first and its last one meet; and their entries in its rows."""
    plane = math.prod(slab.shape[1:])
    reach = plane if begin < end else 0
    before, after = np.arange(max(begin - reach, 0), begin), np.arange(end, min(end + reach, n))
    foreign = np.concatenate([before, after])
    rows = np.concatenate([before + plane, after - plane]) - begin
    values = np.full(foreign.size, -1.0 / slab.spacing[0] ** 2)
    entries, shape = (values, (rows, np.arange(foreign.size))), (end - begin, foreign.size)
    return foreign, load("scipy.sparse").csr_array(entries, shape=shape)


# -- On a device -----------------------------------------------------------------------------------


class Vector:
    """This rank's elements of a vector, in a buffer."""

    def __init__(self, vectors: DeviceVectors) -> None:
        self._vectors, self.dtype = vectors, vectors.dtype
        self.buffer = vectors.part.allocate(vectors.nbytes)

    def copy(self) -> Vector:
        """Another vector of the same elements."""
        new, part = Vector(self._vectors), self._vectors.part
        part.device.copy(new.buffer, self.buffer, self._vectors.nbytes, 0, 0, part.stream)
        return new

    def __sub__(self, other: Vector) -> Vector:
        new = Vector(self._vectors)
        self._vectors.combine(new, 1.0, self, -1.0, other)
        return new


class DeviceVectors(HostVectors):
    """A rank's vectors on a device, which is active all the while.

    The host adds up the partial sums of blocks, and knows all scalars.
    """

    def __init__(self, ranks: Ranks, device: Device, dtype: np.dtype, size: int) -> None:
        self._ranks, self.dtype, self.nbytes = ranks, dtype, size * dtype.itemsize
        self.part = Part(device, True)
        self._launches = plan_cg.textbook(size, device.target, dtype=dtype.name)
        self._blocks = self._launches["cg_dots"].grid
        self.part.allocate(16 * self._blocks, "partial")
        self.scale_and_add = lambda y, s, x: self.combine(y, s, y, 1.0, x)
        self.multiply = lambda m, x, z: self.run("cg_times", z=z, inverse=m, r=x)

    def combine(self, out: Vector, of_a: float, a: Vector, of_b: float, b: Vector) -> None:
        """out = of_a a + of_b b."""
        self.run("ranks_combine", out=out, a=a, b=b, of_a=float(of_a), of_b=float(of_b))

    def hold(self, x: np.ndarray) -> Vector:
        """A vector of the host's, on the device."""
        new = Vector(self)
        self.part.device.upload(np.ascontiguousarray(x), new.buffer)
        return new

    def on_host(self, x: Vector) -> np.ndarray:
        """A vector of the device's, on the host."""
        values = np.empty(self.nbytes // self.dtype.itemsize, self.dtype)
        self.part.device.download(x.buffer, values)
        return values

    def run(self, launch: str | Launch, **named: Any) -> None:
        """Start a launch on vectors, buffers and numbers by name."""
        launch = self._launches[launch] if isinstance(launch, str) else launch
        named = {name: getattr(one, "buffer", one) for name, one in named.items()}
        self.part.start(self.part.bind(launch, **named))

    def _sums(self, launch: str, **named: Any) -> list[float]:
        """The two sums that a launch leaves in "partial"."""
        self.run(launch, **named)
        return self.part.download("partial", np.empty((self._blocks, 2))).sum(axis=0).tolist()

    def _dot(self, x: Vector, y: Vector) -> float:
        return self._sums("cg_dots", a=x, b=y)[0]

    def step(self, x: Vector, r: Vector, p: Vector, q: Vector, alpha: float) -> float:
        square, zero = self._sums("ranks_reduce", x=x, r=r, p=p, q=q, alpha=float(alpha))
        square = self._ranks.total(square if zero == 0.0 else math.nan)
        if math.isfinite(square):
            self.combine(x, 1.0, x, alpha, p)
        return square


def on_device(
    ranks: Ranks, device: Device, rows: Rows, dtype: np.dtype
) -> tuple[DeviceVectors, Matrix]:
    """A rank's vectors, and its product.

    For a product p is copied to where there is room for the halo: around a slab, as the grid's rows
    lie there, or after the elements of a matrix's rows.
    """
    own, n, before = rows.own, rows.rest.shape[0], 0
    vectors = DeviceVectors(ranks, device, dtype, n)
    packed, part, nbytes = np.empty(rows.places.size, dtype), vectors.part, vectors.nbytes
    if is_matrix := isinstance(own, Csr):
        joined = load("scipy.sparse").hstack([rows.square(dtype), rows.rest], format="csr")
        system: Any = Csr(joined.indptr, joined.indices, joined.data)
    else:
        plane, before = math.prod(own.shape[1:]), int(np.searchsorted(rows.foreign, rows.first))
        system = own._replace(shape=((n + rows.foreign.size) // plane, *own.shape[1:]))
    mine = rows_of(part, system, (before, before + n), dtype)
    if is_matrix:
        pack = plan_cg.pack(mine.product, packed.size, device.target)
        part.upload(rows.places.astype(joined.indptr.dtype), "places")
        part.allocate(packed.nbytes, "packed")
    start = before * dtype.itemsize
    held = part.allocate(nbytes + rows.foreign.size * dtype.itemsize, "held")

    def times(p: Vector, q: Vector) -> None:
        if is_matrix and packed.size:
            vectors.run(pack, p=p)
            part.download("packed", packed)
        elif not is_matrix:  # a neighbour takes the plane next to it
            for at in range(0, packed.size, plane):
                offset = int(rows.places[at]) * dtype.itemsize
                device.download(p.buffer, packed[at : at + plane], offset)
        values, request = rows.send(packed)
        device.copy(held, p.buffer, nbytes, start, 0, part.stream)
        request.Wait()
        for halo, offset in ((values[:before], 0), (values[before:], start + nbytes)):
            if halo.size:
                device.upload(halo, held, offset)
        part.buffers["q"] = q.buffer
        part.start(*mine.times("held"))

    return vectors, Matrix(times)
