"""Hamerly's bounds on the CPU: they hold, and they change no bit of a result."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.kernels.cpu.kmeans import BLOCK
from hetero.ops.kmeans.compiled_cpu import CompiledRows
from hetero.ops.kmeans.fit import Fit, fit


class Always(CompiledRows):
    """With bounds from the first iteration on."""

    few = np.inf

    def restart(self, centroids):
        super().restart(centroids)
        self._below, self._few = 1.0, self.few


class Never(Always):
    few = 0.0


def blobs(n, d, k, dtype):
    random = np.random.default_rng(0)
    centres = 20 * random.random((k, d))
    return (centres[random.integers(0, k, n)] + random.standard_normal((n, d))).astype(dtype)


def on_a_lattice(n, d, k, dtype):
    """Many rows equally far from two centroids, and many equal rows."""
    return np.random.default_rng(2).integers(-2, 3, (n, d)).astype(dtype)


def far_from_zero(n, d, k, dtype):
    """Two clusters so far apart that float32 hardly tells rows within one of them."""
    X = blobs(n, d, k, dtype)
    X[: n // 2] += dtype(1e5)
    return X


def check(X, start, iterations, weights=None):
    """Labels, centroids, inertia and iterations are those of the plain loop."""
    kinds, asked = (Never, Always, CompiledRows), Fit(iterations, 1e-4, start)
    (expected, centroids), *others = (fit(kind(X, weights), asked, len(start)) for kind in kinds)
    for found, means in others:
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(means, centroids)
        assert found.run == expected.run


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("data", [blobs, on_a_lattice, far_from_zero])
@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(1, 1, 1), (BLOCK + 1, 1, 2), (40 * BLOCK - 1, 2, 9), (3001, 3, 70), (2500, 17, 20)],
)
def test_nothing_differs(n, d, k, data, dtype):
    X = data(n, d, k, dtype)
    weights = np.random.default_rng(3).integers(0, 3, n).astype(dtype)
    weights[0] = 1
    for given in (None, weights):
        check(X, X[:k], 25, given)


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e18, 1e20])
def test_huge_and_tiny_rows(scale):
    """Squares that underflow and overflow: nothing may be taken for certain."""
    X = (scale * blobs(900, 3, 6, np.float64)).astype(np.float32)
    with np.errstate(all="ignore"):
        check(X, X[:7], 9)


def test_emptied_clusters():
    """A centroid that gets a far row moves a long way."""
    X = blobs(1500, 2, 6, np.float64)
    start = X[:6].copy()
    start[2:4] += 1e3
    check(X, start, 30)
