"""A fit on one device, where the rows stay and Lloyd's iterations are queued."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.ops.kmeans.backend import Backend, Run, means
from hetero.ops.kmeans.device_rows import DeviceRows, Stopped
from hetero.ops.kmeans.device_seeding import DeviceSeeding
from hetero.ops.kmeans.fit import Fit
from hetero.ops.kmeans.operands import SEEDED, check_finite
from hetero.ops.linear_systems.types import DeviceFailed
from hetero.registry import Arguments
from hetero.registry.problem import Problem

_GOES_ON = -1.0  # a tolerance: no rule stops the iteration
_BATCH_SECONDS = 1e-3  # of iterations between two looks at the state, which take some 20 us
_LONGEST_BATCH = 64
_CHECKPOINT_SECONDS = 2.0


class DeviceBackend(Backend):
    """Rows on one device, for a whole fit.

    Parameters
    ----------
    device : Device
        It is active.
    problem : Problem
    arguments : Arguments
        X and perhaps weights are buffers.
    """

    def __init__(self, device: Device, problem: Problem, arguments: Arguments) -> None:
        self.n = problem.dims[0]
        self._device = device
        self._X, self._weights = (*arguments.inputs, None)[:2]
        self._asked: Fit = arguments.options
        labels = None if self._asked.labels is None else self._asked.labels.buffer
        given, seeded = self._asked.given, problem.layout == SEEDED
        counted = self._asked.label_tol > 0.0
        self._rows = DeviceRows(
            *(device, problem, self._X, self._weights, labels, given),
            seeded=seeded,
            counted=counted,
        )
        self.mean: np.ndarray = self._rows.mean
        if not math.isfinite(self._rows.mean_variance):  # or only their squares overflow
            check_finite(self._on_host())

    def mean_variance(self) -> float:
        return self._rows.mean_variance

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        X = self._on_host()
        centre = X.mean(axis=0)
        return X - centre, centre

    def host_weights(self) -> np.ndarray | None:
        if self._weights is None:
            return None
        weights = np.empty(self.n, self._rows.dtype)
        self._device.download(self._weights, weights)
        return weights

    def seeding(self) -> DeviceSeeding:
        return DeviceSeeding(self._rows)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self._rows.rows(indices)

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, Any]:
        if maxiter:
            run = Loop(self._rows, centroids, tol, exactly, self.most_changed).run(maxiter)
        else:
            self._rows.upload(centroids)
            self._rows.label(False)
            run = Run(self._rows.inertia(False), 0, False)
        if self._asked.labels is not None and self._asked.starts == 1:
            return run, self._asked.labels.array
        return run, self._rows.fetch_labels()

    def _on_host(self) -> np.ndarray:
        """X on the host."""
        if self._asked.host is not None:
            return self._asked.host
        X = np.empty((self.n, self._rows.d), self._rows.dtype)
        self._device.download(self._X, X)
        return X


class Loop:
    """Lloyd's iterations of one start.

    The device decides when to stop, and the host looks at it once for several iterations: those
    beyond the last one do nothing. Centroids are in two sets of buffers in turn, so that ``done``
    iterations leave them in the second one where that is odd.

    Parameters
    ----------
    rows : DeviceRows
    centroids : (k, d) numpy.ndarray
        Changed by `run`.
    tolerance : float
        Of the sum of squared shifts.
    exactly : bool
        Whether no rule stops it.
    most : int
        See `hetero.ops.kmeans.backend.Backend.most_changed`.

    Attributes
    ----------
    saved, saved_at
        The centroids last saved on the host, or None, and the iterations that made them.
    """

    def __init__(
        self,
        rows: DeviceRows,
        centroids: np.ndarray,
        tolerance: float,
        exactly: bool = False,
        most: int = 0,
    ) -> None:
        tolerance = _GOES_ON if exactly else float(tolerance)
        self.saved: np.ndarray | None = None
        self.saved_at = 0
        self._rows = rows
        self._centroids = centroids
        self._tolerance, self._most = tolerance, most
        self._start = [rows.iteration(swapped, tolerance, most) for swapped in (False, True)]

    def run(self, maxiter: int) -> Run:
        """Iterate; the centroids are changed, the labels and the inertia fit them.

        Raises
        ------
        DeviceFailed
            With the centroids that were saved last, where an iteration fails.
        """
        self._rows.upload(self._centroids)
        try:
            return self._iterate(maxiter)
        except DeviceError as error:
            saved = None if self.saved is None else self.saved + self._rows.mean
            raise DeviceFailed(error, saved, self.saved_at) from error

    def _iterate(self, maxiter: int) -> Run:
        rows = self._rows
        done, stopped, batch = 0, Stopped.RUNNING, 2
        saved = time.monotonic()
        while done < maxiter and stopped == Stopped.RUNNING:
            began, before = time.monotonic(), done
            for number in range(done, min(done + batch, maxiter)):
                self._start[number % 2]()
            stopped, done, _ = rows.state()
            if stopped == Stopped.EMPTIED:
                stopped = self._relocate(done, rows.changed())
                done += 1
            now = time.monotonic()
            wanted = math.ceil(_BATCH_SECONDS * (done - before) / (now - began))
            batch = max(1, min(wanted, 2 * batch, _LONGEST_BATCH))
            if now - saved > _CHECKPOINT_SECONDS and stopped == Stopped.RUNNING:
                self.saved, self.saved_at, saved = self._fetch(done), done, now
        if stopped != Stopped.REPEATED:
            rows.set_state(Stopped.RUNNING, done, 1)
            rows.label(done % 2 == 1)
        inertia = rows.inertia(done % 2 == 1)
        self._centroids[...] = self._fetch(done)
        return Run(inertia, done, stopped != Stopped.RUNNING)

    def _fetch(self, done: int) -> np.ndarray:
        rows = self._rows
        name = "means" if done % 2 else "centroids"
        return rows.download(name, (rows.k, rows.d), rows.dtype)

    def _relocate(self, done: int, changed: int) -> int:
        """End an iteration in which a cluster was empty; why the loop stops, if it does."""
        rows, old, labels = self._rows, self._fetch(done), self._rows.fetch_labels()
        steps = SimpleNamespace(
            sums=lambda centroids: rows.sums(),
            distances=lambda centroids: rows.distances(done % 2 == 1),
            element=lambda index: (rows.row(index), rows.weight(index), labels[index]),
        )
        new, moved = means(steps, old)
        shift = float(((new.astype(np.float64) - old) ** 2).sum())
        stopped = Stopped.RUNNING
        if self._tolerance >= 0:
            if not changed and not moved:
                stopped = Stopped.REPEATED  # the labels fit the centroids
            elif changed <= self._most or shift <= self._tolerance:
                stopped = Stopped.CONVERGED
        rows.put(new, done % 2 == 0)  # as those of the next iteration
        rows.set_state(stopped, done + 1, 0)
        return stopped
