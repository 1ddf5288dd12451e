"""kmeans around the lengths at which its code does otherwise, and on awkward numbers."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import hetero
from hetero.host import threads
from hetero.kernels.cpu import kmeans as loops
from hetero.ops.kmeans import compiled_cpu
from hetero.ops.kmeans.fit import column_means

METHODS = ["products", "lloyd"]


def check(X, k, max_iter=7):
    """The loops' fit is that of NumPy's products, which have none of these lengths."""
    given = {"init": X[:: len(X) // k][:k], "max_iter": max_iter, "tol": 0.0, "device": "cpu"}
    found, expected = (hetero.kmeans(X, k, **given, method=method) for method in reversed(METHODS))
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[2]["iterations"] == expected[2]["iterations"]
    eps = np.finfo(X.dtype).eps
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=16 * eps * abs(X).max())
    inertia = (found[2]["inertia"], expected[2]["inertia"])
    np.testing.assert_allclose(*inertia, rtol=1e3 * eps, atol=1e-12)


def grid_like(n, d, dtype):
    """Rows whose distances from centroids do not tie."""
    return np.random.default_rng(0).standard_normal((n, d)).astype(dtype)


BLOCK = loops.BLOCK
PARTS = compiled_cpu._LEAST_BLOCKS * BLOCK  # rows from which there is a second part
ROWS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, PARTS, 2 * PARTS - 1, 2 * PARTS + 1]
# As many parts as there may be; `distances`; around a tile of centroids; columns.
SHAPES = [(n, 3, k) for n in (*ROWS, compiled_cpu._PARTS * PARTS + 1, 3073) for k in (1, 2, 5)]
SHAPES += [(2 * k + 1, 2, k) for k in (loops.TILE - 1, loops.TILE, loops.TILE + 1, 1027)]
SHAPES += [(130, d, 4) for d in (1, 2, 4, 5, 63, 64, 65, 257)]


def test_shapes():
    for n, d, k in SHAPES:
        for dtype in ("float32", "float64") if n < 3073 else ("float32",):
            if dtype == "float64" or k < 500:
                check(grid_like(n, d, dtype), min(n, k), 2 if k > 500 else 7)


def test_work_around_a_second_thread():
    """Of one thread and of several: by elements, and by products."""
    for n in (threads._LEAST // 4 - 1, threads._LEAST // 4, threads._LEAST // 4 + 1):
        check(grid_like(n, 4, "float32"), 2, max_iter=3)
    n = threads._LEAST * compiled_cpu._PRODUCTS // (4 * (8 + compiled_cpu._ARGMIN))
    for m in (n - 1, n, n + 1):
        check(grid_like(m, 8, "float64"), 4, max_iter=3)


@pytest.mark.parametrize("method", METHODS)
def test_huge_and_tiny_values(method):
    X = grid_like(300, 3, "float64")
    start = X[:4].copy()
    expected = hetero.kmeans(X, 4, init=start, method=method)
    for scale in (1e-150, 1e-20, 1e20, 1e150):
        found = hetero.kmeans(scale * X, 4, init=scale * start, method=method)
        np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_allclose(found[0], scale * expected[0], rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_empty_clusters_take_the_farthest_rows(method, count):
    """Of the first iteration, in which all rows are nearest to one centroid."""
    X = np.arange(200.0)[:, None] ** 1.5
    start = np.concatenate([[[100.0]], np.full((count, 1), 1e9)])
    found, _, _ = hetero.kmeans(X, count + 1, init=start, max_iter=1, method=method)
    np.testing.assert_array_equal(np.sort(found[1:, 0]), X[-count:, 0])
    np.testing.assert_allclose(found[0], X[:-count].mean(axis=0))


@pytest.mark.parametrize("method", METHODS)
def test_many_float32_rows_far_from_zero(method):
    """Their mean and inertia need more digits than float32 has."""
    rng = np.random.default_rng(0)
    centres = 100 * rng.random((8, 3))
    X = centres[rng.integers(8, size=100_000)] + 5 * rng.standard_normal((100_000, 3)) + 1e6
    X = X.astype(np.float32)
    options = {"init": X[:8].copy(), "max_iter": 5, "tol": 1e-3, "device": "cpu"}
    expected = hetero.kmeans(X.astype(np.float64), 8, **options)
    found = hetero.kmeans(X, 8, **options, method=method)
    assert (found[1] != expected[1]).sum() <= 20
    assert found[2]["iterations"] == expected[2]["iterations"]
    np.testing.assert_allclose(found[2]["inertia"], expected[2]["inertia"], rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [9, 5000])
@pytest.mark.parametrize("weight", [1e9, 1e15, 1e17])
def test_heavy_rows_that_leave_a_cluster_leave_nothing_in_it(weight, n, method):
    light = np.linspace(0.01, 0.09, n)
    X = np.concatenate([[-1.0], light, [1.0, -1.5, 1.5]])[:, None]
    weights = np.ones(len(X))
    weights[[0, n + 1]] = weight
    start = np.array([[0.05], [-2.9], [2.9]])
    options = {"init": start, "tol": 0.0, "sample_weight": weights, "method": method}
    found, labels, info = hetero.kmeans(X, 3, **options, device="cpu")
    np.testing.assert_array_equal(labels, [1] + n * [0] + [2, 1, 2])
    np.testing.assert_allclose(found[0], 0.05, rtol=1e-9)
    assert info["iterations"] == 3


# -- Hamerly's bounds change no bit of a result ----------------------------------------------------


def bounds_change_nothing(X, start, iterations, weights=None):
    """Without bounds, with them from the first iteration on, and once few labels change."""
    given = {"init": start, "max_iter": iterations, "sample_weight": weights}
    fits = []
    for costly, moved in ((np.inf, 0.0), (0, 1.0), (0, compiled_cpu._MOVED)):
        with mock.patch.multiple(compiled_cpu, _COSTLY=costly, _LEAST=costly, _MOVED=moved):
            fits.append(hetero.kmeans(X, len(start), **given, device="cpu", method="lloyd"))
    for found in fits[1:]:
        for one, plain in zip(found, fits[0], strict=True):
            np.testing.assert_equal(one, plain)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(1, 1, 1), (BLOCK + 1, 1, 2), (40 * BLOCK - 1, 2, 9), (3001, 3, 70), (2500, 17, 20)],
)
def test_bounds(n, d, k, dtype):
    """Blobs, also so far apart that float32 hardly tells rows within one of them; and rows on a
    lattice, many of them equal and equally far from two centroids."""
    random = np.random.default_rng(0)
    blobs = 20 * random.random((k, d))[random.integers(0, k, n)] + random.standard_normal((n, d))
    far = blobs + np.where(np.arange(n) < n // 2, 1e5, 0.0)[:, None]
    weights = random.integers(0, 3, n).astype(dtype)
    weights[0] = 1
    for X in (blobs, far, random.integers(-2, 3, (n, d))):
        for given in (None, weights):
            bounds_change_nothing(X.astype(dtype), X[:k].astype(dtype), 25, given)


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e18, 1e20])
def test_bounds_of_huge_and_tiny_rows(scale):
    """Squares that underflow and overflow: nothing may be taken for certain."""
    X = (scale * 20 * grid_like(900, 3, "float64")).astype(np.float32)
    bounds_change_nothing(X, X[:7], 9)


def test_bounds_of_emptied_clusters():
    """A centroid that gets a far row moves a long way."""
    X = grid_like(1500, 2, "float64")
    bounds_change_nothing(X, np.concatenate([X[:4], X[4:6] + 1e3]), 30)


@pytest.mark.parametrize("scale", [1.0, 1e36])
def test_means_of_many_rows(scale):
    """Blocks of rows of which the sum is beyond float32 are added up in float64."""
    X = (scale * (1.0 + np.random.default_rng(0).random((30_000, 3)))).astype(np.float32)
    found = column_means(X)
    np.testing.assert_allclose(found, X.astype(float).mean(axis=0), rtol=1e-6)
