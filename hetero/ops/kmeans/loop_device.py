"""Lloyd's iterations on one device: when they end, and what the host does meanwhile."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from hetero.kernels.kmeans.plan import STATE
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.lloyd import means

_STOPPED, _ITERATIONS, CHANGED, _EMPTY = range(STATE)  # places in the device's state
RUNNING, _REPEATED, _CONVERGED, _EMPTIED = range(4)  # why it stopped
_GOES_ON = -1.0  # a tolerance: no rule stops the iteration
_BATCH_SECONDS = 1e-3  # of iterations between two looks at the state, which take some 20 us
_LONGEST_BATCH = 64
_CHECKPOINT_SECONDS = 2.0


class _Emptied:
    """An iteration in which a cluster was empty, as `hetero.ops.kmeans.lloyd.Steps`."""

    def __init__(self, rows: Any, swapped: bool) -> None:
        self._rows = rows
        self._swapped = swapped
        self.labels = rows.fetch_labels()
        self.row = rows.row
        self.weight = rows.weight

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those that the iteration made."""
        return self._rows.sums()

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """Of the rows from the centroids that the iteration began with."""
        return self._rows.distances(self._swapped)


class Loop:
    """Lloyd's iterations of one start.

    The device decides when to stop, and the host looks at it once for several iterations: those
    beyond the last one do nothing. Centroids are in two sets of buffers in turn, so that ``done``
    iterations leave them in the second one where that is odd.

    Parameters
    ----------
    rows : hetero.ops.kmeans.lloyd_device.DeviceRows
    centroids : (k, d) numpy.ndarray
        Changed by `run`.
    tolerance : float
        Of the sum of squared shifts.
    exactly : bool
        Whether no rule stops it.

    Attributes
    ----------
    begun : bool
        Whether a failure leaves something behind:
    saved, saved_at
        The centroids last saved on the host, or None, and the iterations that made them.
    """

    def __init__(self, rows: Any, centroids: np.ndarray, tolerance: float, exactly: bool) -> None:
        tolerance = _GOES_ON if exactly else float(tolerance)
        self.begun = False
        self.saved: np.ndarray | None = None
        self.saved_at = 0
        self._rows = rows
        self._centroids = centroids
        self._tolerance = tolerance
        self._start = [rows.iteration(swapped, tolerance) for swapped in (False, True)]

    def run(self, maxiter: int) -> Run:
        """Iterate; the centroids are changed, the labels and the inertia fit them."""
        rows = self._rows
        rows.upload(self._centroids)
        self.begun = True
        done, stopped, batch = 0, RUNNING, 2
        saved = time.monotonic()
        while done < maxiter and stopped == RUNNING:
            began, before = time.monotonic(), done
            for number in range(done, min(done + batch, maxiter)):
                self._start[number % 2]()
            stopped, done, changed = self._state()
            if stopped == _EMPTIED:
                stopped = self._relocate(done, bool(changed))
                done += 1
            now = time.monotonic()
            wanted = math.ceil(_BATCH_SECONDS * (done - before) / (now - began))
            batch = max(1, min(wanted, 2 * batch, _LONGEST_BATCH))
            if now - saved > _CHECKPOINT_SECONDS and stopped == RUNNING:
                self.saved, self.saved_at, saved = self._fetch(done), done, now
        if stopped != _REPEATED:
            rows.set_state(RUNNING, done, 1)
            rows.label(done % 2 == 1)
        inertia = rows.inertia(done % 2 == 1)
        self._centroids[...] = self._fetch(done)
        return Run(inertia, done, stopped != RUNNING)

    def _state(self) -> tuple[int, int, int]:
        state = self._rows.download("state", (STATE,), np.int32)
        return int(state[_STOPPED]), int(state[_ITERATIONS]), int(state[CHANGED])

    def _fetch(self, done: int) -> np.ndarray:
        rows = self._rows
        name = "means" if done % 2 else "centroids"
        return rows.download(name, (rows.k, rows.d), rows.dtype)

    def _relocate(self, done: int, changed: bool) -> int:
        """End an iteration in which a cluster was empty; why the loop stops, if it does."""
        rows = self._rows
        old = self._fetch(done)
        new, moved = means(_Emptied(rows, done % 2 == 1), old)
        shift = float(((new.astype(np.float64) - old) ** 2).sum())
        stopped = RUNNING
        if self._tolerance >= 0:
            if not changed and not moved:
                stopped = _REPEATED  # the labels fit the centroids
            elif not changed or shift <= self._tolerance:
                stopped = _CONVERGED
        rows.put(new, done % 2 == 0)  # as those of the next iteration
        rows.set_state(stopped, done + 1, 0)
        return stopped
