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
from hetero.ops.solvers.cg_loop import Matrix
from hetero.ops.solvers.exchange import Part
from hetero.ops.solvers.systems import Csr


class Vector:
    """This rank's elements of a vector, in a buffer."""

    def __init__(self, vectors: DeviceVectors) -> None:
        self._vectors, self.dtype = vectors, vectors.dtype
        self.buffer = vectors.part.allocate(vectors.size * self.dtype.itemsize)

    def copy(self) -> Vector:
        """Another vector of the same elements."""
        new, part = Vector(self._vectors), self._vectors.part
        nbytes = self._vectors.size * self.dtype.itemsize
        part.device.copy(new.buffer, self.buffer, nbytes, 0, 0, part.stream)
        return new

    def __sub__(self, other: Vector) -> Vector:
        new = Vector(self._vectors)
        self._vectors.run("ranks_difference", r=new, b=self, q=other)
        return new


class DeviceVectors(HostVectors):
    """A rank's vectors on a device, which is active all the while.

    The host adds up the partial sums of blocks, and knows all scalars.
    """

    def __init__(self, ranks: Ranks, device: Device, dtype: np.dtype, size: int) -> None:
        self._ranks, self.dtype, self.size, self.part = ranks, dtype, size, Part(device, True)
        self._launches = plan_cg.ranks(size, device.target, dtype=dtype.name)
        self._blocks = self._launches["ranks_dot"].grid
        self.part.allocate(16 * self._blocks, "partial")

    def hold(self, x: np.ndarray) -> Vector:
        """A vector of the host's, on the device."""
        new = Vector(self)
        self.part.device.upload(np.ascontiguousarray(x), new.buffer)
        return new

    def on_host(self, x: Vector) -> np.ndarray:
        """A vector of the device's, on the host."""
        values = np.empty(self.size, self.dtype)
        self.part.device.download(x.buffer, values)
        return values

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
        launch = self._launches[launch] if isinstance(launch, str) else launch
        named = {name: getattr(one, "buffer", one) for name, one in named.items()}
        device, given = self.part.device, self.part.values(launch, **named)
        kernel = device.build(launch.source, launch.kernel, launch.defines)
        device.launch(kernel, launch.grid, launch.block, given, 0, self.part.stream)

    def _sums(self, launch: str, **named: Any) -> list[float]:
        """The two sums that a launch leaves in "partial"."""
        self.run(launch, **named)
        return self.part.download("partial", np.empty((self._blocks, 2))).sum(axis=0).tolist()

    def _dot(self, x: Vector, y: Vector) -> float:
        return self._sums("ranks_dot", x=x, y=y)[0]

    def _step(self, x: Vector, r: Vector, p: Vector, q: Vector, alpha: float) -> float:
        square, zero = self._sums("ranks_reduce", x=x, r=r, p=p, q=q, scale=float(alpha))
        if not math.isfinite(square) or zero != 0.0:
            return math.nan
        self.subtract(x, -alpha, p)
        return square


def vectors_and_product(
    ranks: Ranks, device: Device, rows: Rows, dtype: np.dtype
) -> tuple[DeviceVectors, Matrix]:
    """A rank's vectors, and its product.

    For a product p is copied to where there is room for the halo: around a slab, as the grid's rows
    lie there, or after the elements of a matrix's rows.
    """
    own, item, size = rows.own, dtype.itemsize, rows.rest.shape[0]
    vectors, packed = DeviceVectors(ranks, device, dtype, size), np.empty(rows.places.size, dtype)
    part, target, before = vectors.part, device.target, 0
    if is_matrix := isinstance(own, Csr):
        sparse = load("scipy.sparse")
        joined = sparse.csr_array(sparse.hstack([rows.square(dtype), rows.rest], format="csr"))
        index = joined.indptr.dtype.name
        for key, array, of in (
            ("pointers", joined.indptr, index),
            ("indices", joined.indices, index),
            ("values", joined.data, dtype),
            ("places", rows.places, index),
        ):
            part.upload(np.ascontiguousarray(array, of), key)
        share = plan_cg.Rows(size, joined.nnz, index)
        *_, product = plan_cg.csr(share, target, dtype=dtype.name, diagonal=False)
        pack = plan_cg.pack(product, packed.size, target)
        part.allocate(packed.nbytes, "packed")
    else:
        plane, before = math.prod(own.shape[1:]), int(np.searchsorted(rows.foreign, rows.first))
        grid = plan_stencil.GridShare.of(*own, low=before > 0, high=rows.foreign.size > before)
        _, product = plan_stencil.stencil(grid, target, dtype=dtype.name)
    part.numbers |= {"first_block": 0, "own": 0}
    part.allocate(16 * product.grid, "of blocks")
    held = part.allocate((size + rows.foreign.size) * item)

    def times(p: Vector, q: Vector) -> None:
        if is_matrix and packed.size:
            vectors.run(pack, p=p)
            part.download("packed", packed)
        elif not is_matrix:  # a neighbour takes the plane next to it
            for at in range(0, packed.size, plane):
                device.download(p.buffer, packed[at : at + plane], int(rows.places[at]) * item)
        values, request = rows.send(packed)
        device.copy(held, p.buffer, size * item, before * item, 0, part.stream)
        request.Wait()
        if before:
            device.upload(values[:before], held)
        if values.size > before:
            device.upload(values[before:], held, (before + size) * item)
        vectors.run(product, p=held, q=q, partial="of blocks")

    return vectors, Matrix(times)
