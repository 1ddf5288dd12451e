"""What kmeans is asked: operands checked by scikit-learn's rules, and made a problem."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import (
    HOST,
    Operand,
    Spec,
    array_or_spec,
    as_array,
    dense,
    describe,
    is_device_array,
    name_of,
)
from hetero.ops.solvers import systems
from hetero.registry import Problem, check_dims

NAME = "kmeans"
DIMS = ("N D K",)
PLUS_PLUS, RANDOM, GIVEN = "k-means++", "random", "given"
DENSE, SEEDED, SPARSE = "dense", "dense seeded", "csr"  # layouts; seeded: by k-means++
EXPECTED = 30  # iterations of a start, where the caller allows as many
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


class Options(NamedTuple):
    """What a price depends on besides the operands."""

    init: str  # "k-means++", "random" or "given"
    starts: int
    maxiter: int  # of each start


def problem(
    X: Any,
    n_clusters: int,
    *,
    init: Any = PLUS_PLUS,
    n_init: int = 1,
    max_iter: int = 300,
    tol: float = 1e-4,
    label_tol: float = 0.0,
    random_state: Any = None,
    sample_weight: Any = None,
) -> Problem:
    """The problem of ``kmeans(X, n_clusters, ...)``, for arrays or `hetero.spec` stand-ins."""
    _check_number("n_clusters", n_clusters)
    _check_number("tol", tol, numbers.Real)
    _check_number("label_tol", label_tol, numbers.Real)
    how, k = _checked_init(init), int(n_clusters)
    if isinstance(n_init, str) and n_init == "auto":
        n_init = 10 if how == RANDOM else 1
    elif how == GIVEN:
        n_init = 1
    _check_number("n_init", n_init)
    X = checked_shape(X)
    n, d = X.shape
    if not (how == GIVEN and type(max_iter) is int and max_iter == 0):  # labels alone
        if n < k:
            raise ValueError(f"n_samples={n} should be >= n_clusters={k}.")
        _check_number("max_iter", max_iter)
    weights, dtype = weights_operand(sample_weight, n), float_dtype(_dtype(X))
    about = {"function": "kmeans", "options": Options(how, int(n_init), int(max_iter))}
    if is_sparse(X):
        about |= {"layout": SPARSE, "shown": (f"CSR {n} x {d}, {X.nnz} entries on host",)}
        about["device_obstacle"] = "a sparse X computes on the CPU"
        return Problem(NAME, (n, d, k), name_of(dtype), (), dense((k, d), dtype), **about)
    given, about["layout"] = describe(X)._replace(pointer=0), SEEDED if how == PLUS_PLUS else DENSE
    where = given.location
    if given.dtype != dtype or not given.is_c_contiguous():
        if where != HOST:
            reason = f"an X of dtype {given.dtype} or with gaps computes on the CPU"
            about["device_obstacle"] = reason
        else:  # what is moved is of the dtype that is computed in
            given = dense(given.shape, dtype)
    inputs = (given,)
    if weights is not None:
        same = {"dtype": dtype, "strides": (dtype.itemsize,), "pointer": 0}
        inputs = given, weights.unkept()._replace(**same)
    return Problem(NAME, (n, d, k), name_of(dtype), inputs, dense((k, d), dtype, where), **about)


def trials(k: int) -> int:
    """Candidates of k-means++ for each of k seeds, and how many iterations compute as many
    distances as these do."""
    return 2 + int(math.log(k))


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with N rows of D numbers and K clusters, as ``hetero explain kmeans`` asks."""
    check_dims(NAME, dims, *DIMS)
    return problem(Spec(dims[:2], dtype, on=on), dims[2])


def is_sparse(X: Any) -> bool:
    """Whether X is one of SciPy's sparse matrices or arrays."""
    return hasattr(X, "indptr") or hasattr(X, "tocsr")


def float_dtype(dtype: Any) -> np.dtype:
    """What is computed in: float32 and float64 as they are, float64 for all else."""
    dtype = np.dtype(dtype)
    return dtype if dtype in _FLOATS else _FLOATS[0]


def _dtype(X: Any) -> np.dtype:
    """NumPy's name for the dtype of an array, which other libraries have names of their own for."""
    return np.dtype(X.dtype if is_sparse(X) else describe(X).dtype)


def checked_shape(X: Any) -> Any:
    """X as array, spec or CSR matrix of two dimensions; ValueError for any other. The values are
    not looked at."""
    if is_sparse(X):
        X = X.tocsr()
        if not X.has_canonical_format:  # what is squared must be the element, not its parts
            X = X.copy()
            X.sum_duplicates()
        if max(X.indices.dtype.itemsize, X.indptr.dtype.itemsize) > 4:
            raise ValueError(
                "Only sparse matrices with 32-bit integer indices are accepted. "
                f"Got {X.indices.dtype} indices."
            )
    elif not isinstance(X, Spec):
        X = array_or_spec(X)
    dtype = _dtype(X)
    if dtype.kind == "c":
        raise ValueError("Complex data not supported")
    if dtype.kind not in "fiub":
        X = np.asarray(X, dtype=np.float64)
    shape = tuple(X.shape)
    if len(shape) != 2:
        raise ValueError(f"Expected 2D array, got {len(shape)}D array of shape {shape} instead")
    for extent, what in zip(shape, ("sample", "feature"), strict=True):
        if extent < 1:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={shape}) while a minimum of 1 is required "
                "by KMeans."
            )
    return X


def host_values(X: Any) -> np.ndarray:
    """A host X in the dtype that is computed in, by rows without gaps; itself where it is that."""
    return np.ascontiguousarray(X, float_dtype(X.dtype))


def check_finite(X: np.ndarray, name: str = "X") -> None:
    """ValueError if an array of numbers on the host holds NaN or infinity."""
    with np.errstate(all="ignore"):
        if np.isfinite(X.sum()) or np.isfinite(X).all():
            return
    what = "NaN" if np.isnan(X).any() else f"infinity or a value too large for {X.dtype!r}"
    raise ValueError(f"Input {name} contains {what}.")


def refused(name: str, what: str, value: Any) -> ValueError:
    """The error about a parameter."""
    return ValueError(f"The {name!r} parameter of KMeans must be {what}. Got {value!r} instead.")


def _check_number(name: str, value: Any, kind: type = numbers.Integral) -> None:
    """ValueError for what is no whole number of at least 1, or no finite real one of at least 0."""
    what, least = ("an int", 1) if kind is numbers.Integral else ("a float", 0)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
        raise refused(name, f"{what} in the range [{least}, inf)", value)


def _checked_init(init: Any) -> str:
    """How a start gets its centroids; a callable counts as "random"."""
    if isinstance(init, str):
        if init in (PLUS_PLUS, RANDOM):
            return init
    elif callable(init):
        return RANDOM
    elif is_device_array(init) or isinstance(init, Spec) or is_sparse(init) or np.ndim(init) > 0:
        return GIVEN
    what = "a str among {'k-means++', 'random'}, a callable or an array-like"
    raise refused("init", what, init)


def checked_centroids(init: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Initial centroids that were given, for (k, d) of them."""
    check_finite(init, "init")
    expected = f"number of clusters {shape[0]}", f"number of features of the data {shape[1]}"
    for axis, what in enumerate(expected):
        if init.ndim != 2 or init.shape[axis] != shape[axis]:
            raise ValueError(
                f"The shape of the initial centers {init.shape} does not match the {what}."
            )
    return init


def weights_operand(weights: Any, n: int) -> Operand | None:
    """The description of sample weights, None where there are none."""
    if weights is None:
        return None
    if isinstance(weights, numbers.Number):
        return dense((n,), _FLOATS[0])
    weights = array_or_spec(weights)
    operand = describe(weights)
    if len(operand.shape) != 1:
        raise ValueError(
            f"Sample weights must be 1D array or scalar, got {len(operand.shape)}D array. Expected "
            f"either a scalar value or a 1D array of length {n}."
        )
    if operand.shape != (n,):
        raise ValueError(f"sample_weight.shape == {operand.shape}, expected {(n,)}!")
    return operand


def checked_weights(weights: Any, n: int, dtype: np.dtype) -> np.ndarray | None:
    """Sample weights as an array on the host, None where there are none."""
    if weights is None:
        return None
    single = isinstance(weights, numbers.Number)
    weights = np.full(n, weights, dtype) if single else on_host(weights, dtype)
    check_finite(weights, "sample_weight")
    if not (weights > 0).any():
        what = "positive" if weights.any() else "non-zero"
        raise ValueError(f"Sample weights must contain at least one {what} number.")
    return weights


def on_host(array: Any, dtype: np.dtype) -> np.ndarray:
    """An array's values on the host, C-contiguous and of a dtype; ValueError where complex."""
    array = array.toarray() if is_sparse(array) else as_array(array)
    operand = describe(array)
    if operand.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    return systems.on_host(array, dtype, operand)


def checked_random(seed: Any) -> np.random.RandomState:
    """The random numbers that scikit-learn would draw from."""
    if seed is None or seed is np.random:
        return np.random.get_state.__self__  # the one that NumPy's functions are methods of
    if isinstance(seed, numbers.Integral):
        return np.random.RandomState(seed)
    if isinstance(seed, np.random.RandomState):
        return seed
    raise ValueError(
        f"{seed!r} cannot be used to seed a numpy.random.RandomState instance; random_state must "
        "be an int, a RandomState or None"
    )
