"""The compiled loops of convolution: threads, tiles, and what they refuse."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from hetero.kernels.cpu.convolve import FILL, SYMM, WRAP, direct, separable


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
            direct(image, taps, out, size[0] // 2, size[1] // 2, WRAP, 0.0)
            separable(image, columns, rows, other, 2, 1, WRAP, 0.0)
            results.append((out, other))
        for out, other in results[1:]:
            np.testing.assert_array_equal(out, results[0][0])
            np.testing.assert_array_equal(other, results[0][1])
        part = np.empty((2, 5, 50), dtype)
        direct(image, taps, part, size[0] // 2 - 101, size[1] // 2 - 77, WRAP, 0.0)
        np.testing.assert_array_equal(part, results[0][0][:, 101:106, 77:127])


def test_nothing_to_do():
    image, taps = np.ones((1, 4, 4)), np.ones((3, 3))
    direct(image, taps, np.empty((0, 4, 4)), 1, 1, FILL, 0.0)
    direct(image, taps, np.empty((1, 0, 4)), 1, 1, WRAP, 0.0)
    out = np.empty((1, 4, 4))
    direct(np.empty((1, 0, 4)), taps, out, 1, 1, FILL, 2.0)
    assert np.all(out == 18)
    with pytest.raises(ValueError, match="elements to repeat"):
        direct(np.empty((1, 0, 4)), taps, out, 1, 1, SYMM, 0.0)


def test_arrays_it_cannot_read():
    image, taps, out = np.ones((1, 8, 8)), np.ones((3, 3)), np.empty((1, 8, 8))
    with pytest.raises(TypeError, match="float32, float64, float64"):
        direct(image.astype(np.float32), taps, out, 1, 1, FILL, 0.0)
    for dtype in ["f2", "i8", ">f8"]:
        with pytest.raises(TypeError, match="all float32"):
            direct(image.astype(dtype), taps.astype(dtype), out.astype(dtype), 1, 1, FILL, 0.0)
    with pytest.raises(ValueError, match="contiguous"):
        direct(image, taps, out.transpose(0, 2, 1), 1, 1, FILL, 0.0)
    with pytest.raises(ValueError, match="contiguous"):
        direct(image, np.ones((3, 6))[:, ::2], out, 1, 1, FILL, 0.0)
    with pytest.raises(ValueError, match="contiguous"):
        separable(image, np.ones((1, 3)), np.ones((1, 6))[:, ::2], out, 1, 1, FILL, 0.0)
