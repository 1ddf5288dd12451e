"""The compiled loops of convolution: threads and tiles."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from hetero.kernels.cpu.convolve import WRAP, correlate


@pytest.fixture
def two_threads():
    before = numba.get_num_threads()
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two threads")
    numba.set_num_threads(2)
    yield
    numba.set_num_threads(before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_and_tiles_do_not_matter(two_threads, dtype):
    rng = np.random.default_rng(6)
    image = rng.standard_normal((2, 301, 700)).astype(dtype)
    for size in [(2, 1), (3, 3), (15, 14), (1, 31)]:
        taps = rng.standard_normal(size).astype(dtype)
        columns, rows = taps[:, :2].T.copy(), taps[:2].copy()
        rows, columns = rows[: len(columns)], columns[: len(rows)]
        results = []
        for threads in [1, 2, 2]:
            numba.set_num_threads(threads)
            out, other = np.empty((2, *image.shape), dtype)
            correlate(image, out, (size[0] // 2, size[1] // 2), WRAP, 0.0, taps)
            correlate(image, other, (2, 1), WRAP, 0.0, columns, rows)
            results.append((out, other))
        for out, other in results[1:]:
            np.testing.assert_array_equal(out, results[0][0])
            np.testing.assert_array_equal(other, results[0][1])
        part = np.empty((2, 5, 50), dtype)
        correlate(image, part, (size[0] // 2 - 101, size[1] // 2 - 77), WRAP, 0.0, taps)
        np.testing.assert_array_equal(part, results[0][0][:, 101:106, 77:127])
