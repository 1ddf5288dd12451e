"""Vectors, and A times a vector, where each rank has the rows of both that are its own.

The rows of a sparse matrix, or of a grid, are kept in two pieces, as in PETSc's MPIAIJ: the columns
of the rank itself, a square system that the loops of one process multiply with, and the few columns
of others. Their elements, the halo, travel while the first piece is multiplied. Dense rows are a
second piece alone, with all columns.

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
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers.cg_launches import rows_of
from hetero.ops.solvers.cg_loop import product
from hetero.ops.solvers.cg_problem import system_of
from hetero.ops.solvers.exchange import Part
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import Csr


class Rows:
    """A rank's rows of the whole system; it is made by a collective call.

    ``own`` is the square piece as `hetero.solve_cg` takes it, a sparse array or a `hetero.Poisson`;
    None where there are no rows, or dense ones. ``foreign`` (k,) are the other columns that they
    meet, ascending, of dense rows all; ``rest`` (own rows, k) holds these. Of a grid's ``before``
    come before its own. Others ask for this rank's elements at ``places``.

    ``starts`` has the first row of each rank, and the number of all; ``system`` is (own rows, n) of
    a matrix, dense or CSR, or the `hetero.Poisson` of the whole grid.
    """

    def __init__(self, ranks: Ranks, starts: np.ndarray, system: Any) -> None:
        begin, end, n = *map(int, starts[ranks.rank :][:2]), int(starts[-1])
        size, sparse = end - begin, load("scipy.sparse")
        self.ranks, self.own, self.before = ranks, None, 0
        if isinstance(system, np.ndarray):
            self.foreign, self.rest = np.arange(n), system
        elif isinstance(system, Poisson):  # the first and the last plane meet those next to them
            lines, spacing = system.grid[1:], system.spacing
            plane = math.prod(lines) if size else 0
            before = np.arange(max(begin - plane, 0), begin)
            after = np.arange(end, min(end + plane, n))
            self.foreign, self.before = np.concatenate([before, after]), before.size
            first = sparse.eye_array(size, before.size)
            last = sparse.eye_array(size, after.size, k=after.size - size)
            self.rest = sparse.hstack([first, last], format="csr") * (-1.0 / spacing[0] ** 2)
            if size:
                self.own = Poisson((size // plane, *lines), spacing, system.dtype)
        else:
            columns = np.unique(system.indices)
            self.foreign = columns[(columns < begin) | (columns >= end)].astype(np.int64)
            self.rest = sparse.csr_array(system[:, self.foreign])
            if size:
                self.own = sparse.csr_array(system[:, begin:end])
        self._wanted = np.diff(np.searchsorted(self.foreign, starts))
        self._asked = np.empty_like(self._wanted)
        ranks.comm.Alltoall(self._wanted, self._asked)
        self.places = np.empty(self._asked.sum(), np.int64)
        ranks.comm.Alltoallv([self.foreign, self._wanted], [self.places, self._asked])
        self.places -= begin

    def send(self, packed: np.ndarray) -> tuple[np.ndarray, Any]:
        """Send the elements at ``places``; gives where those of ``foreign`` come, and the request
        to wait for."""
        values = np.empty(self.foreign.size, packed.dtype)
        given = [packed, self._asked], [values, self._wanted]
        return values, self.ranks.comm.Ialltoallv(*given)


class HostVectors:
    """The functions of `hetero.kernels.cpu.vectors` for `cg_loop.solve_unscaled`, and a few more.

    Vectors are this rank's elements, arrays on the host. Partial sums are made by the compiled
    loops, for NumPy adds in another order: results would not repeat.
    """

    def __init__(self, rows: Rows, dtype: np.dtype) -> None:
        loops, self._rows, rest = load("hetero.kernels.cpu.vectors"), rows, rows.rest
        self._ranks, self._dot, self._step = rows.ranks, loops.dot, loops.step
        self.scale_and_add, self.multiply = loops.scale_and_add, np.multiply
        self.hold = self.on_host = np.asarray  # these functions take what is there
        self._met, self._own = slice(None), lambda p, q: q.fill(0.0)
        if rows.own is not None:
            self._met = np.flatnonzero(np.diff(rest.indptr))
            self._own = product(system_of(rows.own, None, dtype, ())[0], dtype).times
        self._rest = rest[self._met].astype(dtype, copy=False)

    def times(self, p: Any, q: Any) -> None:
        """q = A p; a collective call, as all that follow."""
        values, request = self._rows.send(p[self._rows.places])
        self._own(p, q)
        request.Wait()
        if values.size:
            q[self._met] += self._rest @ values

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


# -- On a device -----------------------------------------------------------------------------------


class Vector:
    """This rank's elements of a vector, in a buffer."""

    def __init__(self, vectors: DeviceVectors, buffer: Any) -> None:
        self._vectors, self.dtype, self.buffer = vectors, vectors.dtype, buffer

    def copy(self) -> Vector:
        """Another vector of the same elements."""
        return self._vectors.combined(1.0, self, 0.0, self)

    def __sub__(self, other: Vector) -> Vector:
        return self._vectors.combined(1.0, self, -1.0, other)


class DeviceVectors(HostVectors):
    """A rank's vectors on a device, which is active all the while.

    The host adds up the partial sums of blocks, and knows all scalars. For a product p is copied to
    where there is room for the halo: around a slab, as the grid's rows lie there, or after the
    elements of a matrix's rows.
    """

    def __init__(self, rows: Rows, device: Device, dtype: np.dtype) -> None:
        self._ranks, self._rows, self.dtype, n = rows.ranks, rows, dtype, rows.rest.shape[0]
        self.nbytes, self.part = n * dtype.itemsize, Part(device, True)
        if isinstance(rows.own, Poisson):
            lines = rows.own.grid[1:]
            planes = (n + rows.foreign.size) // math.prod(lines)
            system: Any = rows.own.stencil._replace(shape=(planes, *lines))
        else:
            joined = load("scipy.sparse").hstack([rows.own, rows.rest], format="csr")
            system = Csr(joined.indptr, joined.indices, joined.data)
        span = rows.before, rows.before + n
        self._product = rows_of(self.part, system, span, dtype).times
        how = {"target": device.target, "dtype": dtype.name}
        pack = plan_cg.pack(max(rows.places.size, 1), **how)
        self._launches = {"pack": pack, **plan_cg.textbook(n, **how)}
        self._blocks = self._launches["cg_dots"].grid
        self._packed = np.empty(rows.places.size, dtype)
        self.part.allocate(16 * self._blocks, "partial")
        self.part.allocate(self._packed.nbytes, "packed")
        self.part.allocate(self.nbytes + rows.foreign.size * dtype.itemsize, "held")
        self.part.upload(rows.places, "places")
        self.scale_and_add = lambda y, s, x: self.combined(s, y, 1.0, x, y)
        self.multiply = lambda m, x, z: self.run("cg_times", z=z, inverse=m, r=x)

    def times(self, p: Vector, q: Vector) -> None:
        part, before = self.part, self._rows.before
        if self._packed.size:
            self.run("pack", p=p)
            part.download("packed", self._packed)
        values, request = self._rows.send(self._packed)
        start, held = before * self.dtype.itemsize, part.buffers["held"]
        part.device.copy(held, p.buffer, self.nbytes, start, 0, part.stream)
        request.Wait()
        part.upload(values[:before], "held")
        part.upload(values[before:], "held", start + self.nbytes)
        part.buffers["q"] = q.buffer
        part.start(*self._product("held"))

    def combined(
        self, of_a: float, a: Vector, of_b: float, b: Vector, out: Vector | None = None
    ) -> Vector:
        """of_a a + of_b b, in a new vector or in ``out``."""
        out = out or Vector(self, self.part.allocate(self.nbytes))
        self.run("ranks_combine", out=out, a=a, b=b, of_a=float(of_a), of_b=float(of_b))
        return out

    def hold(self, x: np.ndarray) -> Vector:
        """A vector of the host's, on the device."""
        return Vector(self, self.part.upload(x))

    def on_host(self, x: Vector) -> np.ndarray:
        """A vector of the device's, on the host."""
        values = np.empty(self.nbytes // self.dtype.itemsize, self.dtype)
        self.part.device.download(x.buffer, values)
        return values

    def run(self, launch: str, **named: Any) -> None:
        """Start a launch on vectors, buffers and numbers by name."""
        named = {name: getattr(one, "buffer", one) for name, one in named.items()}
        self.part.start(self.part.bind(self._launches[launch], **named))

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
            self.combined(1.0, x, alpha, p, x)
        return square
