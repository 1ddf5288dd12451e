"""A rank with its rows on a device: its vectors and products, for the iteration of all ranks.

Only the halo and the partial sums leave the device: they are downloaded, sent, received and
uploaded. Ranks on the CPU take part in the same iteration.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.imports import load
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg import plan_stencil
from hetero.kernels.common.launch import Launch
from hetero.mpi.products import HostVectors, Rows
from hetero.mpi.ranks import Ranks
from hetero.ops.krylov.matrices import Matrix
from hetero.ops.linear_systems.exchange import Part
from hetero.ops.linear_systems.systems import Csr


class Vector:
    """This rank's elements of a vector, in a buffer."""

    def __init__(self, vectors: DeviceVectors, buffer: Any) -> None:
        self._vectors, self.buffer, self.dtype = vectors, buffer, vectors.dtype

    def copy(self) -> Vector:
        """Another vector of the same elements."""
        return self._vectors.copy(self)

    def __sub__(self, other: Vector) -> Vector:
        return self._vectors.made("ranks_difference", "r", b=self, q=other)


class DeviceVectors(HostVectors):
    """A rank's vectors on a device, which is active all the while.

    The host adds up the partial sums of blocks, and knows all scalars.
    """

    def __init__(self, ranks: Ranks, device: Device, dtype: np.dtype, size: int) -> None:
        self._ranks, self.dtype, self.size = ranks, dtype, size
        self.part = Part(device, True)
        self._nbytes = size * dtype.itemsize
        self._launches = plan_cg.ranks(size, device.target, dtype=dtype.name)
        self._built: dict[str, Any] = {}
        self._blocks = self._launches["ranks_dot"].grid
        self.part.allocate(16 * self._blocks, "partial")

    def hold(self, x: np.ndarray) -> Vector:
        """A vector of the host's, on the device."""
        new = self._new()
        self.part.device.upload(np.ascontiguousarray(x), new.buffer)
        return new

    def on_host(self, x: Vector) -> np.ndarray:
        """A vector of the device's, on the host."""
        values = np.empty(self.size, self.dtype)
        self.part.device.download(x.buffer, values)
        return values

    def copy(self, x: Vector) -> Vector:
        """Another vector of the same elements."""
        new = self._new()
        self.part.device.copy(new.buffer, x.buffer, self._nbytes, 0, 0, self.part.stream)
        return new

    def made(self, kernel: str, name: str, **named: Any) -> Vector:
        """The vector of that name that a launch writes."""
        new = self._new()
        self.run(kernel, **named, **{name: new})
        return new

    def scale_and_add(self, y: Vector, scale: float, x: Vector) -> None:
        """y = scale y + x."""
        self.run("ranks_add", y=y, x=x, scale=float(scale))

    def subtract(self, y: Vector, alpha: float, x: Vector) -> None:
        """y -= alpha x."""
        self.run("ranks_subtract", y=y, x=x, scale=float(alpha))

    def multiply(self, m: Vector, x: Vector, z: Vector) -> None:
        """z = m x, element by element."""
        self.run("ranks_times", z=z, m=m, x=x)

    def run(self, launch: str | Launch, **named: Any) -> None:
        """Start a launch on vectors, buffers and numbers by name."""
        if isinstance(launch, str):
            launch = self._launches[launch]
        device = self.part.device
        named = {name: getattr(one, "buffer", one) for name, one in named.items()}
        if launch.kernel not in self._built:
            built = device.build(launch.source, launch.kernel, launch.defines)
            self._built[launch.kernel] = built
        given = launch.grid, launch.block, self.part.values(launch, **named)
        device.launch(self._built[launch.kernel], *given, 0, self.part.stream)

    def _new(self) -> Vector:
        return Vector(self, self.part.allocate(self._nbytes))

    def _sums(self) -> list[float]:
        partial = self.part.download("partial", np.empty((self._blocks, 2)))
        return partial.sum(axis=0).tolist()

    def _dot(self, x: Vector, y: Vector) -> float:
        self.run("ranks_dot", x=x, y=y)
        return self._sums()[0]

    def _step(self, x: Vector, r: Vector, p: Vector, q: Vector, alpha: float) -> float:
        self.run("ranks_reduce", x=x, r=r, p=p, q=q, scale=float(alpha))
        square, zero = self._sums()
        if not math.isfinite(square) or zero != 0.0:
            return math.nan
        self.subtract(x, -alpha, p)
        return square


def vectors_and_product(
    ranks: Ranks, device: Device, rows: Rows, dtype: np.dtype
) -> tuple[DeviceVectors, Matrix]:
    """A rank's vectors, and its product; a collective call as `Rows.product` is.

    For a product p is copied to where there is room for the halo: around a slab, as the grid's rows
    lie there, or after the elements of a matrix's rows.
    """
    halo, own, item = rows.halo(dtype), rows.own, dtype.itemsize
    is_matrix, size = isinstance(own, Csr), rows.rest.shape[0]
    plane = 1 if is_matrix else math.prod(own.shape[1:])
    before = 0 if is_matrix else int(np.searchsorted(rows.foreign, rows.starts[ranks.rank]))
    after = rows.foreign.size - before
    vectors = DeviceVectors(ranks, device, dtype, size)
    part, target = vectors.part, device.target
    if is_matrix:
        sparse = load("scipy.sparse")
        joined = sparse.csr_array(sparse.hstack([rows.square(dtype), rows.rest], format="csr"))
        index = joined.indptr.dtype.name
        for key, array, of in (
            ("pointers", joined.indptr, index),
            ("indices", joined.indices, index),
            ("values", joined.data, dtype),
            ("places", halo.places, index),
        ):
            part.upload(np.ascontiguousarray(array, of), key)
        share = plan_cg.Rows(size, joined.nnz, index)
        *_, product = plan_cg.csr(share, target, dtype=dtype.name, diagonal=False)
        pack = plan_cg.pack(product, halo.places.size, target)
        part.allocate(halo.packed.nbytes, "packed")
    else:
        grid = plan_stencil.GridShare.of(*own, low=before > 0, high=after > 0)
        _, product = plan_stencil.stencil(grid, target, dtype=dtype.name)
    part.numbers |= {"first_block": 0, "own": 0}
    part.allocate(16 * product.grid, "of blocks")
    held = part.allocate((before + size + after) * item)

    def times(p: Vector, q: Vector) -> None:
        if is_matrix and halo.packed.size:
            vectors.run(pack, p=p)
            part.download("packed", halo.packed)
        elif not is_matrix:  # a neighbour takes the plane next to it
            for at in range(0, halo.packed.size, plane):
                where = int(halo.places[at]) * item
                device.download(p.buffer, halo.packed[at : at + plane], where)
        halo.send()
        device.copy(held, p.buffer, size * item, before * item, 0, part.stream)
        values = halo.end()
        if before:
            device.upload(values[:before], held)
        if after:
            device.upload(values[before:], held, (before + size) * item)
        vectors.run(product, p=held, q=q, partial="of blocks")

    return vectors, Matrix(times)
