"""Values of very different size: by default none is lost beneath the largest.

A transform's error is eps times the largest values all over its tile; the direct sum's is eps times
what it adds up at a point. Bounds here are 1e3 eps of the sum of the products' absolute values, at
every point, as `hetero.filtering.ranges` promises.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import convolve2d

import hetero
from hetero.filtering import ranges
from hetero.filtering.factors import low_rank
from hetero.filtering.request import Filter
from hetero.kernels import cpu_ranges
from hetero.ops import convolving

rng = np.random.default_rng(41)
DTYPES = ["float32", "float64"]
TRANSFORMS = ("fft", "overlap_save")


def eps_lost(result, image, filter, mode="same"):
    """The largest error, in eps of the sum of the products' absolute values there."""
    image, filter = image.astype("f8"), filter.astype("f8")
    rows = slice(0, len(result))
    sums = convolve2d(abs(image), abs(filter), mode)[rows]
    error = abs(result - convolve2d(image, filter, mode)[rows])
    return (error[sums > 0] / (np.finfo(result.dtype).eps * sums[sums > 0])).max(initial=0.0)


def operands(dtype):
    return rng.random((120, 150)).astype(dtype), rng.standard_normal((31, 30)).astype(dtype)


def pixel(image, filter, value):
    image[10, 10] = value


def patch(image, filter, value):
    image[40:110, 50:140] /= value


def corner(image, filter, value):
    filter[0, 0] = value


def centre(image, filter, value):
    filter[15, 15] = value


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("put", [pixel, patch, corner, centre])
@pytest.mark.parametrize("value", [1e6, 1e10, 1e20])
def test_small_values_are_kept(put, value, dtype):
    """Cold, and once calls of these shapes and dtypes are remembered as transforms."""
    even, filter = operands(dtype)
    image, taps = even.copy(), filter.copy()
    put(image, taps, value)
    assert eps_lost(hetero.convolve2d(image, taps, "same"), image, taps) < 1e3
    for _ in range(2):
        hetero.convolve2d(even, filter, "same")
    assert eps_lost(hetero.convolve2d(image, taps, "same"), image, taps) < 1e3
    plan = hetero.plan("convolve2d", image, taps, mode="same")
    reasons = {c.method: c.reason for c in plan.candidates if c.device == "cpu"}
    assert all("size" in reasons[method] for method in TRANSFORMS)
    lost = eps_lost(hetero.convolve2d(image, taps, "same", method="fft"), image, taps)
    assert lost > 1e3, "a transform would have done"


@pytest.mark.parametrize("dtype", DTYPES)
def test_even_values_are_transformed(dtype):
    """Values of one size, also where some are zero, or where they are spread evenly."""
    image, filter = operands(dtype)
    dark = image.copy()
    dark[60:] = 0.0
    bright = 10.0 * image
    bright[rng.integers(0, 120, 20), rng.integers(0, 150, 20)] = 65535.0
    spread = (10.0 ** rng.uniform(-10, 10, image.shape)).astype(dtype)
    y, x = np.mgrid[-15:16, -15:16]
    peak = np.exp(-(0.3 * x * x + 0.2 * y * y + 0.2 * x * y)).astype(dtype)
    for a, b in (
        *((a, filter) for a in (image, dark, bright, spread, 1e30 * image, 1e-30 * image)),
        *((image, b) for b in (peak, 1e30 * filter)),
        (np.zeros_like(image), filter),
    ):
        assert hetero.plan("convolve2d", a, b, mode="same").chosen.method in TRANSFORMS
        found = hetero.convolve2d(a, b, "same")
        if a is dark:  # where all is zero, rounding is all there is
            a, found = a[:60], found[:45]
        assert eps_lost(found, a, b) < 1e3


def test_the_fill_value_counts():
    image, filter = operands("float64")
    for fillvalue, kept in ((2.0, True), (1e12, False), (1e12, False), (2.0, True)):
        plan = hetero.plan("convolve2d", image, filter, mode="same", fillvalue=fillvalue)
        assert (plan.chosen.method in TRANSFORMS) == kept
        found = hetero.convolve2d(image, filter, "same", "fill", fillvalue)
        expected = convolve2d(image, filter, "same", "fill", fillvalue)
        np.testing.assert_allclose(found[40:80, 40:80], expected[40:80, 40:80], rtol=1e-9)
        hetero.convolve2d(image, filter, "same", "wrap", fillvalue)


def test_a_stack_is_as_even_as_its_least_even_image():
    image, filter = operands("float64")
    stack = np.stack([image, 1e20 * image, image])
    assert hetero.plan("convolve2d", stack, filter, mode="same").chosen.method in TRANSFORMS
    stack[1, 3, 4] = 1e40
    assert hetero.plan("convolve2d", stack, filter, mode="same").chosen.method == "direct"


def test_a_method_by_name_is_taken():
    image, filter = operands("float64")
    image[10, 10] = 1e20
    for method in TRANSFORMS:
        plan = hetero.plan("convolve2d", image, filter, mode="same", method=method, device="cpu")
        assert plan.chosen.method == method
        hetero.convolve2d(image, filter, "same", method=method, device="cpu")
        with hetero.use(method=method, device="cpu"):
            assert hetero.plan("convolve2d", image, filter, mode="same").chosen.method == method
            hetero.convolve2d(image, filter, "same")


def test_device_images_count_as_even():
    """Their values are not known: the filter's are."""
    _, filter = operands("float32")
    window = convolving.window((120, 150), filter.shape, "same")
    assert not ranges.wide(None, Filter(filter), window, 0.0)
    filter[3, 4] = 1e15
    assert ranges.wide(None, Filter(filter), window, 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "block"), [((1, 1), (4, 16)), ((9, 50), (4, 16)), ((101, 63), (21, 20))]
)
def test_block_sums(shape, block, dtype):
    planes = rng.standard_normal((3, *shape)).astype(dtype)
    sums, peaks = cpu_ranges.block_sums(planes[:, ::-1], *block)
    down, across = max(shape[0] // block[0], 1), max(shape[1] // block[1], 1)
    assert sums.shape == (3, down, across)
    expected = np.empty_like(sums)
    for i in range(down):
        for j in range(across):
            rows = slice(i * shape[0] // down, (i + 1) * shape[0] // down)
            columns = slice(j * shape[1] // across, (j + 1) * shape[1] // across)
            part = abs(planes[:, ::-1].astype("f8"))[:, rows, columns]
            expected[:, i, j] = part.sum(axis=(1, 2))
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
    assert (peaks >= abs(planes).max(axis=(1, 2))).all()
    assert (peaks <= sums.max(axis=(1, 2)) * (1 + 1e-12)).all()


# -- Filters of low rank -------------------------------------------------------------------------

GAUSS = np.exp(-(np.arange(-7, 8) ** 2) / 9.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("noise", [0.0, 5.0, 30.0, 300.0])
def test_factors_are_as_close_as_they_promise(noise, dtype):
    eps, even = np.finfo(dtype).eps, 1.0 + 0.5 * np.cos(np.arange(15))
    for terms in (1, 2):
        filter = np.outer(even, even) + (terms - 1) * np.outer(np.arange(15), np.ones(15))
        filter = filter + noise * eps * filter.mean() * rng.standard_normal(filter.shape)
        filter = filter.astype(dtype)
        found = low_rank(filter)
        assert found is not None or noise
        if found is not None:
            made = found[0].T.astype("f8") @ found[1].astype("f8")
            assert abs(filter - made).sum() <= 2 * eps * abs(filter.astype("f8")).sum() * (1 + 1e-9)


def test_no_tap_is_lost_beside_larger_ones():
    """What a product of a column and a row misses, the image may meet where all else is zero."""
    for large, small in ((1.0, 1e-17), (1e292, 1e-238), (1e20, 1.0)):
        filter = small * rng.random((9, 9))
        filter[2, 3] = large
        assert low_rank(filter) is None
        image = np.zeros((40, 40))
        image[::20, ::20] = 1.0
        for mode in ("same", "full"):
            found = hetero.convolve2d(image, filter, mode)
            np.testing.assert_allclose(found, convolve2d(image, filter, mode), rtol=1e-12)


def test_filters_whose_products_cancel_are_still_of_low_rank():
    k = np.arange(21) - 10
    squares = k[:, None] ** 2 + k**2
    laplacian = (squares / 16.0 - 0.5) * np.exp(-squares / 8.0)
    assert (laplacian == 0.0).any()
    for filter in (laplacian, np.outer(GAUSS, GAUSS) - np.outer(GAUSS**2, GAUSS**2)):
        for dtype in DTYPES:
            assert len(low_rank(filter.astype(dtype))[0]) == 2
