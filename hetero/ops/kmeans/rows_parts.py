"""Rows on the host that several devices compute with, a part each.

Each device labels its rows and adds them up; the host makes centroids of the sums. One mean of all
is subtracted of every part, so that rows get the labels that one device would give them. A part
stays on its device, with its labels until they are asked for. `hetero.ops.kmeans.rows_blocks` has
the parts of one device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.ops.kmeans import columns_device, initial
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.lloyd import lloyd
from hetero.ops.kmeans.rows_part import Part, combined
from hetero.ops.linear_systems.partition import split
from hetero.ops.linear_systems.types import DeviceFailed
from hetero.registry.problem import Problem


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
            Part(device, problem, X, weights, cut, method)
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
