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
from hetero.mpi.products import Halo, Rows, Vector
from hetero.mpi.ranks import Ranks
from hetero.ops.krylov.cg_products import Product
from hetero.ops.linear_systems.exchange import Part
from hetero.ops.linear_systems.types import Csr


class DeviceVectors:
    """A rank's vectors on a device, which is active all the while: buffers, as `HostVectors`.

    The host adds up the partial sums of blocks, and knows all scalars.
    """

    def __init__(self, device: Device, dtype: np.dtype, size: int) -> None:
        self.dtype, self.size = dtype, size
        self.part = Part(device, True)
        self.target = device.target
        self.nbytes = size * dtype.itemsize
        self._launches = plan_cg.ranks(size, self.target, dtype=dtype.name)
        self._built: dict[str, Any] = {}
        self._blocks = self._launches["ranks_dot"].grid
        self.part.allocate(16 * self._blocks, "partial")

    def hold(self, x: np.ndarray) -> Any:
        buffer = self.part.allocate(self.nbytes)
        self.part.device.upload(np.ascontiguousarray(x), buffer)
        return buffer

    def on_host(self, x: Any) -> np.ndarray:
        values = np.empty(self.size, self.dtype)
        self.part.device.download(x, values)
        return values

    def copy(self, x: Any) -> Any:
        new = self.part.allocate(self.nbytes)
        self.part.device.copy(new, x, self.nbytes, 0, 0, self.part.stream)
        return new

    def difference(self, b: Any, q: Any) -> Any:
        new = self.part.allocate(self.nbytes)
        self._run("ranks_difference", r=new, b=b, q=q)
        return new

    def launch(self, launch: Launch, **named: Any) -> None:
        """Start a launch on buffers and numbers by name."""
        device, values = self.part.device, self.part.values(launch, **named)
        if launch.kernel not in self._built:
            built = device.build(launch.source, launch.kernel, launch.defines)
            self._built[launch.kernel] = built
        kernel = self._built[launch.kernel]
        device.launch(kernel, launch.grid, launch.block, values, 0, self.part.stream)

    def _run(self, name: str, **named: Any) -> None:
        self.launch(self._launches[name], **named)

    def _sums(self) -> list[float]:
        partial = self.part.download("partial", np.empty((self._blocks, 2)))
        return partial.sum(axis=0).tolist()

    def dot(self, x: Any, y: Any) -> float:
        self._run("ranks_dot", x=x, y=y)
        return self._sums()[0]

    def step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        self._run("ranks_reduce", x=x, r=r, p=p, q=q, scale=float(alpha))
        square, zero = self._sums()
        if not math.isfinite(square) or zero != 0.0:
            return math.nan
        self.subtract(x, -alpha, p)
        return square

    def scale_and_add(self, y: Any, scale: float, x: Any) -> None:
        self._run("ranks_add", y=y, x=x, scale=float(scale))

    def subtract(self, y: Any, alpha: float, x: Any) -> None:
        self._run("ranks_subtract", y=y, x=x, scale=float(alpha))

    def multiply(self, m: Any, x: Any, z: Any) -> None:
        self._run("ranks_times", z=z, m=m, x=x)


def vectors_and_product(
    ranks: Ranks, device: Device, rows: Rows, dtype: np.dtype
) -> tuple[DeviceVectors, Product]:
    """A rank's vectors, and its product; a collective call as `Rows.product` is."""
    halo = rows.halo(dtype)
    vectors, fetch, hold, multiply = ranks.agreed(_prepared, device, rows, halo, dtype)

    def times(p: Vector, q: Vector) -> None:
        if halo.packed.size:
            ranks.attempt(fetch, p.values)
        halo.send()
        ranks.attempt(hold, p.values)
        ranks.attempt(multiply, halo.end(), q.values)

    return vectors, Product(times)


def _prepared(device: Device, rows: Rows, halo: Halo, dtype: np.dtype) -> tuple[Any, ...]:
    """Vectors, and the steps of a product: fetch what others need, hold p, and multiply.

    For a product p is copied to where there is room for the halo: around a slab, as the grid's rows
    lie there, or after the elements of a matrix's rows.
    """
    own, item = rows.own, dtype.itemsize
    if isinstance(own, Csr):
        before, size, after = 0, len(own.indptr) - 1, rows.foreign.size
    else:
        plane = math.prod(own.shape[1:])
        low, high = rows.rest
        before, size, after = plane * low, plane * own.shape[0], plane * high
    vectors = DeviceVectors(device, dtype, size)
    part, name = vectors.part, dtype.name
    if isinstance(own, Csr):
        sparse = load("scipy.sparse")
        joined = sparse.csr_array(sparse.hstack([rows.square(dtype), rows.rest], format="csr"))
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
    held = part.allocate((before + size + after) * item)

    def fetch(p: Any) -> None:
        if isinstance(own, Csr):
            vectors.launch(pack, p=p)
            part.download("packed", halo.packed)
        else:  # a neighbour takes the plane next to it
            for at in range(0, halo.packed.size, plane):
                where = int(halo.places[at]) * item
                part.device.download(p, halo.packed[at : at + plane], where)

    def hold(p: Any) -> None:
        part.device.copy(held, p, size * item, before * item, 0, part.stream)

    def multiply(values: np.ndarray, q: Any) -> None:
        if before:
            part.device.upload(values[:before], held)
        if after:
            part.device.upload(values[before:], held, (before + size) * item)
        vectors.launch(product, p=held, q=q, partial="of blocks")

    return vectors, fetch, hold, multiply
