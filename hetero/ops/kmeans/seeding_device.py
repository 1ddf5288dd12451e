"""k-means++ on one device: distances stay there, sums of blocks of rows come to the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan_seeds as plans


class DeviceSeeding:
    """`hetero.ops.kmeans.initial.Seeding` on a device.

    Parameters
    ----------
    device : Device
        Active, here and whenever a method is called.
    X : device buffer
        (n, d), contiguous.
    weights : device buffer or None
    n, d : int
    dtype : numpy.dtype
    """

    def __init__(
        self, device: Device, X: Any, weights: Any, n: int, d: int, dtype: np.dtype
    ) -> None:
        self._device = device
        self._n, self._d, self._dtype = n, d, dtype
        self._weighted = weights is not None
        self._length = plans.part_of(n, device.multiprocessors, device.block_limit)
        self._parts = -(-n // self._length)
        self._space = Workspace(device, "kmeans")
        self._buffers = self._space.buffers
        self._buffers["X"] = X
        if weights is not None:
            self._buffers["weights"] = weights
        self._space.allocate(n * dtype.itemsize, "closest")
        self._sums = np.zeros((0, 0))
        self._reached = np.zeros(0)
        self._room = 0

    def first(self, index: int) -> float:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._copy(np.array([index]))
        self._start_trial(1, first=True)
        self.end()
        self.take(0)
        return float(self._reached[-1])

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        count = len(values)
        parts = np.minimum(np.searchsorted(self._reached, values), self._parts - 1)
        rests = values - np.concatenate([[0.0], self._reached])[parts]
        self._make_room(count)
        self._device.upload(np.ascontiguousarray(rests), self._buffers["rests"])
        self._device.upload(parts.astype(np.int32), self._buffers["parts"])
        limit = self._device.block_limit
        self._start(
            plans.find_rows(self._n, count, self._dtype.name, self._weighted, self._length, limit)
        )
        found = np.empty(count, np.int32)
        self._device.download(self._buffers["found"], found)
        return found.astype(np.int64)

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._copy(indices)
        self._start_trial(len(indices), first=False)
        return self.end()

    def begin(self, rows: np.ndarray, first: bool) -> None:
        """Start to ask for the potentials with rows of the host's, less the mean; see `end`."""
        self._make_room(len(rows))
        self._device.upload(np.ascontiguousarray(rows, self._dtype), self._buffers["candidates"])
        self._start_trial(len(rows), first)

    def end(self) -> np.ndarray:
        """Wait for the potentials."""
        self._device.download(self._buffers["sums"], self._sums)
        return self._sums.sum(axis=0)

    def take(self, which: int) -> None:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        nbytes = self._n * self._dtype.itemsize
        self._device.copy(
            self._buffers["closest"], self._buffers["tried"], nbytes, 0, which * nbytes
        )
        self._reached = np.cumsum(self._sums[:, which])

    def _make_room(self, count: int) -> None:
        """Buffers for so many candidates."""
        if count <= self._room:
            return
        self._room = count
        size = self._dtype.itemsize
        for name, nbytes in (
            ("candidates", count * self._d * size),
            ("tried", count * self._n * size),
            ("sums", count * self._parts * 8),
            ("rests", count * 8),
            ("parts", count * 4),
            ("found", count * 4),
        ):
            self._space.allocate(nbytes, name)

    def _copy(self, indices: np.ndarray) -> None:
        """Rows of X as candidates."""
        self._make_room(len(indices))
        row = self._d * self._dtype.itemsize
        for place, index in enumerate(indices):
            self._device.copy(
                self._buffers["candidates"], self._buffers["X"], row, place * row, int(index) * row
            )

    def _start_trial(self, count: int, first: bool) -> None:
        shape = self._n, self._d, count, self._dtype.name, self._weighted, self._length
        self._start(plans.try_seeds(*shape, first, self._device.block_limit))
        self._sums = np.empty((self._parts, count))

    def _start(self, launch: Launch) -> None:
        device = self._device
        kernel = device.build(launch.source, launch.kernel, launch.defines)
        arguments = [self._buffers[a] if type(a) is str else a for a in launch.arguments]
        device.launch(kernel, launch.grid, launch.block, arguments)
