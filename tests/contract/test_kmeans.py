"""kmeans beside scikit-learn's KMeans: the same fits, the same errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

import hetero

cluster = pytest.importorskip("sklearn.cluster")

METHODS = ["products", "lloyd"]


def blobs(n, d, k, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    centres = 10 * rng.random((k, d))
    return (centres[rng.integers(k, size=n)] + rng.standard_normal((n, d))).astype(dtype)


def reference(X, k, sample_weight=None, **options):
    options = {"n_init": 1, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cluster.KMeans(k, **options).fit(X, sample_weight=sample_weight)


def same(found, expected, rtol=1e-6):
    centroids, labels, info = found
    assert labels.dtype == np.int32
    assert centroids.dtype == expected.cluster_centers_.dtype
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_allclose(info["inertia"], expected.inertia_, rtol=rtol, atol=1e-12)
    assert info["iterations"] == expected.n_iter_
    scale = abs(expected.cluster_centers_).max() + 1e-300
    np.testing.assert_allclose(centroids, expected.cluster_centers_, rtol=0, atol=rtol * scale)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(1, 1, 1), (7, 1, 7), (50, 1, 4), (300, 2, 8), (1000, 7, 1), (999, 33, 17), (2000, 3, 65)],
)
@pytest.mark.parametrize("init", ["k-means++", "random", "given"])
def test_the_same_fit_as_scikit_learns(method, n, d, k, init):
    X = blobs(n, d, min(k, 5))
    options = {"init": X[:k] if init == "given" else init, "random_state": 3}
    same(hetero.kmeans(X, k, **options, method=method), reference(X, k, **options))


@pytest.mark.parametrize("method", METHODS)
def test_weights(method):
    X = blobs(400, 3, 4)
    weights = np.random.default_rng(1).random(400)
    weights[::3] = 0
    options = {"random_state": 1, "sample_weight": weights, "n_init": 3}
    same(hetero.kmeans(X, 6, **options, method=method), reference(X, 6, **options))


@pytest.mark.parametrize("method", METHODS)
def test_one_weight_for_all_rows(method):
    X = blobs(100, 2, 3)
    options = {"random_state": 1, "sample_weight": 2.5}
    same(hetero.kmeans(X, 3, **options, method=method), reference(X, 3, **options))
    with pytest.raises(ValueError, match="at least one non-zero"):
        hetero.kmeans(X, 3, sample_weight=0)


@pytest.mark.parametrize("kind", ["halves", "bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
def test_sparse_rows(kind):
    """Also of which each element is stored in two halves."""
    rows = sparse.random_array((300, 40), density=0.1, rng=5, format="csc").tocsr()
    halves = np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), 2 * rows.indptr
    X = sparse.csr_array(halves, rows.shape) if kind == "halves" else rows.asformat(kind)
    options = {"random_state": 0, "n_init": 3}
    expected = reference(rows, 5, **options)
    same(hetero.kmeans(X, 5, **options), expected)
    fitted = hetero.KMeans(5, **options).fit(X)
    np.testing.assert_allclose([fitted.inertia_, -fitted.score(X)], expected.inertia_)
    np.testing.assert_array_equal(fitted.predict(X), expected.labels_)
    np.testing.assert_allclose(fitted.transform(X), expected.transform(rows))
    assert kind != "halves" or X.nnz == 2 * rows.nnz
    assert f": CSR 300 x 40, {rows.nnz} entries on host ->" in str(hetero.plan("kmeans", X, 5))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(
    ("X", "k", "message"),
    [
        (np.ones((3, 2)), 4, "n_samples=3 should be >= n_clusters=4"),
        (np.ones((3, 2)), 0, "'n_clusters' parameter of KMeans must be an int"),
        (np.ones((3, 2)), 1.5, "'n_clusters' parameter of KMeans must be an int"),
        (np.array([[1.0], [np.nan]]), 1, "Input X contains NaN"),
        (np.array([[1.0], [np.inf]]), 1, "Input X contains infinity"),
        (np.ones(3), 1, "Expected 2D array, got 1D array"),
        (np.ones((3, 0)), 1, r"0 feature\(s\)"),
        (np.ones((0, 3)), 1, r"0 sample\(s\)"),
        (np.ones((3, 2), complex), 1, "Complex data not supported"),
    ],
)
def test_bad_rows_get_scikit_learns_errors(X, k, message):
    with pytest.raises(ValueError, match=message):
        hetero.kmeans(X, k)
    with pytest.raises(ValueError, match=message):
        reference(X, k)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": np.ones((2, 2))}, "does not match the number of clusters 3"),
        ({"init": np.ones((3, 3))}, "does not match the number of features of the data 2"),
        ({"init": np.ones((3, 2), complex)}, "Complex data not supported"),
        ({"init": np.full((3, 2), np.nan)}, "Input .*contains NaN"),
        ({"init": "best"}, "'init' parameter of KMeans must be"),
        ({"n_init": 0}, "'n_init' parameter of KMeans must be"),
        ({"max_iter": 0}, "'max_iter' parameter of KMeans must be an int"),
        ({"tol": -1.0}, "'tol' parameter of KMeans must be a float"),
        ({"random_state": "x"}, "random_state"),
        ({"sample_weight": np.ones(9, complex)}, "Complex data not supported"),
        ({"sample_weight": np.zeros(9)}, "Sample weights must contain at least one non-zero"),
        ({"sample_weight": np.ones(8)}, r"sample_weight.shape == \(8,\), expected \(9,\)"),
        ({"sample_weight": np.ones((9, 1))}, "Sample weights must be 1D array or scalar"),
        ({"sample_weight": np.full(9, np.nan)}, "Input sample_weight contains NaN"),
    ],
)
def test_bad_arguments_get_scikit_learns_errors(options, message):
    X = blobs(9, 2, 3)
    with pytest.raises(ValueError, match=message):
        hetero.kmeans(X, 3, **options)
    with pytest.raises(ValueError, match=message):
        reference(X, 3, **options)


def test_weights_of_which_none_is_positive():
    """scikit-learn takes them, for centroids that are sums of rows."""
    with pytest.raises(ValueError, match="at least one positive number"):
        hetero.kmeans(blobs(9, 2, 3), 3, init=np.ones((3, 2)), sample_weight=-np.ones(9))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("n", [2, 9])
def test_no_iterations_label_rows(n):
    X = blobs(n, 2, 3)
    centroids, labels, info = hetero.kmeans(X, 3, init=X[:1] + np.eye(3, 2), max_iter=0, tol=0)
    np.testing.assert_array_equal(centroids, X[:1] + np.eye(3, 2))
    apart = ((X[:, None] - centroids) ** 2).sum(axis=2)
    np.testing.assert_array_equal(labels, apart.argmin(axis=1))
    np.testing.assert_allclose(info["inertia"], apart.min(axis=1).sum())
    assert info["iterations"] == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("init", ["k-means++", "random", "first"])
def test_one_row_very_far_from_all(init, method):
    """float32 tells the others hardly apart; the fit ends all the same."""
    X = np.random.default_rng(0).normal(100, 10, (1500, 3)).astype(np.float32)
    X[7] = 1e18
    start = X[5:9].copy() if init == "first" else init
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, labels, info = hetero.kmeans(X, 4, init=start, random_state=0, method=method)
    assert info["iterations"] <= 3
    assert (labels[:7] != labels[7]).all()


@pytest.mark.filterwarnings("ignore:Number of distinct clusters", "ignore:overflow encountered")
@pytest.mark.parametrize("way", ["lloyd", "device"])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e25), ("float64", 1e200)])
def test_squares_that_overflow_end_a_fit_at_once_with_a_warning(way, dtype, size, request):
    X = (np.random.default_rng(0).random((50, 3)) * size).astype(dtype)
    expected = reference(X, 4, init=X[:4].copy())
    placed = {"method": way, "device": "cpu"}
    if way == "device":
        placed = {"device": request.getfixturevalue("opencl")}
    with pytest.warns(RuntimeWarning, match=f"Squared distances .* overflow in {dtype}"):
        labels, info = hetero.kmeans(X, 4, init=X[:4].copy(), **placed)[1:]
    np.testing.assert_array_equal(labels, expected.labels_)
    assert info["iterations"] == expected.n_iter_
