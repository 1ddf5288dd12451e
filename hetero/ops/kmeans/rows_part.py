"""A part of the rows on the host, that a device computes with while it is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.imports import load
from hetero.ops.kmeans import columns_device
from hetero.registry.problem import Problem


class Part:
    """Some of the rows, on a device while they are loaded, less the mean of all.

    Parameters
    ----------
    device : Device
    problem : Problem
        Of all rows.
    X, weights : arrays on the host
        All of them; the weights may be None.
    cut : (int, int)
        The first of the part's rows, and the one after the last.
    method : str
        See `hetero.ops.kmeans.lloyd_device.DeviceRows`.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None,
        cut: tuple[int, int],
        method: str,
    ) -> None:
        self.device, self.first = device, cut[0]
        self.X = X[slice(*cut)]
        mine = cut_of(weights, cut)
        self.arrays = (self.X,) if mine is None else (self.X, mine)
        self.nbytes = self.X.nbytes
        self._problem = replace(problem, dims=(len(self.X), *problem.dims[1:]))
        self._method = method
        self._buffers: tuple[Any, ...] = ()
        self._rows: Any = None
        self._space: Any = None
        self._seeding: Any = None

    @property
    def loaded(self) -> bool:
        """Whether the rows are on the device."""
        return bool(self._buffers)

    def load(self) -> None:
        """Bring the rows to the device."""
        with self.device.active():
            self._space = Workspace(self.device, "kmeans")
            self.take([self._space.upload(array) for array in self.arrays])

    def take(self, buffers: Sequence[Any]) -> None:
        """The rows, and perhaps the weights, are in these buffers of the device."""
        self._buffers = tuple(buffers)

    def moments(self) -> tuple[int, np.ndarray, float]:
        """How many rows, their columns' means, and the mean of the columns' variances."""
        with self.device.active():
            n, d, _ = self._problem.dims
            where = self.device, self._buffers[0], n, d, self.X.dtype
            return n, *columns_device.moments(*where)

    def lay_out(self, mean: np.ndarray) -> None:
        """Be ready for iterations on the rows less a mean."""
        DeviceRows = load("hetero.ops.kmeans.lloyd_device").DeviceRows
        if self._rows is None:
            X, weights = (*self._buffers, None)[:2]
            with self.device.active():
                self._rows = DeviceRows(
                    self.device, self._problem, X, weights, self._method, mean=mean
                )

    def leave(self) -> None:
        """Give back what was made of the rows; the device is active."""
        self._rows = self._seeding = self._space = None
        self._buffers = ()

    def begin(self, centroids: np.ndarray) -> None:
        """Start an iteration: labels and sums."""
        with self.device.active():
            self._rows.begin_step(centroids)

    def end(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for an iteration; sums of rows and of weights."""
        with self.device.active():
            return self._rows.sums()

    def changed(self) -> bool:
        """Whether the iteration changed a label."""
        with self.device.active():
            return self._rows.changed()

    def fetch(self, labels: np.ndarray) -> None:
        """Bring the labels to the host."""
        with self.device.active():
            self.device.download(self._rows.labels, labels)

    def of(self, labels: np.ndarray) -> np.ndarray:
        """The part's own of the labels of all rows."""
        return labels[self.first :][: len(self.X)]

    def give(self, labels: np.ndarray) -> None:
        """Bring labels from the host."""
        with self.device.active():
            self.device.upload(labels, self._rows.labels)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """Squared distances of the rows from the centroids of their labels."""
        with self.device.active():
            self._rows.upload(centroids)
            return self._rows.distances(False)

    def inertia(self, centroids: np.ndarray) -> float:
        """The weighted sum of these."""
        with self.device.active():
            self._rows.upload(centroids)
            return self._rows.inertia(False)

    def seeding(self) -> Any:
        """Distances for k-means++."""
        if self._seeding is None:
            self._seeding = self._rows.seeding()
        return self._seeding


def combined(moments: Iterable[tuple[int, np.ndarray, float]]) -> tuple[np.ndarray, float]:
    """The columns' means, and the mean of their variances, of all rows from those of parts."""
    numbers, means, variances = zip(*moments, strict=True)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        mean = np.average(means, axis=0, weights=numbers)
        between = np.mean((np.array(means) - mean) ** 2, axis=1)  # of the parts' means
        return mean, float(np.average(variances + between, weights=numbers))


def cut_of(weights: np.ndarray | None, cut: tuple[int, int]) -> np.ndarray | None:
    """The weights of some rows."""
    return None if weights is None else weights[slice(*cut)]
