"""method="library": cuBLAS's products of blocks of rows with the centroids, and our own argmin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import ELEMENT_BYTES
from hetero.kernels.kmeans import plan as plans
from hetero.ops.products import cublas

_BLOCK = 32 << 20  # bytes of products, which are read while the L2 still has them


class _Product(NamedTuple):
    """What `cublas.gemm` asks of a problem: rows of X times the transposed centroids."""

    dims: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]
    dtype: str
    batch: int = 1


class Products:
    """The labels of n rows by products of blocks of them.

    Parameters
    ----------
    device : Device
        Active. Its buffers are addresses.
    space : Workspace
        Which gets the products' memory.
    buffers : mapping
        Name -> address: "X", "labels", "state" and what centroids and norms are called.
    n, d, k : int
    dtype : str
    """

    def __init__(
        self,
        device: Device,
        space: Workspace,
        buffers: Mapping[str, int],
        dims: tuple[int, int, int],
        dtype: str,
    ) -> None:
        n, d, k = dims
        size = ELEMENT_BYTES[dtype]
        block = max(1, min(n, _BLOCK // (k * size)))
        products = space.allocate(block * k * size)
        strides = ((0, d, 1), (0, 1, d), (0, k, 1))
        self._device = device
        self._buffers = buffers
        self._products = products
        self._steps = []
        gemms: dict[int, Any] = {}
        for first in range(0, n, block):
            rows = min(block, n - first)
            if rows not in gemms:
                gemms[rows] = cublas.gemm(device, _Product((rows, k, d), strides, dtype))
            launch = plans.label_rows(first, rows, k, dtype, device.block_limit)
            kernel = device.build(launch.source, launch.kernel, launch.defines)
            self._steps.append((gemms[rows], first * d * size, kernel, launch))

    def assign(self, centroids: str, norms: str) -> None:
        """Start what finds the labels for centroids and their squared norms."""
        known = dict(self._buffers, products=self._products, norms=self._buffers[norms])
        for gemm, offset, kernel, launch in self._steps:
            gemm(known["X"] + offset, known[centroids], self._products)
            arguments = [known[a] if type(a) is str else a for a in launch.arguments]
            self._device.launch(kernel, launch.grid, launch.block, arguments)
