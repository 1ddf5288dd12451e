"""k-means++ where rows stay on devices: distances stay there, sums of blocks of rows come to the
host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import Launch
from hetero.ops.kmeans.backend import Seeding
from hetero.ops.kmeans.device_rows import DeviceRows, bind


class DeviceSeeding(Seeding):
    """Of rows on one device.

    Parameters
    ----------
    rows : DeviceRows
        Their device is active, here and whenever a method is called.
    """

    def __init__(self, rows: DeviceRows) -> None:
        self._device, self._dtype = rows.device, rows.dtype
        self._plan = rows.seeds_plan()
        self._parts = self._plan.parts
        self._nbytes = rows.n * self._dtype.itemsize  # of a number for each row
        self._space = Workspace(self._device, "kmeans")
        self._buffers = self._space.buffers
        for name in {"X", "weights"} & rows.buffers.keys():
            self._buffers[name] = rows.buffers[name]
        self._sums = np.zeros((0, 0))
        self._reached = np.zeros(1)  # before each part, and at the end
        self._found: np.ndarray | None = None
        self._room = self._brought = 0
        self._bound: dict[tuple[int, ...], tuple[Any, ...]] = {}  # shorter ones find rows

    def first(self, index: int) -> float:
        self._gather(np.array([index]), first=True)
        self.take(0)
        return float(self._reached[-1])

    def candidates(self, values: np.ndarray) -> np.ndarray:
        # Their potentials are what is asked for next: they come along.
        self._ask(values, gathered=True)
        self._try(len(values), False, True)
        whole = np.empty((self._parts + 1, len(values)))
        self._device.download(self._buffers["sums"], whole)
        self._sums, self._found = whole[:-1], whole[-1].astype(np.int64)
        return self._found

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        if self._found is None or not np.array_equal(indices, self._found):
            self._gather(np.asarray(indices), first=False)
        return self._sums.sum(axis=0)

    def take(self, which: int) -> None:
        nbytes, buffers = self._nbytes, self._buffers
        self._device.copy(buffers["closest"], buffers["tried"], nbytes, 0, which * nbytes)
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
        self._try(len(rows), first, False)
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
        self._try(count, first, True)
        self._sums, self._found = np.empty((self._parts, count)), None
        self._device.download(self._buffers["sums"], self._sums)

    def _ask(self, values: np.ndarray, gathered: bool) -> None:
        """Start to look for the rows at which the running sum reaches the values."""
        count = len(values)
        self._make_room(count)
        parts = np.minimum(np.searchsorted(self._reached[1:], values), self._parts - 1)
        asked = np.stack([parts, values - self._reached[parts]], axis=1)
        self._device.upload(asked, self._buffers["asked"])
        self._launch(self._plan.find_rows, count, gathered)

    def _make_room(self, count: int) -> None:
        """Buffers for that many candidates."""
        if count <= self._room:
            return
        if not self._room:
            self._space.allocate(self._nbytes, "closest")
        self._room = count
        self._bound.clear()
        for name, nbytes in (
            ("tried", count * self._nbytes),
            ("sums", (self._parts + 1) * count * 8),
            ("asked", 2 * count * 8),
        ):
            self._space.allocate(nbytes, name)

    def _try(self, count: int, first: bool, gathered: bool) -> None:
        self._launch(self._plan.try_seeds, count, first, gathered)

    def _launch(self, plan: Callable[..., Launch], *shape: int) -> None:
        """Start the launch that ``plan(*shape)`` gives, which is bound once."""
        if shape not in self._bound:
            self._bound[shape] = bind(self._device, plan(*shape), self._buffers)
        self._device.launch(*self._bound[shape])


class PartitionSeeding(Seeding):
    """Of rows on several devices.

    Parameters
    ----------
    parts : sequence of hetero.ops.kmeans.ranges.Range
    X : (n, d) array
        Of all of them, on the host.
    mean : (d,) array
        What is subtracted of X.
    """

    def __init__(self, parts: Sequence[Any], X: np.ndarray, mean: np.ndarray) -> None:
        self._parts, self._X, self._mean = parts, X, mean
        self._tried = np.zeros((0, 0))
        self._reached = np.zeros(0)

    def first(self, index: int) -> float:
        self._try(np.array([index]), first=True)
        self.take(0)
        return float(self._reached[-1])

    def candidates(self, values: np.ndarray) -> np.ndarray:
        found = np.empty(len(values), np.int64)
        owners = np.minimum(np.searchsorted(self._reached, values), len(self._parts) - 1)
        for number in np.unique(owners):
            part, mine = self._parts[number], owners == number
            before = self._reached[number - 1] if number else 0.0
            with part.device.active():
                found[mine] = part.first + part.seeding().find(values[mine] - before)
        return found

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        self._try(indices, first=False)
        return self._tried.sum(axis=0)

    def take(self, which: int) -> None:
        for part in self._parts:
            with part.device.active():
                part.seeding().take(which)
        self._reached = np.cumsum(self._tried[:, which])

    def _try(self, indices: np.ndarray, first: bool) -> None:
        rows, found = self._X[indices] - self._mean, []
        for part in self._parts:
            with part.device.active():
                part.seeding().begin(rows, first)
        for part in self._parts:
            with part.device.active():
                found.append(part.seeding().end())
        self._tried = np.stack(found)
