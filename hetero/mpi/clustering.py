"""k-means of rows that lie on the ranks: labels and sums by each, centroids by all alike."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from hetero.arrays import Spec
from hetero.mpi import checkpoints, sharing
from hetero.mpi.ranks import Ranks, ranks_of
from hetero.ops.kmeans import FEW, operands, rows_in_parts


def kmeans(
    X_rows: Any,
    n_clusters: int,
    *,
    init: Any = "k-means++",
    n_init: int | str = 1,
    max_iter: int = 300,
    tol: float = 1e-4,
    label_tol: float = 0.0,
    random_state: Any = None,
    sample_weight: Any = None,
    comm: Any = None,
    device: str | None = None,
    method: str | None = None,
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Cluster rows that lie on the ranks, as `hetero.kmeans`; a collective call.

    Parameters
    ----------
    X_rows : (own rows, d) array
        On the host; a rank may have none.
    n_clusters, n_init, max_iter, tol, label_tol
        See `hetero.kmeans`.
    init : {"k-means++", "random"} or (k, d) array
        As of `hetero.kmeans`, of 131 072 rows drawn at random where there are more.
    random_state : int, numpy.random.RandomState or None
        That of rank 0 counts.
    sample_weight : (own rows,) array or number, optional
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.
    device, method : str, optional
        Of `hetero.kmeans`, for this rank's rows; "cuda" is one GPU of the node, by turns. Name the
        method where runs must repeat bit for bit.

    Returns
    -------
    centroids : (k, d) ndarray
        The same on all ranks; float32 if the rows are, else float64.
    labels : (own rows,) ndarray of int32
    info : dict
        inertia, iterations, converged; this rank's device.

    Raises
    ------
    ValueError
        On every rank, with the same text, where arguments of one are wrong or ranks disagree.

    Examples
    --------
    >>> centroids, labels, info = hetero.mpi.kmeans(X[begin:end], 8)  # doctest: +SKIP
    """
    ranks, failed, facts = ranks_of(comm), None, {}
    options = {"init": init, "n_init": n_init, "max_iter": max_iter, "tol": tol}
    options["label_tol"] = label_tol
    try:
        X = np.asarray(X_rows)
        if X.ndim != 2:
            raise ValueError(f"X_rows must have 2 dimensions, got shape {X.shape}")
        X = operands.on_host(X, operands.float_dtype(X.dtype))
        operands.check_finite(X)
        facts = {name: repr(value) for name, value in (*options.items(), ("k", n_clusters))}
        facts |= {"columns": X.shape[1], "dtype": X.dtype.name}
        if operands.checked_init(init) == operands.GIVEN:
            options["init"] = init = operands.on_host(init, X.dtype)
            operands.checked_centroids(init, (n_clusters, X.shape[1]))
            facts["init"] = f"{init.shape} {checkpoints.of_vector(init.reshape(-1), 0):016x}"
        operands.weights_operand(sample_weight, len(X))
        weights = np.broadcast_to(1.0 if sample_weight is None else sample_weight, len(X))
        weights = operands.on_host(weights, X.dtype)
        operands.check_finite(weights, "sample_weight")
        call, alone = ("kmeans", X, n_clusters), {"init": Spec((n_clusters, X.shape[1]))}
        placed = sharing.placed(ranks, device, method, *call, **alone, max_iter=0)
        random = operands.checked_random(random_state)
    except Exception as error:
        failed = error
    ranks.agree(failed, **facts)
    rows = Rows(ranks, X, weights, placed)
    asked = operands.problem(Spec((rows.n, X.shape[1]), X.dtype), n_clusters, **options)
    operands.checked_weights(np.array([ranks.most(weights.max(initial=0.0))]), 1, X.dtype)
    ended, centroids, labels = rows.fit(asked, init, tol, label_tol, random)
    distinct = np.count_nonzero(ranks.added(np.bincount(labels, minlength=n_clusters)))
    if distinct < n_clusters:
        warnings.warn(FEW.format(distinct, n_clusters), RuntimeWarning, stacklevel=2)
    return centroids, labels, ended._asdict() | {"device": placed["device"]}


class Rows(rows_in_parts.RowsInParts):
    """The rows of all ranks; ``placed`` has the device and the method of this one's."""

    def __init__(self, ranks: Ranks, X: np.ndarray, weights: np.ndarray, placed: Any) -> None:
        self._ranks, self._X, self._weights, self._placed = ranks, X, weights, placed
        self._starts = ranks.starts(len(X))
        self.n = int(self._starts[-1])

    def mean_variance(self) -> float:
        mean = self._ranks.added(self._X.sum(axis=0, dtype=np.float64)) / self.n
        return float(self._ranks.added(np.square(self._X - mean).sum(axis=0)).mean() / self.n)

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        ranks, centroids = self._ranks, np.empty((k, self._X.shape[1]), self._X.dtype)
        own = chosen = rows_in_parts.sample(self.n, k, random)
        if isinstance(chosen, np.ndarray):  # rank 0's
            chosen = np.resize(chosen, int(ranks.gather(len(chosen))[0, 0]))
            ranks.comm.Bcast(chosen)
            begin, end = self._starts[ranks.rank : ranks.rank + 2]
            own = chosen[(begin <= chosen) & (chosen < end)] - begin
        starts = ranks.starts(len(self._X[own]))
        sample = [ranks.joined(starts, array[own], 0) for array in (self._X, self._weights)]
        if ranks.rank == 0:
            centroids[...] = rows_in_parts.seeds(*sample, how, k, random)
        ranks.comm.Bcast(centroids)
        return centroids

    def restart(self, k: int) -> None:
        self.labels: Any = None

    def assign(self, centroids: np.ndarray) -> int:
        given = self._X, self._weights, self.labels, centroids, self._placed
        self.labels, (sums, totals, changed) = rows_in_parts.step(*given)
        self._sums = self._ranks.added(np.concatenate([sums.reshape(-1), totals, [changed]]))
        return int(self._sums[-1])

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums, totals, _ = np.split(self._sums, [centroids.size, -1])
        return sums.reshape(centroids.shape), totals

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        own = rows_in_parts.distances(self._X, self.labels, centroids)
        return self._ranks.joined(self._starts, own)

    def inertia(self, centroids: np.ndarray) -> float:
        weighted = rows_in_parts.distances(self._X, self.labels, centroids) * self._weights
        return float(self._ranks.total(weighted.sum(dtype=np.float64))[0])

    def element(self, index: int) -> tuple[np.ndarray, float, int]:
        mine, own = np.zeros(self._X.shape[1] + 2), index - self._starts[self._ranks.rank]
        if 0 <= own < len(self._X):
            mine[:] = *self._X[own], self._weights[own], self.labels[own]
        *row, weight, label = self._ranks.added(mine)
        return np.array(row), weight, int(label)
