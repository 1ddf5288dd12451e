"""Hamerly's bounds on the CPU: they hold, they skip rows, and they change no bit of a result."""

from __future__ import annotations

from itertools import pairwise

import in_bounds
import numpy as np
import pytest

from hetero.kernels.cpu import kmeans as loops
from hetero.ops.kmeans import compiled_cpu
from hetero.ops.kmeans.compiled_cpu import CompiledRows
from hetero.ops.kmeans.fit import Fit, fit

BLOCK = loops.BLOCK


class AlwaysBounded(CompiledRows):
    """With bounds from the first iteration to the last."""

    def restart(self, centroids):
        super().restart(centroids)
        self._below, self._few = 1.0, np.inf


class Plain(CompiledRows):
    """Without."""

    def restart(self, centroids):
        super().restart(centroids)
        self._few = 0.0


def blobs(n, d, k, dtype, seed=0):
    random = np.random.default_rng(seed)
    centres = 20 * random.random((k, d))
    return (centres[random.integers(0, k, n)] + random.standard_normal((n, d))).astype(dtype)


def uniform(n, d, k, dtype):
    return np.random.default_rng(1).random((n, d)).astype(dtype)


def on_a_lattice(n, d, k, dtype):
    """Many rows equally far from two centroids, and many equal rows."""
    return np.random.default_rng(2).integers(-2, 3, (n, d)).astype(dtype)


def far_from_zero(n, d, k, dtype):
    """Two clusters so far apart that float32 hardly tells rows within one of them."""
    X = blobs(n, d, k, dtype)
    X[: n // 2] += dtype(1e5)
    return X


def fitted(rows, X, start, iterations, weights=None):
    made = rows(X, weights)
    outcome, centroids = fit(made, Fit(iterations, 1e-4, start.copy()), len(start))
    return outcome, centroids, made


def same(found, expected):
    np.testing.assert_array_equal(found[0].labels, expected[0].labels)
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[0].run == expected[0].run


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("data", [blobs, uniform, on_a_lattice, far_from_zero])
@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(1, 1, 1), (BLOCK + 1, 1, 2), (40 * BLOCK - 1, 2, 9), (3001, 3, 70), (2500, 17, 20)],
)
def test_nothing_differs(n, d, k, data, dtype):
    """Labels, centroids, inertia and iterations are those of the plain loop."""
    X = data(n, d, k, dtype)
    weights = np.random.default_rng(3).integers(0, 3, n).astype(dtype)
    weights[0] = 1
    for given in (None, weights):
        expected = fitted(Plain, X, X[:k], 25, given)
        same(fitted(AlwaysBounded, X, X[:k], 25, given), expected)
        same(fitted(CompiledRows, X, X[:k], 25, given), expected)


def test_no_loop_leaves_its_arrays():
    in_bounds.check("""
from hetero.ops.kmeans import compiled_cpu
compiled_cpu.compile_clusters(np.dtype("float64"))
compiled_cpu.compile_bounds(np.dtype("float64"))
X = np.random.default_rng(0).random((777, 5))
for k in (1, 7, 65):
    for least in (0.1, -1.0):
        compiled_cpu._LEAST = least
        hetero.kmeans(X, k, n_init=1, max_iter=4, method="lloyd", device="cpu", random_state=0)
""")


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e18, 1e20])
def test_huge_and_tiny_rows(scale):
    """Squares that underflow and overflow: nothing may be taken for certain."""
    X = (scale * blobs(900, 3, 6, np.float64)).astype(np.float32)
    with np.errstate(all="ignore"):
        same(fitted(AlwaysBounded, X, X[:7], 9), fitted(Plain, X, X[:7], 9))


def test_emptied_clusters():
    """A centroid that gets a far row moves a long way."""
    X = blobs(1500, 2, 6, np.float64)
    start = X[:6].copy()
    start[2:4] += 1e3
    same(fitted(AlwaysBounded, X, start, 30), fitted(Plain, X, start, 30))


def test_rows_are_skipped():
    X = blobs(20_000, 4, 40, np.float64)
    rows = fitted(AlwaysBounded, X, X[:60], 40)[2]
    teams = len(rows._bounds.looked)
    assert rows._bounds.looked.sum() <= teams * BLOCK + 0.02 * len(X)


def watched(X, k, iterations):
    """A fit that goes on; of each iteration, whether bounds were used and how many rows changed."""
    rows, used, moving = CompiledRows(X, None), [], []
    assign = rows.assign

    def noted(centroids):
        fresh = rows._bounds is None
        changed = assign(centroids)
        used.append(not fresh or rows._bounds is not None)
        moving.append(rows._moving)
        return changed

    rows.assign = noted
    fit(rows, Fit(iterations, -1.0, X[:k].copy()), k)
    return used, moving


def test_bounds_are_used_once_few_rows_change():
    used, moving = watched(blobs(20_000, 4, 256, np.float32), 256, 15)
    first = used.index(True)
    assert first == next(i for i, part in enumerate(moving) if part <= compiled_cpu._MOVED) + 1
    assert first < 8
    assert all(used[first:])


def test_bounds_are_given_up_where_they_skip_nothing():
    """They are tried for two iterations, and again when half as many rows change their label."""
    X = np.random.default_rng(0).standard_normal((6000, 64)).astype(np.float32)
    used, moving = watched(X, 256, 12)
    tries = [i for i, now in enumerate(used) if now and not (i and used[i - 1])]
    assert moving[tries[0] - 1] <= compiled_cpu._MOVED
    assert len(tries) > 1
    for before, again in pairwise(tries):
        assert used[before : before + 3] == [True, True, False]
        assert moving[again - 1] <= moving[before] / 2
