"""Correlation on the CPU's threads: against SciPy, at every kind of edge."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy.signal import convolve2d

from hetero.kernels.cpu.convolve import FILL, SYMM, WRAP, direct, separable
from hetero.ops.convolve2d.window import window_of

DTYPES = [np.float32, np.float64]
BOUNDARIES = {"fill": FILL, "wrap": WRAP, "symm": SYMM}
SIZES = [  # (image, filter)
    ((1, 1), (1, 1)),
    ((1, 1), (4, 3)),
    ((1, 9), (1, 4)),
    ((9, 1), (5, 1)),
    ((1, 40), (3, 3)),
    ((40, 1), (2, 7)),
    ((5, 6), (3, 3)),
    ((16, 16), (1, 1)),
    ((17, 31), (2, 2)),
    ((33, 64), (4, 5)),
    ((34, 65), (5, 4)),
    ((3, 130), (1, 31)),
    ((130, 3), (31, 1)),
    ((70, 150), (9, 12)),
    ((4, 5), (6, 7)),
    ((3, 20), (8, 5)),
    ((20, 3), (5, 8)),
    ((2, 3), (41, 38)),
    ((67, 1100), (3, 6)),
]


def correlate(image, taps, mode, boundary, fillvalue=0.0):
    w = window_of(image.shape[1:], taps.shape, mode)
    out = np.full((len(image), w.out_height, w.out_width), 7, image.dtype)
    direct(image, taps, out, w.top, w.left, boundary, fillvalue)
    return out


def expected(image, taps, mode, boundary, fillvalue=0.0):
    """SciPy's result in double, and a bound on both sides' rounding."""
    image, taps = image.astype(np.float64), taps[::-1, ::-1].astype(np.float64)
    exact = [convolve2d(x, taps, mode, boundary, fillvalue) for x in image]
    sizes = [convolve2d(abs(x), abs(taps), mode, boundary, abs(fillvalue)) for x in image]
    return np.array(exact), np.array(sizes)


def assert_close(out, exact, sizes, additions):
    eps = np.finfo(out.dtype).eps
    both = 2 if out.dtype == np.float64 else 1
    assert np.all(abs(out - exact) <= both * additions * eps / 2 * 1.001 * sizes)


def modes(shape, taps):
    fits = all(n >= k for n, k in zip(shape, taps, strict=True))
    return ["full", "same", "valid"] if fits else ["full", "same"]


@pytest.fixture
def two_threads():
    before = numba.get_num_threads()
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two threads")
    numba.set_num_threads(2)
    yield
    numba.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("shape", "taps"), SIZES)
def test_against_scipy(shape, taps, boundary, dtype):
    rng = np.random.default_rng(1)
    image = rng.standard_normal((2, *shape)).astype(dtype)
    taps = rng.standard_normal(taps).astype(dtype)
    for mode in modes(shape, taps.shape):
        out = correlate(image, taps, mode, BOUNDARIES[boundary], 0.5)
        assert_close(out, *expected(image, taps, mode, boundary, 0.5), taps.size + 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_views(dtype):
    rng = np.random.default_rng(2)
    taps = rng.standard_normal((4, 3)).astype(dtype)
    store = rng.standard_normal((6, 90, 100)).astype(dtype)
    image = store[::-2, 80:3:-2, 5:90]
    out = np.full((3, 2 * image.shape[1], 120), 9, dtype)
    direct(image, taps, out[:, ::2, 10:95], 2, 1, SYMM, 0.0)
    assert np.all(out[:, 1::2] == 9)
    assert np.all(out[:, :, :10] == 9)
    assert np.all(out[:, :, 95:] == 9)
    assert_close(out[:, ::2, 10:95], *expected(image, taps, "same", "symm"), taps.size + 1)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_far_outside(boundary, dtype):
    rng = np.random.default_rng(3)
    image = rng.standard_normal((1, 5, 7)).astype(dtype)
    taps = rng.standard_normal((3, 2)).astype(dtype)
    mode = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}[boundary]
    more = {"constant_values": 0.25} if boundary == "fill" else {}
    ext = np.pad(image, ((0, 0), (50, 60), (70, 80)), mode, **more)
    for top, left, shape in [(50, 70, (40, 60)), (-20, -30, (30, 40)), (-1, 3, (1, 9))]:
        out = np.empty((1, *shape), dtype)
        direct(image, taps, out, top, left, BOUNDARIES[boundary], 0.25)
        rows, columns = slice(50 - top, None), slice(70 - left, None)
        exact, sizes = expected(ext[:, rows, columns], taps, "valid", "fill")
        some = np.s_[:, : shape[0], : shape[1]]
        assert_close(out, exact[some], sizes[some], taps.size + 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(3, 3), (1, 5), (7, 2), (9, 9)])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_nan_and_infinity(boundary, size, dtype):
    rng = np.random.default_rng(4)
    image = rng.integers(-3, 4, (2, 40, 150)).astype(dtype)
    taps = rng.integers(-3, 4, size).astype(dtype)
    taps[0, -1] = 0
    image[0, 3, 5], image[0, 20, 149], image[1, 0, 0] = np.inf, np.nan, -np.inf
    image[1, 30, 77], image[1, 30, 80] = np.inf, -np.inf
    for mode in ["full", "same", "valid"]:
        for fillvalue in [0.0, np.inf, np.nan]:
            out = correlate(image, taps, mode, BOUNDARIES[boundary], fillvalue)
            np.testing.assert_array_equal(
                out, expected(image, taps, mode, boundary, fillvalue)[0].astype(dtype)
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    ("terms", "size"), [(1, (3, 3)), (2, (5, 4)), (1, (1, 6)), (3, (7, 1)), (2, (21, 33))]
)
def test_separable(terms, size, boundary, dtype):
    rng = np.random.default_rng(5)
    columns = rng.standard_normal((terms, size[0])).astype(dtype)
    rows = rng.standard_normal((terms, size[1])).astype(dtype)
    taps = np.einsum("ru,rv->uv", columns, rows, dtype=np.float64)
    for shape in [(1, 1), (9, 5), (40, 70), (75, 1100)]:
        image = rng.standard_normal((2, *shape)).astype(dtype)
        out = np.full_like(image, 7)
        top, left = size[0] // 2, size[1] // 2
        separable(image, columns, rows, out, top, left, BOUNDARIES[boundary], 0.5)
        wide, wide_out = image.astype(np.float64), np.empty(image.shape)
        direct(wide, taps, wide_out, top, left, BOUNDARIES[boundary], 0.5)
        whole = np.einsum("ru,rv->uv", abs(columns), abs(rows), dtype=np.float64)
        sizes = np.empty(image.shape)
        direct(abs(wide), whole, sizes, top, left, BOUNDARIES[boundary], 0.5)
        additions = terms * size[0] + size[1] + 1
        assert_close(out, wide_out, sizes, additions + taps.size + terms)


@pytest.mark.parametrize("dtype", DTYPES)
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
            out = correlate(image, taps, "same", WRAP)
            other = np.empty_like(image)
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
