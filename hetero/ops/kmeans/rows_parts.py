"""Rows on the host that several devices compute with, a part each.

Each device labels its rows and adds them up; the host makes centroids of the sums. One mean of all
is subtracted of every part, so that rows get the labels that one device would give them. A part
stays on its device, with its labels until they are asked for. `hetero.ops.kmeans.rows_blocks` has
the parts of one device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError
from hetero.ops.kmeans import columns_device, initial
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.lloyd import lloyd
from hetero.ops.linear_systems.partition import split
from hetero.ops.linear_systems.types import DeviceFailed
from hetero.runtime.problem import Problem


class PartedRows:
    """See `hetero.ops.kmeans.fit.Rows` and `hetero.ops.kmeans.lloyd.Steps`.

    Parameters
    ----------
    devices : sequence of Device
        Each gets a part, which stays.
    problem : Problem
    X, weights : arrays on the host
        C-contiguous, of one dtype; the weights may be None.
    method : str
        See `hetero.ops.kmeans.lloyd_device.DeviceRows`.
    given : (k, d) array, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None,
        method: str,
        given: np.ndarray | None = None,
    ) -> None:
        self._begin(X, weights)
        self._parts = [
            Part(device, problem, X[slice(*cut)], cut_of(weights, cut), cut[0], method)
            for device, cut in zip(devices, split(len(X), len(devices)), strict=False)
        ]
        used = [part.device for part in self._parts]
        nbytes = self._parts[0].nbytes
        at_once.run(used, [part.load for part in self._parts], nbytes)
        self._column_means, self._variance = combined(part.moments() for part in self._parts)
        self.mean = self._subtracted(given)
        lay_out = [functools.partial(part.lay_out, self.mean) for part in self._parts]
        at_once.run(used, lay_out, nbytes)

    def _begin(self, X: np.ndarray, weights: np.ndarray | None) -> None:
        """Nothing is known yet."""
        self._X, self._weights = X, weights
        self._labels: np.ndarray | None = None
        self._found: list[tuple[np.ndarray, np.ndarray]] = []
        self._saved: np.ndarray | None = None
        self._begun = 0

    def _subtracted(self, given: np.ndarray | None) -> np.ndarray:
        """What is subtracted of all rows."""
        if given is not None:
            return columns_device.subtracted_for(given)
        return columns_device.subtracted(self._column_means, self._variance, self._X.dtype)

    @property
    def labels(self) -> np.ndarray:
        """Of all rows, since the iteration that was begun last."""
        if self._labels is None:
            parts = self._parts
            self._labels = np.empty(len(self._X), np.int32)
            cuts = [self._labels[part.first :][: len(part.X)] for part in parts]
            tasks = [
                functools.partial(part.fetch, cut) for part, cut in zip(parts, cuts, strict=True)
            ]
            at_once.run([part.device for part in parts], tasks, cuts[0].nbytes)
        return self._labels

    def mean_variance(self) -> float:
        """See `hetero.ops.kmeans.fit.Rows`."""
        return self._variance

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """See `hetero.ops.kmeans.fit.Rows`."""
        if callable(how):
            centre = self._column_means.astype(self._X.dtype)
            return initial.by_callable(how, self._X - centre, k, random) + (centre - self.mean)
        rows = initial.on_host(self._X, self._weights, how, k, random, self._seeding)
        return rows - self.mean

    def _seeding(self) -> Any:
        """Distances for k-means++, where the rows are."""
        return _PartedSeeding(self._parts, self._X, self.mean)

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        """See `hetero.ops.kmeans.fit.Rows`."""
        self.restart()
        try:
            run = lloyd(self, centroids, maxiter, tol, exactly)
            return run, self.labels
        except DeviceError as error:
            if self._saved is None:
                raise
            raise DeviceFailed(error, self._saved + self.mean, self._begun - 1) from error

    def restart(self) -> None:
        """No row has a label, and no iteration was made."""
        self._labels, self._begun = np.full(len(self._X), -1, np.int32), 0

    def assign(self, centroids: np.ndarray) -> bool:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        self._saved, self._begun = centroids.copy(), self._begun + 1
        self._labels = None
        for part in self._parts:
            part.begin(centroids)
        self._found = [part.end() for part in self._parts]
        changed = [part.changed() for part in self._parts]
        return self._begun == 1 or any(changed)

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        sums, totals = zip(*self._found, strict=True)
        return np.sum(sums, axis=0), np.sum(totals, axis=0)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return np.concatenate([part.distances(centroids) for part in self._parts])

    def row(self, index: int) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return self._X[index] - self.mean

    def weight(self, index: int) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return 1.0 if self._weights is None else float(self._weights[index])

    def inertia(self, centroids: np.ndarray) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return sum(part.inertia(centroids) for part in self._parts)


class Part:
    """Some of the rows, on a device while they are loaded, less the mean of all."""

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None,
        first: int,
        method: str,
    ) -> None:
        self.device, self.X, self.first = device, X, first
        self.arrays = (X,) if weights is None else (X, weights)
        self.nbytes = X.nbytes
        self._problem = replace(problem, dims=(len(X), *problem.dims[1:]))
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
        from hetero.ops.kmeans.lloyd_device import DeviceRows

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
    mean = np.average(means, axis=0, weights=numbers)
    between = np.mean((np.array(means) - mean) ** 2, axis=1)  # of the parts' means
    return mean, float(np.average(variances + between, weights=numbers))


class _PartedSeeding:
    """`hetero.ops.kmeans.initial.Seeding` of parts that stay on their devices."""

    def __init__(self, parts: list[Part], X: np.ndarray, mean: np.ndarray) -> None:
        self._parts, self._X, self._mean = parts, X, mean
        self._tried = np.zeros((0, 0))
        self._reached = np.zeros(0)

    def first(self, index: int) -> float:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._try(np.array([index]), first=True)
        self.take(0)
        return float(self._reached[-1])

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        found = np.empty(len(values), np.int64)
        owners = np.minimum(np.searchsorted(self._reached, values), len(self._parts) - 1)
        for number in np.unique(owners):
            part, mine = self._parts[number], owners == number
            before = self._reached[number - 1] if number else 0.0
            with part.device.active():
                found[mine] = part.first + part.seeding().find(values[mine] - before)
        return found

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._try(indices, first=False)
        return self._tried.sum(axis=0)

    def take(self, which: int) -> None:
        """See `hetero.ops.kmeans.initial.Seeding`."""
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


def cut_of(weights: np.ndarray | None, cut: tuple[int, int]) -> np.ndarray | None:
    """The weights of some rows."""
    return None if weights is None else weights[slice(*cut)]
