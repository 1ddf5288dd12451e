"""k-means as an estimator: one of scikit-learn's where that is installed, and like them else."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np

from hetero.arrays import describe, is_device_array, library_of
from hetero.errors import outside
from hetero.imports import load
from hetero.ops.kmeans import at_once, cluster, operands
from hetero.ops.solvers.systems import like

_LEAST_ROWS = 64
_NUMBERS = 1 << 22  # of a block of `distances`: BLAS's threads wait for each other at its end
_NEAR = 1e-6  # of two squares: a square of their difference below that has too few digits
_FAR = 1e3  # of the centroids' variance; where their mean's square is larger, it is subtracted
_OPTIONS = "init", "n_init", "max_iter", "tol", "label_tol", "random_state", "device", "method"

try:
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,
        TransformerMixin,
    )
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.validation import check_is_fitted, validate_data

    class Base(  # type: ignore[misc]
        ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator
    ):
        """scikit-learn's classes, for pipelines, searches and clones."""

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.input_tags.sparse = True
            return tags

except (ImportError, RuntimeError):  # not installed, or not before Python's end began
    validate_data = None
    ConvergenceWarning = RuntimeWarning

    class Base:  # type: ignore[no-redef]
        """The part of scikit-learn's classes that needs nothing of it."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The parameters by name."""
            return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

        def set_params(self, **params: Any) -> Any:
            """Set parameters by name; gives the estimator."""
            for name, value in params.items():
                if name not in self.get_params():
                    raise ValueError(f"Invalid parameter {name!r} for estimator {self!r}.")
                setattr(self, name, value)
            return self

        def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
            """As ``fit(X).transform(X)``."""
            return self.fit(X, y, **options).transform(X)  # type: ignore[attr-defined]

        def __repr__(self) -> str:
            defaults = type(self)().get_params()
            given = [f"{n}={x!r}" for n, x in self.get_params().items() if x is not defaults[n]]
            return f"{type(self).__name__}({', '.join(given)})"

    def check_is_fitted(estimator: Any) -> None:
        if not hasattr(estimator, "n_features_in_"):
            name = type(estimator).__name__
            raise ValueError(f"This {name} instance is not fitted yet. Call 'fit' first.")


class KMeans(Base):
    """k-means clustering where it is fastest, in the place of `sklearn.cluster.KMeans`.

    With scikit-learn installed it is one of its estimators: it can be cloned, searched over and
    put into a Pipeline. Without, it has the same methods but for names of columns.

    Parameters
    ----------
    n_clusters, init, n_init, max_iter, tol, label_tol, random_state
        See `hetero.kmeans`.
    verbose : int
        Above 0: each start's iterations and inertia are printed.
    copy_x : bool
        For scikit-learn's sake: X is never changed.
    algorithm : {"lloyd", "elkan"}
        For scikit-learn's sake: the result is the same, and ``method`` says how it is computed.
    device, method : str, optional
        See `hetero.kmeans`.

    Attributes
    ----------
    cluster_centers_ : (n_clusters, d) array
    labels_ : (n,) array of int32
    inertia_ : float
    n_iter_ : int
    n_features_in_ : int
    info_ : dict
        As of `hetero.kmeans`: "device", "method", "plan" and others.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 0.0], [10.0, 2.0], [10.0, 4.0], [10.0, 0.0]])
    >>> fitted = hetero.KMeans(2, random_state=0).fit(X)
    >>> fitted.labels_
    array([1, 1, 1, 0, 0, 0], dtype=int32)
    >>> fitted.predict(np.array([[0.0, 0.0], [12.0, 3.0]]))
    array([1, 0], dtype=int32)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        label_tol: float = 0.0,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        device: str | None = None,
        method: str | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.label_tol = label_tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.device = device
        self.method = method

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled or copied: an array on a device that cannot be, from the host."""
        transfer, state = load("hetero.moving.transfer"), dict(vars(self))
        for name, value in state.items():
            if is_device_array(value) and not library_of(value).pickles:
                state[name] = transfer.to_host(value, describe(value))
        return state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Compute the centroids of the rows of X, an (n, d) array or sparse matrix.

        ``sample_weight`` is an (n,) array or a number, y is ignored. Returns the estimator; raises
        and warns as `hetero.kmeans`.
        """
        if self.algorithm not in ("lloyd", "elkan"):
            raise operands.refused("algorithm", "a str among {'lloyd', 'elkan'}", self.algorithm)
        X = self._validated(X, reset=True)
        if self.algorithm == "elkan" and self.n_clusters == 1:
            warnings.warn(
                "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead.",
                RuntimeWarning,
                stacklevel=outside(),
            )
        options = {name: getattr(self, name) for name in _OPTIONS}
        options |= {"sample_weight": sample_weight, "report": print if self.verbose else None}
        fitted = self._cluster(X, self.n_clusters, few=ConvergenceWarning, **options)
        self.cluster_centers_, self.labels_, self.info_ = fitted
        self.inertia_, self.n_iter_ = self.info_["inertia"], self.info_["iterations"]
        self._n_features_out, self.n_features_in_ = map(int, self.cluster_centers_.shape)
        return self

    _cluster = staticmethod(cluster)

    def predict(self, X: Any) -> Any:
        """The number of the nearest centroid of each row, (n,) of int32."""
        return self._assigned(X)[0]

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """As ``fit(X).labels_``."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def transform(self, X: Any) -> Any:
        """The distances of the rows from all centroids, (n, n_clusters).

        They are of float32 where both the rows and the centroids are, else of float64.
        """
        X = self._validated(X, reset=False)
        if is_device_array(X):
            return like(X, self._distances(operands.on_host(X, describe(X).dtype)))
        return self._distances(X)

    def _distances(self, X: Any) -> np.ndarray:
        centroids = self.cluster_centers_
        dtype = np.promote_types(operands.float_dtype(X.dtype), describe(centroids).dtype)
        return distances(X, operands.on_host(centroids, np.dtype(np.float64)), dtype)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Less the weighted sum of the rows' squared distances from the nearest centroid."""
        return -self._assigned(X, sample_weight, measured=True)[1]

    def _assigned(self, X: Any, weights: Any = None, measured: bool = False) -> tuple[Any, float]:
        """The rows' labels, and their inertia if it is to be measured."""
        # NaN and infinity are seen on the way, without a pass over X.
        X, centroids = self._validated(X, reset=False, finite=False), self.cluster_centers_
        quick = at_once(X, centroids, weights, measured, self.device, self.method)
        if quick is not None:
            return quick
        options = {"init": centroids, "n_init": 1, "max_iter": 0, "tol": 0.0}
        options |= {"sample_weight": weights, "device": self.device, "method": self.method}
        _, labels, info = cluster(X, int(centroids.shape[0]), few=None, **options)
        return labels, info["inertia"]

    def _validated(self, X: Any, *, reset: bool, finite: bool = True) -> Any:
        """Rows for the estimator to be fitted (``reset``), or once it is.

        scikit-learn looks at what is on the host where it is installed; names of columns are its
        own.
        """
        if not reset:
            check_is_fitted(self)
        if validate_data is not None and not is_device_array(X):
            how = {"accept_sparse": "csr", "accept_large_sparse": False, "order": "C"}
            how |= {"dtype": [np.float64, np.float32], "ensure_all_finite": finite}
            X = validate_data(self, X, reset=reset, **how)
            return operands.checked_shape(X) if operands.is_sparse(X) else X
        X = operands.checked_shape(X)
        if not reset and X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return X


def distances(X: Any, centroids: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Distances of rows from all centroids, which are of float64, by products in double.

    Where a product would leave too few digits, they are made of differences.
    """
    fit = load("hetero.ops.kmeans.fit")
    (n, d), k, dense, mean = X.shape, len(centroids), isinstance(X, np.ndarray), 0.0
    if dense:
        middle = centroids.mean(axis=0)
        moved = centroids - middle
        if middle @ middle * k > _FAR * np.vdot(moved, moved):  # else it is a pass over X too much
            mean, centroids = middle, moved
    norms, wide = fit.norms_of(centroids), dense and k > d  # then the product adds the squares, too
    factors = np.vstack([-2.0 * centroids.T, np.ones(k), norms])[: d + 2 * wide]
    rows = min(max(n, 1), max(_LEAST_ROWS, _NUMBERS // (d * dense + k)))
    result, part = np.empty((n, k), dtype), np.ones((rows if wide else 0, d + 2))
    room = result if dtype == np.float64 else np.empty((rows, k))
    with np.errstate(all="ignore"):
        for begin in range(0, n, rows):
            block, found = X[begin : begin + rows], result[begin : begin + rows]
            squares = found if room is result else room[: len(found)]
            if wide:
                part = part[: len(found)]
                block = np.subtract(block, mean, out=part[:, :d])
                own = part[:, d] = fit.norms_of(block)
                np.matmul(part, factors, out=squares)
            else:
                block = block.astype(np.float64, copy=False)
                block = block - mean if np.any(mean) else block
                own = fit.norms_of(block)
                squares = np.matmul(block, factors, out=squares) if dense else block @ factors
                squares += own[:, None]
                squares += norms
            few = np.flatnonzero(~(squares.min(axis=1) >= _NEAR * (own + norms.max())))
            near = np.argwhere(~(squares[few] >= _NEAR * (own[few, None] + norms)))
            np.sqrt(squares, out=found, casting="same_kind")
            for i, j in (near[a : a + rows].T for a in range(0, len(near), rows)):
                apart = fit.dense_rows(block, few[i]) - centroids[j]
                found[few[i], j] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    return result
