"""A fit: several starts, of which the best one counts, on whatever backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.errors import DeviceError
from hetero.ops.kmeans.backend import Backend, Run, most_changed


class Outcome(NamedTuple):
    """How a fit ended: the best of its starts.

    Labels are an array on the host, or the one of `Fit.labels`.
    """

    run: Run
    labels: Any


class DeviceLabels(NamedTuple):
    """An array on a device that gets the labels, and the buffer that a launch takes for it."""

    array: Any
    buffer: Any


class Progress:
    """State of a fit that can be resumed.

    Attributes
    ----------
    start : int
        Number of the start that is on.
    centroids : array or None
        From which it goes on.
    iterations : int
        That it has made.
    best : (Run, centroids, labels) or None
    """

    def __init__(self) -> None:
        self.start = 0
        self.centroids: np.ndarray | None = None
        self.iterations = 0
        self.best: tuple[Run, np.ndarray, Any] | None = None


class Fit(NamedTuple):
    """What a method's ``run`` gets as options.

    Attributes
    ----------
    maxiter : int
        Of each start.
    tol : float
        Relative to the mean variance.
    init : str, array or callable
        An array is on the host.
    starts : int
    random : numpy.random.RandomState
    exactly : bool
        Make ``maxiter`` iterations of each start, whatever happens.
    labels : DeviceLabels or None
        Where a device is to leave the labels; None: on the host.
    progress : Progress
    matrix, weights : sparse matrix, array or None
        X and its weights, where they are none of the problem's inputs.
    host : array or None
        X, where it lies on the host.
    report : callable or None
        Gets a line about each start.
    label_tol : float
        Share of the labels.
    """

    maxiter: int
    tol: float
    init: Any
    starts: int = 1
    random: Any = None
    exactly: bool = False
    labels: DeviceLabels | None = None
    progress: Progress | None = None
    matrix: Any = None
    weights: np.ndarray | None = None
    host: np.ndarray | None = None
    report: Callable[[str], None] | None = None
    label_tol: float = 0.0

    @property
    def given(self) -> np.ndarray | None:
        """The centroids for which rows only get labels; None in a fit.

        Rows are then taken less the centroids' mean, not their own: a row's label must not depend
        on the other rows.
        """
        return self.init if self.maxiter == 0 else None


def fit(rows: Backend, asked: Fit, k: int) -> tuple[Outcome, np.ndarray]:
    """The outcome, and the centroids in the coordinates of X."""
    now = asked.progress or Progress()
    rows.most_changed = most_changed(asked.label_tol, rows.n)
    stops_early = asked.tol > 0.0 and asked.maxiter > 0 and not asked.exactly
    tol = asked.tol * rows.mean_variance() if stops_early else 0.0
    while now.start < asked.starts:
        if now.centroids is None:
            now.centroids = _initial(rows, asked, k)
        centroids = np.ascontiguousarray(now.centroids - rows.mean)
        if not tol <= float(np.finfo(centroids.dtype).max):
            tol = np.inf  # squares overflow, also those of shifts: it ends at once, as elsewhere
        left = max(asked.maxiter - now.iterations, min(asked.maxiter, 1))
        try:
            run, labels = rows.lloyd(centroids, left, tol, asked.exactly)
        except DeviceError as error:
            if error.x is not None:
                now.centroids, now.iterations = error.x, now.iterations + error.iterations
            raise
        run = run._replace(iterations=run.iterations + now.iterations)
        if asked.report is not None:
            ended = "converged" if run.converged else "stopped"
            asked.report(
                f"start {now.start}: {ended} after {run.iterations} iterations, "
                f"inertia {run.inertia}"
            )
        if now.best is None or (
            run.inertia < now.best[0].inertia and not _same(labels, now.best[2], k)
        ):
            now.best = run, centroids + rows.mean, labels
        now.start, now.centroids, now.iterations = now.start + 1, None, 0
    assert now.best is not None
    run, centroids, labels = now.best
    return Outcome(run, labels), centroids


def _initial(rows: Backend, asked: Fit, k: int) -> np.ndarray:
    """The centroids that a start begins with."""
    if isinstance(asked.init, np.ndarray):
        return asked.init.copy()
    return rows.seeds(asked.init, k, asked.random) + rows.mean


def _same(labels: np.ndarray, others: np.ndarray, k: int) -> bool:
    """Whether two clusterings differ by the clusters' numbers alone."""
    number = np.full(k, -1, np.int32)
    number[labels] = others  # of each cluster: that of some row of it in the other clustering
    return bool(np.array_equal(number[labels], others))
