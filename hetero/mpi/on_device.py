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
from hetero.mpi.products import Rows
from hetero.mpi.ranks import Ranks
from hetero.mpi.vectors import Vectors
from hetero.ops.krylov.cg_products import Product
from hetero.ops.linear_systems.exchange import Part
from hetero.ops.linear_systems.types import Csr


class DeviceVector:
    """A rank's elements of a vector in a buffer."""

    def __init__(self, vectors: DeviceVectors, buffer: Any) -> None:
        self.vectors, self.buffer = vectors, buffer
        self.dtype, self.size, self.shape = vectors.dtype, vectors.size, (vectors.size,)

    def copy(self) -> DeviceVector:
        """Another vector of the same elements."""
        new = self.vectors.room()
        part, nbytes = self.vectors.part, self.vectors.nbytes
        part.device.copy(new.buffer, self.buffer, nbytes, 0, 0, part.stream)
        return new

    def __sub__(self, other: DeviceVector) -> DeviceVector:
        new = self.vectors.room()
        self.vectors.difference(new, self, other)
        return new


class DeviceVectors(Vectors):
    """Vectors on a device, which is active all the while.

    The host adds up the partial sums of blocks, and knows all scalars.
    """

    def __init__(self, ranks: Ranks, device: Device, dtype: np.dtype, size: int) -> None:
        super().__init__(ranks)
        self.dtype, self.size = dtype, size
        self.part = Part(device, True)
        self.target = device.target
        self.nbytes = size * dtype.itemsize
        self._launches = plan_cg.ranks(size, self.target, dtype=dtype.name)
        self._built: dict[str, Any] = {}
        self._blocks = self._launches["ranks_dot"].grid
        self.part.allocate(16 * self._blocks, "partial")

    def room(self) -> DeviceVector:
        """A vector of any values."""
        return DeviceVector(self, self.part.allocate(self.nbytes))

    def hold(self, x: np.ndarray) -> DeviceVector:
        vector = self.room()
        self.part.device.upload(np.ascontiguousarray(x), vector.buffer)
        return vector

    def on_host(self, x: DeviceVector | np.ndarray) -> np.ndarray:
        if isinstance(x, np.ndarray):
            return x
        values = np.empty(self.size, self.dtype)
        self.part.device.download(x.buffer, values)
        return values

    def launch(self, launch: Launch, **named: Any) -> None:
        """Start a launch on vectors and numbers by name."""
        kernel = self._built.get(launch.kernel)
        if kernel is None:
            kernel = self.part.device.build(launch.source, launch.kernel, launch.defines)
            self._built[launch.kernel] = kernel
        given = {k: v.buffer if isinstance(v, DeviceVector) else v for k, v in named.items()}
        values = self.part.values(launch, **given)
        self.part.device.launch(kernel, launch.grid, launch.block, values, 0, self.part.stream)

    def _run(self, name: str, **named: Any) -> None:
        self.launch(self._launches[name], **named)

    def _sums(self) -> list[float]:
        partial = self.part.download("partial", np.empty((self._blocks, 2)))
        return partial.sum(axis=0).tolist()

    def own_dot(self, x: DeviceVector, y: DeviceVector) -> float:
        self._run("ranks_dot", x=x, y=y)
        return self._sums()[0]

    def own_step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        self._run("ranks_reduce", x=x, r=r, p=p, q=q, scale=float(alpha))
        square, zero = self._sums()
        if not math.isfinite(square) or zero != 0.0:
            return math.nan
        self.subtract(x, -alpha, p)
        return square

    def scale_and_add(self, y: DeviceVector, scale: float, x: DeviceVector) -> None:
        self._run("ranks_add", y=y, x=x, scale=float(scale))

    def subtract(self, y: DeviceVector, alpha: float, x: DeviceVector) -> None:
        self._run("ranks_subtract", y=y, x=x, scale=float(alpha))

    def difference(self, r: DeviceVector, b: DeviceVector, q: DeviceVector) -> None:
        self._run("ranks_difference", r=r, b=b, q=q)

    def multiplier(self, inverse: np.ndarray) -> Any:
        """``f(r, z)`` that writes z = inverse * r."""
        m = self.hold(inverse)
        return lambda r, z: self._run("ranks_times", z=z, m=m, x=r)

    def synchronize(self) -> None:
        self.part.device.synchronize()


def vectors_and_product(
    ranks: Ranks, device: Device, rows: Rows, dtype: np.dtype
) -> tuple[DeviceVectors, Product]:
    """A rank's vectors, and its product; a collective call as `Rows.product` is.

    For a product p is copied to where there is room for the halo: around a slab, as the grid's rows
    lie there, or after the elements of a matrix's rows.
    """
    halo, own, item = rows.halo(dtype), rows.own, dtype.itemsize
    if isinstance(own, Csr):
        before, size, after = 0, len(own.indptr) - 1, rows.foreign.size
    else:
        plane = math.prod(own.shape[1:])
        low, high = rows.rest
        before, size, after = plane * low, plane * own.shape[0], plane * high
    vectors = DeviceVectors(ranks, device, dtype, size)
    part, name = vectors.part, dtype.name
    if isinstance(own, Csr):
        joined = _joined(own, rows.rest)
        index = joined.indptr.dtype.name
        for key, array in (
            ("pointers", joined.indptr),
            ("indices", joined.indices.astype(index, copy=False)),
            ("values", joined.data.astype(dtype, copy=False)),
            ("places", halo.places.astype(index)),
        ):
            part.upload(np.ascontiguousarray(array), key)
        share = plan_cg.Rows(size, joined.nnz, index)
        *_, product = plan_cg.csr(share, vectors.target, dtype=name, diagonal=False)
        pack = plan_cg.pack(product, halo.places.size, vectors.target)
        part.allocate(halo.packed.nbytes, "packed")
    else:
        grid = plan_stencil.GridShare.of(*own, low=bool(low), high=bool(high))
        _, product = plan_stencil.stencil(grid, vectors.target, dtype=name, x_halo=1)
    part.numbers |= {"first_block": 0, "own": 0}
    part.allocate(16 * product.grid, "of blocks")

    def fetch(p: DeviceVector) -> None:
        if isinstance(own, Csr):
            vectors.launch(pack, p=p)
            part.download("packed", halo.packed)
        else:  # a neighbour takes the plane next to it
            for at in range(0, halo.packed.size, plane):
                where = int(halo.places[at]) * item
                part.device.download(p.buffer, halo.packed[at : at + plane], where)

    held = part.allocate((before + size + after) * item)

    def times(p: DeviceVector, q: DeviceVector) -> None:
        if halo.packed.size:
            fetch(p)
        halo.send()
        part.device.copy(held, p.buffer, size * item, before * item, 0, part.stream)
        values = halo.end()
        if before:
            part.device.upload(values[:before], held)
        if after:
            part.device.upload(values[before:], held, (before + size) * item)
        vectors.launch(product, p=held, q=q, partial="of blocks")

    return vectors, Product(times)


def _joined(own: Csr, rest: Any) -> Any:
    """Both pieces of a rank's rows in one matrix, the columns of others after its own."""
    sparse = load("scipy.sparse")
    n = len(own.indptr) - 1
    square = sparse.csr_array((own.data, own.indices, own.indptr), shape=(n, n))
    return sparse.csr_array(sparse.hstack([square, rest], format="csr"))
