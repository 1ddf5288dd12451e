"""A fit on one device, where the rows stay: k-means++, and Lloyd's iterations queued there.

The host makes neither distances nor means. It looks at the device's state once for several
iterations, and at sums of blocks of rows for each seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError
from hetero.kernels.common.launch import Launch
from hetero.ops.kmeans.backend import Backend, Run, means
from hetero.ops.kmeans.device_rows import DeviceRows, Stopped, bind
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
    method : str
        See `DeviceRows`.
    """

    def __init__(self, device: Device, problem: Problem, arguments: Arguments, method: str) -> None:
        self.n = problem.dims[0]
        self._device = device
        self._X, self._weights = (*arguments.inputs, None)[:2]
        self._asked: Fit = arguments.options
        labels = None if self._asked.labels is None else self._asked.labels.buffer
        given, seeded = self._asked.given, problem.layout == SEEDED
        self._rows = DeviceRows(
            device, problem, self._X, self._weights, method, labels, given, seeded=seeded
        )
        self.mean: np.ndarray = self._rows.mean
        if not math.isfinite(self._rows.mean_variance):  # or only their squares overflow
            check_finite(self._on_host())

    def mean_variance(self) -> float:
        """See `Backend`."""
        return self._rows.mean_variance

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        """See `Backend`."""
        X = self._on_host()
        centre = X.mean(axis=0)
        return X - centre, centre

    def host_weights(self) -> np.ndarray | None:
        """See `Backend`."""
        if self._weights is None:
            return None
        weights = np.empty(self.n, self._rows.dtype)
        self._device.download(self._weights, weights)
        return weights

    def seeding(self) -> DeviceSeeding:
        """See `Backend`."""
        return DeviceSeeding(self._rows)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """See `Backend`."""
        return self._rows.rows(indices)

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, Any]:
        """See `Backend`."""
        if maxiter:
            run = Loop(self._rows, centroids, tol, exactly).run(maxiter)
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

    Attributes
    ----------
    saved, saved_at
        The centroids last saved on the host, or None, and the iterations that made them.
    """

    def __init__(
        self, rows: DeviceRows, centroids: np.ndarray, tolerance: float, exactly: bool = False
    ) -> None:
        tolerance = _GOES_ON if exactly else float(tolerance)
        self.saved: np.ndarray | None = None
        self.saved_at = 0
        self._rows = rows
        self._centroids = centroids
        self._tolerance = tolerance
        self._start = [rows.iteration(swapped, tolerance) for swapped in (False, True)]

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
            stopped, done, changed = rows.state()
            if stopped == Stopped.EMPTIED:
                stopped = self._relocate(done, changed)
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

    def _relocate(self, done: int, changed: bool) -> int:
        """End an iteration in which a cluster was empty; why the loop stops, if it does."""
        rows, old = self._rows, self._fetch(done)
        steps = SimpleNamespace(
            labels=rows.fetch_labels(),
            sums=lambda centroids: rows.sums(),
            distances=lambda centroids: rows.distances(done % 2 == 1),
            row=rows.row,
            weight=rows.weight,
        )
        new, moved = means(steps, old)
        shift = float(((new.astype(np.float64) - old) ** 2).sum())
        stopped = Stopped.RUNNING
        if self._tolerance >= 0:
            if not changed and not moved:
                stopped = Stopped.REPEATED  # the labels fit the centroids
            elif not changed or shift <= self._tolerance:
                stopped = Stopped.CONVERGED
        rows.put(new, done % 2 == 0)  # as those of the next iteration
        rows.set_state(stopped, done + 1, 0)
        return stopped


class DeviceSeeding:
    """`Seeding` on a device: distances stay there, sums of blocks of rows come to the host.

    Parameters
    ----------
    rows : DeviceRows
        Their device is active, here and whenever a method is called.
    """

    def __init__(self, rows: DeviceRows) -> None:
        self._device, self._d, self._dtype = rows.device, rows.d, rows.dtype
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
        """See `Seeding`."""
        self._gather(np.array([index]), first=True)
        self.take(0)
        return float(self._reached[-1])

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """See `Seeding`.

        Their potentials are what is asked for next: they come along.
        """
        self._ask(values, gathered=True)
        self._try(len(values), False, True)
        whole = np.empty((self._parts + 1, len(values)))
        self._device.download(self._buffers["sums"], whole)
        self._sums, self._found = whole[:-1], whole[-1].astype(np.int64)
        return self._found

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """See `Seeding`."""
        if self._found is None or not np.array_equal(indices, self._found):
            self._gather(np.asarray(indices), first=False)
        return self._sums.sum(axis=0)

    def take(self, which: int) -> None:
        """See `Seeding`."""
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
        """Buffers for so many candidates."""
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
