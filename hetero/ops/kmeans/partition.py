"""Rows on the host that devices compute with in parts; and a part on each of several devices.

Each part is labelled and added up on its device; the host makes centroids of the sums. One mean of
all is subtracted of every part, so that rows get the labels that one device would give them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError
from hetero.ops.kmeans.backend import Run, Seeding, SteppedBackend, subtracted, subtracted_for
from hetero.ops.kmeans.cpu import NumpySeeding
from hetero.ops.kmeans.device_rows import DeviceRows, moments
from hetero.ops.kmeans.device_seeding import DeviceSeeding, PartitionSeeding
from hetero.ops.linear_systems.partition import split
from hetero.ops.linear_systems.types import DeviceFailed
from hetero.registry.problem import Problem

T = TypeVar("T")


class HostRows(NamedTuple):
    """Rows on the host for devices to compute with, and how.

    Attributes
    ----------
    problem : Problem
        Of these rows.
    X, weights : arrays
        C-contiguous, of one dtype; the weights may be None.
    given : (k, d) array, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    counted : bool
        See `DeviceRows`.
    """

    problem: Problem
    X: np.ndarray
    weights: np.ndarray | None
    given: np.ndarray | None = None
    counted: bool = False

    def cut(self, begin: int, end: int) -> HostRows:
        """Those from ``begin`` to ``end``."""
        weights = None if self.weights is None else self.weights[begin:end]
        problem = replace(self.problem, dims=(end - begin, *self.problem.dims[1:]))
        return self._replace(problem=problem, X=self.X[begin:end], weights=weights)


class Part:
    """Some of the rows, on a device while they are loaded, less the mean of all.

    Parameters
    ----------
    device : Device
    rows : HostRows
        Of the part.
    first : int
        Number of the first one among all rows.
    """

    def __init__(self, device: Device, rows: HostRows, first: int) -> None:
        self.device, self.first = device, first
        self.arrays = (rows.X,) if rows.weights is None else (rows.X, rows.weights)
        self.nbytes = rows.X.nbytes
        self._host = rows
        self._buffers: tuple[Any, ...] = ()
        self._rows: Any = None
        self._space: Any = None
        self._seeding: DeviceSeeding | None = None

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
            n, d, _ = self._host.problem.dims
            return n, *moments(self.device, self._buffers[0], n, d, self._host.X.dtype)

    def lay_out(self, mean: np.ndarray) -> None:
        """Be ready for iterations on the rows less a mean."""
        if self._rows is None:
            X, weights = (*self._buffers, None)[:2]
            with self.device.active():
                problem, _, _, _, counted = self._host
                self._rows = DeviceRows(
                    self.device, problem, X, weights, mean=mean, counted=counted
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

    def changed(self) -> int:
        """As `DeviceRows.changed`."""
        with self.device.active():
            return self._rows.changed()

    def fetch(self, labels: np.ndarray) -> None:
        """Bring the labels to the host."""
        with self.device.active():
            self.device.download(self._rows.buffers["labels"], labels)

    def of(self, labels: np.ndarray) -> np.ndarray:
        """The part's own of the labels of all rows."""
        return labels[self.first :][: len(self._host.X)]

    def give(self, labels: np.ndarray) -> None:
        """Bring labels from the host."""
        with self.device.active():
            self.device.upload(labels, self._rows.buffers["labels"])

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

    def seeding(self) -> DeviceSeeding:
        """Distances for k-means++."""
        if self._seeding is None:
            self._seeding = DeviceSeeding(self._rows)
        return self._seeding


class SplitBackend(SteppedBackend):
    """Rows on the host, of which devices compute with one part after another, or at once.

    Attributes
    ----------
    common : (d,) array or None
        What is subtracted of all rows, once it is known.
    """

    _parts: Sequence[Any]  # with `moments`, `distances` and `inertia` of their rows

    def __init__(self, rows: HostRows) -> None:
        self.n = len(rows.X)
        self.common = None if rows.given is None else subtracted_for(rows.given)
        self._host, self._X = rows, rows.X
        self._known: tuple[np.ndarray, float] | None = None
        self._labels: np.ndarray | None = None
        self._found: list[tuple[np.ndarray, np.ndarray]] = []  # each part's sums
        self._saved: np.ndarray | None = None
        self._begun = 0

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        if self.common is None:
            self.common = subtracted(*self.moments()[1:], self._X.dtype)
        return self.common

    def moments(self) -> tuple[int, np.ndarray, float]:
        """As `Part.moments`; found when it is asked for."""
        if self._known is None:
            self._known = combined(self._part_moments())
        return self.n, *self._known

    def _part_moments(self) -> list[tuple[int, np.ndarray, float]]:
        return [part.moments() for part in self._parts]

    def mean_variance(self) -> float:
        return self.moments()[2]

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        centre = self.moments()[1].astype(self._X.dtype)
        return self._X - centre, centre

    def host_weights(self) -> np.ndarray | None:
        return self._host.weights

    def seeding(self) -> Seeding:
        return NumpySeeding(self._X, self._host.weights, self.moments()[1])

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self._X[indices] - self.mean

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        return self._labels

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        try:
            return super().lloyd(centroids, maxiter, tol, exactly)
        except DeviceError as error:
            if self._saved is None:
                raise
            raise DeviceFailed(error, self._saved + self.mean, self._begun - 1) from error

    def restart(self, k: int) -> None:
        self._labels, self._begun = np.full(self.n, -1, np.int32), 0

    def _save(self, centroids: np.ndarray) -> None:
        """Keep what an iteration begins with, should a device fail."""
        self._saved, self._begun = centroids.copy(), self._begun + 1

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums, totals = zip(*self._found, strict=True)
        return np.sum(sums, axis=0), np.sum(totals, axis=0)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        return np.concatenate(self._each(lambda part: part.distances(centroids)))

    def inertia(self, centroids: np.ndarray) -> float:
        return sum(self._each(lambda part: part.inertia(centroids)))

    def _each(self, step: Callable[[Any], T]) -> list[T]:
        """``step(part)`` of each part, which has the labels of its rows."""
        return [step(part) for part in self._parts]


class PartitionBackend(SplitBackend):
    """A part of the rows on each of several devices, where it stays; its labels do, too, until
    they are asked for.
    """

    def __init__(self, devices: Sequence[Device], rows: HostRows) -> None:
        super().__init__(rows)
        self._parts: list[Part] = [
            Part(device, rows.cut(*cut), cut[0])
            for device, cut in zip(devices, split(self.n, len(devices)), strict=False)
        ]
        used, nbytes = [part.device for part in self._parts], self._parts[0].nbytes
        at_once.run(used, [part.load for part in self._parts], nbytes)
        self.moments()
        at_once.run(used, [partial(part.lay_out, self.mean) for part in self._parts], nbytes)

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        if self._labels is None:
            self._labels = np.empty(self.n, np.int32)
            tasks = [partial(part.fetch, part.of(self._labels)) for part in self._parts]
            nbytes = self._parts[0].of(self._labels).nbytes
            at_once.run([part.device for part in self._parts], tasks, nbytes)
        return self._labels

    def assign(self, centroids: np.ndarray) -> int:
        self._save(centroids)
        self._labels = None
        for part in self._parts:
            part.begin(centroids)
        self._found = [part.end() for part in self._parts]
        changed = [part.changed() for part in self._parts]
        return self.n if self._begun == 1 else sum(changed)

    def seeding(self) -> Seeding:
        return PartitionSeeding(self._parts, self._X, self.mean)


def combined(moments: list[tuple[int, np.ndarray, float]]) -> tuple[np.ndarray, float]:
    """The columns' means, and the mean of their variances, of all rows from those of parts."""
    numbers, means, variances = zip(*moments, strict=True)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        mean = np.average(means, axis=0, weights=numbers)
        between = np.mean((np.array(means) - mean) ** 2, axis=1)  # of the parts' means
        return mean, float(np.average(variances + between, weights=numbers))
