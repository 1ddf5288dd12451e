"""k-means of rows, wherever they are: a fit of several starts, Lloyd's loop, k-means++."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.ops.kmeans.operands import PLUS_PLUS, checked_centroids, trials

_ROUNDED = 16  # times epsilon and the row's largest number: a row nearer to its mean lies on it


class Stopped(enum.IntEnum):
    """Why iterations stopped, if they did: no label changed, by a tolerance, or (on a device) for
    a cluster without rows, until that has one."""

    RUNNING, REPEATED, CONVERGED, EMPTIED = range(4)


class Run(NamedTuple):
    """How one start ended."""

    inertia: float  # sum of the weighted squared distances of all rows from their centroids
    iterations: int
    converged: bool  # whether it stopped by a tolerance, or because no label changed


class Outcome(NamedTuple):
    """How a fit ended: the best of its starts, and its labels, which `Rows.labels` has."""

    run: Run
    labels: Any


class Fit(NamedTuple):
    """What a method's ``run`` gets as options."""

    maxiter: int  # of each start; with 0 rows get the labels of ``init``, and nothing else is done
    tol: float  # times the mean variance; below 0 ``maxiter`` iterations are made in any case
    init: Any  # "k-means++", "random", an array on the host or a callable
    starts: int = 1
    random: Any = None  # a numpy.random.RandomState
    labels: tuple[Any, Any] | None = None  # the array on a device that gets them, and its buffer
    matrix: Any = None  # a sparse X, and its weights, which are none of the problem's inputs
    weights: np.ndarray | None = None
    report: Callable[[str], None] | None = None  # gets a line about each start
    label_tol: float = 0.0  # share of the labels

    @property
    def given(self) -> np.ndarray | None:
        """The centroids for which rows only get labels; None in a fit.

        Rows are then taken less the centroids' mean, not their own: a row's label must not depend
        on the other rows.
        """
        return self.init if self.maxiter == 0 else None


class Rows:
    """The rows of X where they are computed with, and Lloyd's loop over them.

    There are ``n``; they are taken less ``mean``, so that distances are accurate, as are centroids,
    which are (k, d) arrays on the host. ``labels``, (n,) of int32, are those of the last
    assignment: on the host, or where `Fit.labels` says. A place has

    - ``mean_variance()``: the mean over the columns of their variances
    - ``host_weights()``: the rows' weights on the host; None where there are none
    - ``rows(indices)``: some rows on the host, less ``mean``
    - ``on_host()``: X on the host
    - ``restart(centroids)``: begins a start from these centroids: no row has a label
    - ``assign(centroids)``: labels each row with its nearest centroid, of equally near ones the
      first; gives how many labels changed
    - ``sums()``: the weighted sums of the rows with each label, (k, d), and of their weights, (k,),
      of float64
    - ``distances(centroids)``: squared distances of the rows from those of their labels
    - ``inertia(centroids)``: the weighted sum of these
    - ``seeding()``: the distances of all rows from the nearest seed so far; their weighted sum is
      the potential. ``first(index)`` of it begins with a row as the only seed, and gives the
      potential; ``draw(values)`` gives the rows at which the running sum of the potential reaches
      the values, and the potential with each of them as one more seed; ``take(which)`` takes one

    They are `NumpyRows` (`cpu.py`), on the CPU, dense or sparse; `CompiledRows`
    (`compiled_cpu.py`), packed for compiled loops; `DeviceRows` (`device.py`), on one device, which
    iterates by itself; `RangeRows` (`ranges.py`), on the host, from where they go to devices.
    """

    n: int
    mean: Any = 0.0
    labels: Any

    def centred(self) -> tuple[Any, Any]:
        """The rows on the host less their columns' means, and these means."""
        X = self.on_host()
        mean = X.mean(axis=0)
        return X - mean, mean

    def picked(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Some rows less `mean`, their weights and their labels."""
        weights = self.host_weights()
        weights = np.ones(len(indices)) if weights is None else weights[indices]
        return self.rows(indices), weights, self.labels[indices]

    def lloyd(self, centroids: np.ndarray, maxiter: int, tol: float, most: int = 0) -> Run:
        """Iterate from these centroids, which are changed; scikit-learn's rules to stop.

        Done when the squared shifts add up to at most ``tol``, or when at most ``most`` labels
        change. With a ``tol`` below 0 ``maxiter`` iterations are made whatever happens.
        """
        self.restart(centroids)
        stopped, done = Stopped.RUNNING, 0
        while done < maxiter and stopped == Stopped.RUNNING:
            stopped, done = self.iterate(centroids, done, maxiter, tol, most)
        if stopped != Stopped.REPEATED:
            self.label(centroids)
        return Run(self.inertia(centroids), done, stopped != Stopped.RUNNING)

    def iterate(
        self, centroids: np.ndarray, done: int, maxiter: int, tol: float, most: int
    ) -> tuple[Stopped, int]:
        """Make one iteration after the ``done`` ones, or several; whether it was the last one, and
        how many are done."""
        changed = self.assign(centroids)
        new, moved = means(self, centroids)
        shift = float(np.square(new - centroids).sum())
        centroids[...] = new
        return ending(changed, moved, shift, tol, most), done + 1

    def label(self, centroids: np.ndarray) -> None:
        """Let the labels fit the centroids."""
        self.assign(centroids)

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """Initial centroids by "k-means++", "random" or a callable, by scikit-learn's numbers."""
        if callable(how):
            X, mean = self.centred()
            made = np.array(how(X, k, random_state=random), X.dtype, order="C")
            return checked_centroids(made, (k, X.shape[1])) + (mean - self.mean)
        weights = self.host_weights()
        shares = np.full(self.n, 1.0 / self.n) if weights is None else weights / weights.sum()
        if how != PLUS_PLUS:
            return self.rows(random.choice(self.n, size=k, replace=False, p=shares))
        # Of several candidates for a seed the best each time.
        seeding, chosen = self.seeding(), np.full(k, random.choice(self.n, p=shares))
        potential = seeding.first(int(chosen[0]))
        for number in range(1, k):
            candidates, potentials = seeding.draw(random.uniform(size=trials(k)) * potential)
            best = int(np.argmin(potentials))
            seeding.take(best)
            potential, chosen[number] = potentials[best], candidates[best]
        return self.rows(chosen)


def fit(rows: Rows, asked: Fit, k: int) -> tuple[Outcome, np.ndarray]:
    """The outcome of a fit, and the centroids in the coordinates of X."""
    most, tol = most_changed(asked.label_tol, rows.n), min(asked.tol, 0.0)
    if asked.tol > 0.0 and asked.maxiter > 0:
        tol = asked.tol * rows.mean_variance()
    best: tuple[Outcome, np.ndarray] | None = None
    for start in range(asked.starts):
        given = isinstance(asked.init, np.ndarray)
        first = asked.init if given else rows.seeds(asked.init, k, asked.random) + rows.mean
        centroids = np.array(first - rows.mean, order="C")
        if not tol <= float(np.finfo(centroids.dtype).max):
            tol = np.inf  # squares overflow, also those of shifts: it ends at once, as elsewhere
        run = rows.lloyd(centroids, asked.maxiter, tol, most)
        labels = rows.labels
        if asked.report is not None:
            ended = "converged" if run.converged else "stopped"
            asked.report(
                f"start {start}: {ended} after {run.iterations} iterations, inertia {run.inertia}"
            )
        if best is None or (
            run.inertia < best[0].run.inertia and not _same(labels, best[0].labels, k)
        ):
            best = Outcome(run, labels), centroids + rows.mean
    assert best is not None
    return best


def most_changed(label_tol: float, n: int) -> int:
    """The largest number of n labels whose share is at most ``label_tol``, but for rounding."""
    return math.floor(min(label_tol, 1.0) * n * (1.0 + 1e-12))


def _same(labels: Any, others: Any, k: int) -> bool:
    """Whether two clusterings differ by the clusters' numbers alone."""
    labels, others = np.asarray(labels), np.asarray(others)
    number = np.full(k, -1, np.int32)
    number[labels] = others  # of each cluster: that of some row of it in the other clustering
    return bool(np.array_equal(number[labels], others))


def ending(changed: int, moved: bool, shift: float, tol: float, most: int) -> Stopped:
    """Whether an iteration was the last one: by the labels that changed, whether rows were moved to
    other clusters, and the sum of the centroids' squared shifts."""
    if tol < 0.0:
        return Stopped.RUNNING
    if not changed and not moved:
        return Stopped.REPEATED  # the labels fit the centroids
    return Stopped.CONVERGED if changed <= most or shift <= tol else Stopped.RUNNING


def means(rows: Rows, centroids: np.ndarray) -> tuple[np.ndarray, bool]:
    """The weighted means of the rows with each label, and whether rows without their label count.

    An empty cluster gets the row farthest from its centroid, the next one the next such row, as in
    scikit-learn. Rows that lie on their centroids, but for rounding, are not moved: the same ones
    would be in each iteration. Where all do, or a cluster has no weight even then, it gets the mean
    of the heaviest cluster.
    """
    (sums, totals), moved = rows.sums(), False
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        rounded = _ROUNDED * float(np.finfo(centroids.dtype).eps)
        farthest = np.argpartition(rows.distances(centroids), -empty.size)[: -empty.size - 1 : -1]
        for cluster, row, weight, old in zip(empty, *rows.picked(farthest), strict=True):
            row, weight = row.astype(np.float64), float(weight)
            if np.abs(row - centroids[old]).max() > rounded * np.abs(row).max():
                moved = True
                sums[old] -= row * weight
                sums[cluster] = row * weight
                totals[cluster] = weight
                totals[old] -= weight
    used = totals > 0
    if used.all():
        sums /= totals[:, None]
    else:
        heaviest = int(totals.argmax())
        sums[used] /= totals[used, None]
        sums[~used] = sums[heaviest]
    return sums.astype(centroids.dtype), moved
