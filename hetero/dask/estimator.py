"""k-means of Dask arrays as an estimator."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from hetero.dask.clustering import by_rows, kmeans, labelled
from hetero.ops.kmeans import estimator
from hetero.ops.kmeans.operands import float_dtype

_UNUSED = "verbose", "copy_x", "algorithm"


class KMeans(estimator.KMeans):
    """`hetero.KMeans` of Dask arrays, with the same parameters and attributes.

    `fit` and `score` compute at once, see `hetero.dask.kmeans`; `predict` and `transform` give
    Dask arrays that are not computed yet.

    Examples
    --------
    >>> import dask.array as da, hetero.dask, numpy as np
    >>> X = da.from_array(np.array([[1.0], [2.0], [10.0], [11.0]]), chunks=3)
    >>> hetero.dask.KMeans(2, init=np.array([[0.0], [9.0]])).fit(X).predict(X).compute()
    array([0, 0, 1, 1], dtype=int32)
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Compute the centroids of (n, d) rows; gives the estimator."""
        options = {k: value for k, value in self.get_params(False).items() if k not in _UNUSED}
        fitted = kmeans(X, sample_weight=sample_weight, **options)
        self.cluster_centers_, self.labels_, self.info_ = fitted
        self.inertia_, self.n_iter_ = self.info_["inertia"], self.info_["iterations"]
        self._n_features_out, self.n_features_in_ = self.cluster_centers_.shape
        return self

    def predict(self, X: Any) -> da.Array:
        """The number of the nearest centroid of each row, (n,) of int32."""
        X, centroids = self._checked(X)
        options = {"centroids": centroids.copy(), "device": self.device, "method": self.method}
        return by_rows(labelled, np.int32, X, "ij", **options)

    def transform(self, X: Any) -> da.Array:
        """The distances of the rows from all centroids, (n, n_clusters)."""
        X, centroids = self._checked(X)
        meta = np.empty((0, 0), np.promote_types(float_dtype(X.dtype), centroids.dtype))
        return X.map_blocks(self._distances, chunks=(X.chunks[0], (len(centroids),)), meta=meta)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Less the weighted sum of the rows' squared distances from the nearest centroid."""
        X, centroids = self._checked(X)
        options = {"init": centroids, "max_iter": 0, "sample_weight": sample_weight}
        return -kmeans(X, len(centroids), **options)[2]["inertia"]

    def _checked(self, X: Any) -> tuple[da.Array, np.ndarray]:
        """Rows, with all columns in each block, and the centroids."""
        estimator.check_is_fitted(self)
        X = da.asanyarray(X)
        if X.ndim != 2:
            raise ValueError(f"X must have 2 dimensions, got shape {X.shape}")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} features, expected {self.n_features_in_}")
        return X.rechunk({1: -1}), self.cluster_centers_
