"""A fit: several starts, of which the best one counts, wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero.errors import DeviceError


class Run(NamedTuple):
    """How one start ended.

    Attributes
    ----------
    inertia : float
        Sum of the weighted squared distances of all rows from their centroids.
    iterations : int
    converged : bool
        Whether it stopped by the tolerance, or because no label changed.
    """

    inertia: float
    iterations: int
    converged: bool


class Outcome(NamedTuple):
    """How a fit ended: the best of its starts.

    Labels are None where they were written to the caller's array.
    """

    run: Run
    labels: np.ndarray | None


class Rows(Protocol):
    """The rows of X where they are computed with.

    Centroids are (k, d) arrays on the host, in coordinates of the rows' own.
    """

    mean: np.ndarray | float

    def mean_variance(self) -> float:
        """The mean over the columns of their variances."""

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """Initial centroids by "k-means++", "random" or a callable."""

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray | None]:
        """Iterations from these centroids, which are changed; the labels, as in `Outcome`.

        ``tol`` is that of the sum of squared shifts. With ``exactly`` all iterations are made.
        A DeviceError brings the centroids that were saved last, and the number of iterations.
        """


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
        self.best: tuple[Run, np.ndarray, np.ndarray | None] | None = None


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
    labels : Any
        Where a device is to leave the labels; None: on the host.
    progress : Progress
    matrix, weights : sparse matrix, array or None
        X and its weights, where they are none of the problem's inputs.
    host : array or None
        X, where it lies on the host.
    report : callable or None
        Is told of each start.
    """

    maxiter: int
    tol: float
    init: Any
    starts: int = 1
    random: Any = None
    exactly: bool = False
    labels: Any = None
    progress: Progress | None = None
    matrix: Any = None
    weights: np.ndarray | None = None
    host: np.ndarray | None = None
    report: Callable[[str], None] | None = None

    @property
    def given(self) -> np.ndarray | None:
        """The centroids for which rows only get labels; None in a fit.

        Rows are then taken less the centroids' mean, not their own: a row's label must not depend
        on the other rows.
        """
        return self.init if self.maxiter == 0 else None


def fit(rows: Rows, asked: Fit, k: int) -> tuple[Outcome, np.ndarray]:
    """The outcome, and the centroids in the coordinates of X."""
    now = asked.progress or Progress()
    tol = asked.tol * rows.mean_variance() if asked.tol and not asked.exactly else 0.0
    while now.start < asked.starts:
        if now.centroids is None:
            if isinstance(asked.init, np.ndarray):
                now.centroids = asked.init.copy()
            else:
                seeds = rows.seeds(asked.init, k, asked.random)
                now.centroids = seeds + rows.mean
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


def _same(labels: Any, others: Any, k: int) -> bool:
    """Whether two clusterings differ by the clusters' numbers alone."""
    found = np.full(k, -1, np.int32)
    found[labels] = others  # of each cluster the number that some row of it has there
    return bool(np.array_equal(found[labels], others))
