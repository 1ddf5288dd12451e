"""What k-means asks of the rows of X, wherever they are: the backends' interface, and Lloyd's loop.

- `NumpyBackend` (`cpu.py`): on the CPU, dense or sparse, by NumPy's products
- `CompiledBackend` (`compiled_cpu.py`): on the CPU, packed for compiled loops; its subclass
  `BoundedBackend` skips rows by bounds
- `DeviceBackend` (`device.py`): on one device, which iterates by itself
- `RangeBackend` (`ranges.py`): on the host, from where they go to several devices, or through
  those that have no room, in ranges

All but `DeviceBackend` are a `SteppedBackend`: they label rows and add them up, and the host makes
centroids of the sums. What their methods do is written here alone.
"""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import numpy as np

from hetero.ops.kmeans.operands import PLUS_PLUS, checked_centroids

_FAR = 1.0  # of the variance; rows whose mean is farther from zero are centred
_ROUNDED = 16  # times epsilon and the row's largest number: a row nearer to its mean lies on it


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


class Seeding(abc.ABC):
    """k-means++ of a backend: squared distances of all rows from the nearest seed so far."""

    @abc.abstractmethod
    def first(self, index: int) -> float:
        """Begin with a row as the only seed; gives the potential, the weighted sum."""

    @abc.abstractmethod
    def candidates(self, values: np.ndarray) -> np.ndarray:
        """The rows at which the running sum of the potential reaches the values."""

    @abc.abstractmethod
    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """The potential with each of these rows as one more seed."""

    @abc.abstractmethod
    def take(self, which: int) -> None:
        """Add a row as a seed: by its place among those given to `potentials` last."""


class Backend(abc.ABC):
    """The rows of X where they are computed with.

    Centroids are (k, d) arrays on the host, less the mean that the backend subtracts of the rows.

    Attributes
    ----------
    n : int
        Rows.
    mean : (d,) array or 0.0
        What is subtracted of each row, so that distances are accurate.
    most_changed : int
        That many labels, or fewer, change in the last iteration of a start.
    measured : bool
        Whether the inertia of rows that only get labels is asked for.
    """

    most_changed = 0
    measured = True
    n: int
    mean: np.ndarray | float

    @abc.abstractmethod
    def mean_variance(self) -> float:
        """The mean over the columns of their variances."""

    @abc.abstractmethod
    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, Any]:
        """Iterate from these centroids, which are changed; scikit-learn's rules to stop.

        Parameters
        ----------
        centroids : (k, d) array
        maxiter : int
            With 0 rows get labels, and nothing else is done.
        tol : float
            Of the sum of squared shifts.
        exactly : bool
            Make ``maxiter`` iterations whatever happens.

        Returns
        -------
        run : Run
        labels : (n,) array of int32
            On the host, or where `hetero.ops.kmeans.fit.Fit.labels` says.

        Raises
        ------
        DeviceError
            With the centroids that were saved last, and the number of iterations.
        """

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """Initial centroids by "k-means++", "random" or a callable, by scikit-learn's numbers."""
        if callable(how):
            X, mean = self.centred()
            made = np.array(how(X, k, random_state=random), X.dtype, order="C")
            return checked_centroids(made, (k, X.shape[1])) + (mean - self.mean)
        weights = self.host_weights()
        if how == PLUS_PLUS:
            first = _weighted_choice(self.n, weights, random)
            return self.rows(plus_plus(self.seeding(), first, k, random))
        return self.rows(_weighted_choice(self.n, weights, random, k))

    @abc.abstractmethod
    def centred(self) -> tuple[Any, np.ndarray | float]:
        """The rows on the host less their columns' means, and these means."""

    @abc.abstractmethod
    def host_weights(self) -> np.ndarray | None:
        """The rows' weights on the host; None where there are none."""

    @abc.abstractmethod
    def seeding(self) -> Seeding:
        """Distances for k-means++."""

    @abc.abstractmethod
    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Some rows on the host, less `mean`."""


class SteppedBackend(Backend):
    """A backend that iterates step by step, as the host says.

    Attributes
    ----------
    labels : (n,) array of int32
        Of the iteration that was begun last.
    """

    labels: np.ndarray

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        self.restart(len(centroids))
        iterations, settled, converged = 0, False, False
        while iterations < maxiter and not converged:
            iterations += 1
            changed = self.assign(centroids)
            settled = not changed
            new, moved = means(self, centroids)
            shifts = new - centroids
            centroids[...] = new
            few = changed <= self.most_changed
            converged = not exactly and (few or float(np.square(shifts).sum()) <= tol)
            settled = settled and not moved
        if exactly or not settled:
            self.assign(centroids)  # so that labels fit the centroids
        return Run(self.inertia(centroids), iterations, converged), self.labels

    @abc.abstractmethod
    def restart(self, k: int) -> None:
        """Begin with k clusters: no row has a label."""

    @abc.abstractmethod
    def assign(self, centroids: np.ndarray) -> int:
        """Label each row with its nearest centroid, of equally near ones the first.

        Returns how many labels changed; at first every one does.
        """

    @abc.abstractmethod
    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weighted sums of the rows with each label, (k, d), and of their weights, (k,).

        Both are of float64, and the caller's to change.
        """

    @abc.abstractmethod
    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """Squared distances of the rows from the centroids of their labels."""

    @abc.abstractmethod
    def inertia(self, centroids: np.ndarray) -> float:
        """The weighted sum of these."""

    def element(self, index: int) -> tuple[np.ndarray, float, int]:
        """One row less `mean`, its weight and its label."""
        return self.row(index), self.weight(index), int(self.labels[index])

    def row(self, index: int) -> np.ndarray:
        """One row, less `mean`."""
        return self.rows(np.array([index]))[0]

    def weight(self, index: int) -> float:
        """Its weight."""
        weights = self.host_weights()
        return 1.0 if weights is None else float(weights[index])


def most_changed(label_tol: float, n: int) -> int:
    """The largest number of n labels whose share is at most ``label_tol``, but for rounding."""
    return math.floor(min(label_tol, 1.0) * n * (1.0 + 1e-12))


# -- An iteration's centroids ----------------------------------------------------------------------


def means(steps: Any, centroids: np.ndarray) -> tuple[np.ndarray, bool]:
    """The weighted means of the rows with each label, and whether rows without their label count.

    An empty cluster gets the row farthest from its centroid, the next one the next such row, as in
    scikit-learn. Where all rows lie on their centroids, or a cluster has no weight even then, it
    gets the mean of the heaviest cluster.

    ``steps`` has ``sums``, ``distances`` and ``element`` of `SteppedBackend`.
    """
    sums, totals = steps.sums(centroids)
    empty = np.flatnonzero(totals == 0)
    moved = bool(empty.size) and _move_far_rows(steps, centroids, sums, totals, empty)
    used = totals > 0
    if used.all():
        sums /= totals[:, None]
    else:
        heaviest = int(totals.argmax())
        sums[used] /= totals[used, None]
        sums[~used] = sums[heaviest]
    return sums.astype(centroids.dtype), moved


def _move_far_rows(
    steps: Any, centroids: np.ndarray, sums: np.ndarray, totals: np.ndarray, empty: np.ndarray
) -> bool:
    """Give empty clusters the rows farthest from their centroids; sums and totals are changed.

    Returns whether a row was moved. Those that lie on their centroids, but for rounding, are not:
    the same rows would be moved in each iteration.
    """
    distances, any_moved = steps.distances(centroids), False
    rounded = _ROUNDED * float(np.finfo(centroids.dtype).eps)
    farthest = np.argpartition(distances, -empty.size)[: -empty.size - 1 : -1]
    for cluster, index in zip(empty, farthest, strict=True):
        row, weight, old = steps.element(index)
        row = row.astype(np.float64)
        if not np.abs(row - centroids[old]).max() > rounded * np.abs(row).max():
            continue
        any_moved = True
        moved = row * weight
        sums[old] -= moved
        sums[cluster] = moved
        totals[cluster] = weight
        totals[old] -= weight
    return any_moved


# -- Initial centroids -----------------------------------------------------------------------------


def plus_plus(seeding: Seeding, first: int, k: int, random: np.random.RandomState) -> np.ndarray:
    """The rows that k-means++ chooses, of several candidates the best each time.

    D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    tried = trials(k)
    chosen = np.full(k, first)
    potential = seeding.first(first)
    for number in range(1, k):
        candidates = seeding.candidates(random.uniform(size=tried) * potential)
        potentials = seeding.potentials(candidates)
        best = int(np.argmin(potentials))
        seeding.take(best)
        potential, chosen[number] = potentials[best], candidates[best]
    return chosen


def trials(k: int) -> int:
    """Candidates for each of k seeds."""
    return 2 + int(math.log(k))


def _weighted_choice(
    n: int, weights: np.ndarray | None, random: np.random.RandomState, count: int | None = None
) -> Any:
    """Rows drawn by their weights, without repetition; one row where no number is given."""
    shares = np.full(n, 1.0 / n) if weights is None else weights / weights.sum()
    if count is None:
        return random.choice(n, p=shares)
    return random.choice(n, size=count, replace=False, p=shares)


# -- What devices subtract of the rows -------------------------------------------------------------


def subtracted(means: np.ndarray, variance: float, dtype: np.dtype) -> np.ndarray:
    """What is subtracted of rows on devices: their columns' means, or zeros where these are near
    enough to zero."""
    with np.errstate(over="ignore"):  # infinite is far
        is_far = np.mean(means * means) > _FAR * variance
    if is_far:
        return means.astype(dtype)
    return np.zeros(len(means), dtype)


def subtracted_for(given: np.ndarray) -> np.ndarray:
    """What is subtracted of rows that only get labels: see `hetero.ops.kmeans.fit.Fit.given`."""
    variance = float(given.var(axis=0, dtype=np.float64).mean())
    return subtracted(given.mean(axis=0, dtype=np.float64), variance, given.dtype)
