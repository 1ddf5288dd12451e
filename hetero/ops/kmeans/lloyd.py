"""Lloyd's iterations: what is the same wherever the rows are."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hetero.ops.kmeans.fit import Run

LEFT = 1e-3
"""Sums that are kept are made anew where a cluster's weight falls below this part of what it was:
of rows that left, rounding in the size of their weight stays."""

_ROUNDED = 16  # times epsilon and the row's largest number: a row nearer to its mean lies on it


class Steps(Protocol):
    """What an iteration takes, of rows with labels; centroids are on the host."""

    labels: np.ndarray

    def assign(self, centroids: np.ndarray) -> bool:
        """Label each row with its nearest centroid, of equally near ones the first.

        Tells whether a label changed; at first every one does.
        """

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weighted sums of the rows with each label, (k, d), and of their weights, (k,).

        Both are of float64, and the caller's to change.
        """

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """Squared distances of the rows from their centroids."""

    def row(self, index: int) -> np.ndarray:
        """A row."""

    def weight(self, index: int) -> float:
        """Its weight."""

    def inertia(self, centroids: np.ndarray) -> float:
        """The weighted sum of squared distances."""


def lloyd(steps: Steps, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool) -> Run:
    """Iterate from these centroids, which are changed; scikit-learn's rules to stop.

    Parameters
    ----------
    steps : Steps
    centroids : (k, d) array
    maxiter : int
        With 0 rows get labels, and nothing else is done.
    tol : float
        Of the sum of squared shifts.
    exactly : bool
        Make ``maxiter`` iterations whatever happens.
    """
    iterations, settled, converged = 0, False, False
    while iterations < maxiter and not converged:
        iterations += 1
        settled = not steps.assign(centroids)
        new, moved = means(steps, centroids)
        shifts = new - centroids
        centroids[...] = new
        converged = not exactly and (settled or float(np.square(shifts).sum()) <= tol)
        settled = settled and not moved
    if exactly or not settled:
        steps.assign(centroids)  # so that labels fit the centroids
    return Run(steps.inertia(centroids), iterations, converged)


def means(steps: Steps, centroids: np.ndarray) -> tuple[np.ndarray, bool]:
    """The weighted means of the rows with each label, and whether rows without their label count.

    An empty cluster gets the row farthest from its centroid, the next one the next such row, as in
    scikit-learn. Where all rows lie on their centroids, or a cluster has no weight even then, it
    gets the mean of the heaviest cluster.
    """
    sums, totals = steps.sums(centroids)
    empty = np.flatnonzero(totals == 0)
    moved = bool(empty.size) and move_far_rows(steps, centroids, sums, totals, empty)
    used = totals > 0
    if used.all():
        sums /= totals[:, None]
    else:
        heaviest = int(totals.argmax())
        sums[used] /= totals[used, None]
        sums[~used] = sums[heaviest]
    return sums.astype(centroids.dtype), moved


def move_far_rows(
    steps: Any, centroids: np.ndarray, sums: np.ndarray, totals: np.ndarray, empty: np.ndarray
) -> bool:
    """Give empty clusters the rows farthest from their centroids; sums and totals are changed.

    Gives whether a row was moved. Those that lie on their centroids, but for rounding, are not: the
    same rows would be moved in each iteration.

    ``steps`` has ``distances``, ``labels``, ``row`` and ``weight`` of `Steps`.
    """
    distances, labels, any_moved = steps.distances(centroids), steps.labels, False
    rounded = _ROUNDED * float(np.finfo(centroids.dtype).eps)
    farthest = np.argpartition(distances, -empty.size)[: -empty.size - 1 : -1]
    for cluster, index in zip(empty, farthest, strict=True):
        row = steps.row(index).astype(np.float64)
        weight, old = steps.weight(index), labels[index]
        if not np.abs(row - centroids[old]).max() > rounded * np.abs(row).max():
            continue
        any_moved = True
        moved = row * weight
        sums[old] -= moved
        sums[cluster] = moved
        totals[cluster] = weight
        totals[old] -= weight
    return any_moved
