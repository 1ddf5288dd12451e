"""Loops give the same bits on any number of threads, which a call leaves as it was."""

from __future__ import annotations

import numba
import numpy as np
import pytest

import hetero

rng = np.random.default_rng(7)
GRID = hetero.Poisson((96, 100))  # enough unknowns to be shared
B = rng.standard_normal(9600)
IMAGE = rng.standard_normal((2, 301, 700))
ROWS = rng.standard_normal((30_000, 8)).astype("f4")
FILTERS = [rng.random((m, 1)) * rng.random(n) for m, n in ((3, 3), (15, 14), (2, 1), (1, 31))]


def convolved(dtype, method):
    filters = FILTERS if method == "direct" else FILTERS[:2]
    options = {"mode": "same", "boundary": "wrap", "method": method}
    image = IMAGE.astype(dtype)
    return [hetero.convolve2d(image, taps.astype(dtype), **options) for taps in filters]


def fitted():
    centroids, labels, info = hetero.kmeans(ROWS, 16, random_state=0, max_iter=20, method="lloyd")
    return centroids, labels, info["inertia"]


CALLS = {
    "cg, grid": lambda: hetero.solve_cg(GRID, B, maxiter=15, method="numba"),
    "cg, sparse": lambda: hetero.solve_cg(GRID.tocsr(), B, maxiter=15, method="numba"),
    "direct, float32": lambda: convolved("f4", "direct"),
    "direct, float64": lambda: convolved("f8", "direct"),
    "separable, float32": lambda: convolved("f4", "separable"),
    "separable, float64": lambda: convolved("f8", "separable"),
    "kmeans": fitted,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_whatever_the_number_of_threads(name):
    most, found = numba.get_num_threads(), []
    try:
        for threads in (most, most, 1):
            numba.set_num_threads(threads)
            with hetero.use(device="cpu"):
                found.append([np.asarray(result).tobytes() for result in CALLS[name]()])
            assert numba.get_num_threads() == threads
    finally:
        numba.set_num_threads(most)
    assert found[0] == found[1] == found[2]
