"""What an estimator has in common with all others: scikit-learn's where that is installed."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from hetero.arrays import describe, is_device_array, library_of
from hetero.imports import load
from hetero.ops.kmeans import operands

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
            return {name: getattr(self, name) for name in self._names()}

        def set_params(self, **params: Any) -> Any:
            """Set parameters by name; gives the estimator."""
            for name, value in params.items():
                if name not in self._names():
                    raise ValueError(
                        f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: "
                        f"{self._names()!r}."
                    )
                setattr(self, name, value)
            return self

        def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
            """As ``fit(X).transform(X)``."""
            return self.fit(X, y, **options).transform(X)  # type: ignore[attr-defined]

        def __repr__(self) -> str:
            given = inspect.signature(type(self)).parameters
            different = [
                f"{name}={value!r}"
                for name, value in self.get_params().items()
                if value is not given[name].default
            ]
            return f"{type(self).__name__}({', '.join(different)})"

        @classmethod
        def _names(cls) -> list[str]:
            return sorted(inspect.signature(cls).parameters)

    def check_is_fitted(estimator: Any) -> None:
        if not hasattr(estimator, "n_features_in_"):
            raise ValueError(
                f"This {type(estimator).__name__} instance is not fitted yet. Call 'fit' with "
                "appropriate arguments before using this estimator."
            )


def state_of(estimator: Any) -> dict[str, Any]:
    """What is pickled of an estimator, or copied: its attributes, those on the host of which no
    array can be."""
    transfer = load("hetero.moving.transfer")
    state = dict(vars(estimator))
    for name, value in state.items():
        if is_device_array(value) and not library_of(value).pickles:
            state[name] = transfer.to_host(value, describe(value))
    return state


__all__ = ["Base", "ConvergenceWarning", "check_is_fitted", "state_of", "validated"]


def validated(estimator: Base, X: Any, *, reset: bool) -> Any:
    """Rows for an estimator to be fitted (``reset``), or for one that is.

    scikit-learn looks at what is on the host where it is installed; names of columns are its own.
    """
    if validate_data is not None and not is_device_array(X):
        return validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            accept_large_sparse=False,
        )
    X = operands.checked_shape(X)
    d = int(X.shape[1])
    if reset:
        estimator.n_features_in_ = d
    elif d != estimator.n_features_in_:
        raise ValueError(
            f"X has {d} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    return X
