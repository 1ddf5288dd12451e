"""Initial centroids, by the random numbers that scikit-learn draws."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from hetero.ops.kmeans.operands import PLUS_PLUS, checked_centroids

__all__ = [
    "PLUS_PLUS",
    "Seeding",
    "by_callable",
    "on_host",
    "plus_plus",
    "trials",
    "weighted_choice",
]


class Seeding(Protocol):
    """Squared distances of all rows from the nearest seed so far, where the rows are."""

    def first(self, index: int) -> float:
        """Begin with a row as the only seed; gives the potential, the weighted sum."""

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """The rows at which the running sum of the potential reaches the values."""

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """The potential with each of these rows as one more seed."""

    def take(self, which: int) -> None:
        """Add one of the rows whose potentials were asked for last."""


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


def weighted_choice(
    n: int, weights: np.ndarray | None, random: np.random.RandomState, count: int | None = None
) -> Any:
    """Rows drawn by their weights, without repetition; one row where no number is given."""
    if weights is None:
        shares = np.full(n, 1.0 / n)
    else:
        shares = weights / weights.sum()
    if count is None:
        return random.choice(n, p=shares)
    return random.choice(n, size=count, replace=False, p=shares)


def by_callable(how: Any, X: Any, k: int, random: np.random.RandomState) -> np.ndarray:
    """What a callable of the user's makes of rows less their mean."""
    made = np.array(how(X, k, random_state=random), X.dtype, order="C")
    return checked_centroids(made, (k, X.shape[1]))


def on_host(
    X: Any,
    weights: np.ndarray | None,
    how: Any,
    k: int,
    random: np.random.RandomState,
    seeding: Any,
) -> np.ndarray:
    """Initial centroids of rows on the host, centred as scikit-learn centres them.

    Parameters
    ----------
    X : array or sparse matrix
    weights : array or None
    how : "k-means++", "random" or callable
    k : int
    random : numpy.random.RandomState
    seeding : callable
        Makes the `Seeding`.
    """
    n = X.shape[0]
    if callable(how):
        return by_callable(how, X, k, random)
    if how == PLUS_PLUS:
        rows = plus_plus(seeding(), weighted_choice(n, weights, random), k, random)
    else:
        rows = weighted_choice(n, weights, random, k)
    found = X[rows]
    return np.array(found.toarray() if hasattr(found, "toarray") else found, X.dtype, order="C")
