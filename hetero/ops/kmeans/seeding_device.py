"""k-means++ on one device: distances stay there, sums of blocks of rows come to the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan_seeds as plans
from hetero.ops.kmeans import initial


class DeviceSeeding:
    """`hetero.ops.kmeans.initial.Seeding` on a device.

    Parameters
    ----------
    device : Device
        Active, here and whenever a method is called.
    X : device buffer
        (n, d), contiguous.
    weights : device buffer or None
    n, d, k : int
    dtype : numpy.dtype
    """

    def __init__(
        self, device: Device, X: Any, weights: Any, n: int, d: int, k: int, dtype: np.dtype
    ) -> None:
        self._device = device
        self._n, self._d, self._dtype = n, d, dtype
        self._trials = initial.trials(k)
        self._weighted = weights is not None
        self._length = plans.part_of(n, device.multiprocessors, device.block_limit)
        self._parts = -(-n // self._length)
        self._space = Workspace(device, "kmeans")
        self._buffers = self._space.buffers
        self._buffers["X"] = X
        if weights is not None:
            self._buffers["weights"] = weights
        self._sums = np.zeros((0, 0))
        self._reached = np.zeros(1)  # before each part, and at the end
        self._found: np.ndarray | None = None
        self._room = self._brought = 0
        self._bound: dict[Any, tuple[Any, ...]] = {}

    def first(self, index: int) -> float:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._gather(np.array([index]), first=True)
        self.take(0)
        return float(self._reached[-1])

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`.

        Their potentials are what is asked for next: they come along.
        """
        self._ask(values, gathered=True)
        self._start_trial(len(values), first=False, gathered=True)
        whole = np.empty((self._parts + 1, len(values)))
        self._device.download(self._buffers["sums"], whole)
        self._sums, self._found = whole[:-1], whole[-1].astype(np.int64)
        return self._found

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        if self._found is None or not np.array_equal(indices, self._found):
            self._gather(np.asarray(indices), first=False)
        return self._sums.sum(axis=0)

    def take(self, which: int) -> None:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        nbytes = self._n * self._dtype.itemsize
        self._device.copy(
            self._buffers["closest"], self._buffers["tried"], nbytes, 0, which * nbytes
        )
        self._reached = np.cumsum(np.concatenate([[0.0], self._sums[:, which]]))
        self._found = None

    def find(self, values: np.ndarray) -> np.ndarray:
        """`candidates` alone, for who brings the rows with `begin`."""
        self._ask(values, gathered=False)
        found = np.empty(len(values))
        self._device.download(self._buffers["sums"], found, self._parts * found.nbytes)
        return found.astype(np.int64)

    def begin(self, rows: np.ndarray, first: bool) -> None:
        """Start to ask for the potentials with rows of the host's, less the mean; see `end`."""
        self._make_room(len(rows))
        rows = np.ascontiguousarray(rows, self._dtype)
        if rows.nbytes > self._brought:
            self._brought = rows.nbytes
            self._space.allocate(rows.nbytes, "candidates")
            self._bound.clear()
        self._device.upload(rows, self._buffers["candidates"])
        self._start_trial(len(rows), first, gathered=False)
        self._sums = np.empty((self._parts, len(rows)))

    def end(self) -> np.ndarray:
        """Wait for the potentials."""
        self._device.download(self._buffers["sums"], self._sums)
        return self._sums.sum(axis=0)

    def _gather(self, indices: np.ndarray, first: bool) -> None:
        """Ask for the potentials with rows of X."""
        count = len(indices)
        self._make_room(count)
        offset = self._parts * count * 8
        self._device.upload(indices.astype(np.float64), self._buffers["sums"], offset)
        self._start_trial(count, first, gathered=True)
        self._sums, self._found = np.empty((self._parts, count)), None
        self._device.download(self._buffers["sums"], self._sums)

    def _ask(self, values: np.ndarray, gathered: bool) -> None:
        """Start to look for the rows at which the running sum reaches the values."""
        count = len(values)
        self._make_room(count)
        parts = np.minimum(np.searchsorted(self._reached[1:], values), self._parts - 1)
        asked = np.stack([parts, values - self._reached[parts]], axis=1)
        self._device.upload(asked, self._buffers["asked"])
        key = count, gathered
        if key not in self._bound:
            self._bound[key] = self._bind(self._find(count, gathered))
        self._device.launch(*self._bound[key])

    def _find(self, count: int, gathered: bool) -> Launch:
        shape = self._n, count, self._dtype.name, self._weighted, self._length
        return plans.find_rows(*shape, self._device.block_limit, self._trials, gathered)

    def _try(self, count: int, first: bool, gathered: bool) -> Launch:
        shape = self._n, self._d, count, self._dtype.name, self._weighted, self._length
        return plans.try_seeds(*shape, first, self._device.block_limit, gathered)

    def launches(self) -> list[Launch]:
        """What seeds of rows of X are found by."""
        trials = self._trials
        return [self._try(1, True, True), self._try(trials, False, True), self._find(trials, True)]

    def _make_room(self, count: int) -> None:
        """Buffers for so many candidates."""
        if count <= self._room:
            return
        if not self._room:
            self._space.allocate(self._n * self._dtype.itemsize, "closest")
        self._room = count
        self._bound.clear()
        for name, nbytes in (
            ("tried", count * self._n * self._dtype.itemsize),
            ("sums", (self._parts + 1) * count * 8),
            ("asked", 2 * count * 8),
        ):
            self._space.allocate(nbytes, name)

    def _start_trial(self, count: int, first: bool, gathered: bool) -> None:
        key = count, first, gathered
        if key not in self._bound:
            self._bound[key] = self._bind(self._try(*key))
        self._device.launch(*self._bound[key])

    def _bind(self, launch: Launch) -> tuple[Any, ...]:
        """What the device's launch takes."""
        kernel = self._device.build(launch.source, launch.kernel, launch.defines)
        arguments = [self._buffers[a] if type(a) is str else a for a in launch.arguments]
        return kernel, launch.grid, launch.block, arguments
