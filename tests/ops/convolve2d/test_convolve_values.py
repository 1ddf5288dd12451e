"""What convolve2d makes of values: of very different size, not finite, remembered, refused.

By default no value is lost beneath the largest. A transform's error is eps times the largest values
all over its tile; the direct sum's is eps times what it adds up at a point. Bounds here are 1e3 eps
of the sum of the products' absolute values, at every point, as `hetero.convolve2d` promises.
"""

from __future__ import annotations

import contextlib
import warnings
from itertools import product

import numpy as np
import pytest
from convolutions import agrees, obstacle, spreads
from scipy.signal import convolve2d

import hetero
from hetero.errors import MethodNotAvailable

rng = np.random.default_rng(41)
DTYPES = ["float32", "float64"]


def eps_lost(result, image, filter, *options):
    """The largest error, in eps of the sum of the products' absolute values there."""
    image, filter, options = image.astype("f8"), filter.astype("f8"), options or ("same",)
    rows = slice(0, len(result))
    sums = convolve2d(abs(image), abs(filter), *options)[rows]
    error = abs(result - convolve2d(image, filter, *options)[rows])
    return (error[sums > 0] / (np.finfo(result.dtype).eps * sums[sums > 0])).max(initial=0.0)


def operands(dtype):
    return rng.random((120, 150)).astype(dtype), rng.standard_normal((31, 30)).astype(dtype)


PATCH = np.ones((120, 150), bool)
PATCH[40:110, 50:140] = False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("at", "where"), [(0, (10, 10)), (0, PATCH), (1, (0, 0)), (1, (15, 15))])
@pytest.mark.parametrize("value", [1e6, 1e20])
def test_small_values_are_kept(at, where, value, dtype):
    """Cold, and once calls of these shapes and dtypes are remembered as transforms."""
    even, filter = operands(dtype)
    image, taps = even.copy(), filter.copy()
    (image, taps)[at][where] = value
    assert eps_lost(hetero.convolve2d(image, taps, "same"), image, taps) < 1e3
    for _ in range(2):
        hetero.convolve2d(even, filter, "same")
    assert eps_lost(hetero.convolve2d(image, taps, "same"), image, taps) < 1e3
    plan = hetero.plan("convolve2d", image, taps, mode="same")
    reasons = {c.method: c.reason for c in plan.candidates if c.device == "cpu"}
    assert "size" in reasons["fft"]
    lost = eps_lost(hetero.convolve2d(image, taps, "same", method="fft"), image, taps)
    assert lost > 1e3, "a transform would have done"


def test_by_name_a_transform_takes_all_that_is_finite():
    """Also where sums over blocks, looked at where it is not named, would overflow."""
    image, filter = np.full((120, 150), 1e308), np.full((31, 30), 1e-6)
    for _ in range(2):
        found = hetero.convolve2d(image, filter, "same", device="cpu", method="fft")
        np.testing.assert_allclose(found, convolve2d(image, filter, "same"), rtol=1e-12)
        image.flags.writeable = False
    for values in (image.copy(), image[::-1, ::-2].copy()):
        values[7, 6] = np.nan
        for array in (values, values[::-1, ::2], values.T):
            with pytest.raises(MethodNotAvailable, match="finite"):
                hetero.convolve2d(array, filter, "same", method="fft")


@pytest.mark.parametrize("dtype", DTYPES)
def test_even_values_are_transformed(dtype):
    """Values of one size, also where some are zero, or where they are spread evenly."""
    image, filter = operands(dtype)
    dark, bright = image.copy(), 10.0 * image
    dark[60:] = 0.0
    bright[rng.integers(0, 120, 20), rng.integers(0, 150, 20)] = 65535.0
    spread = (10.0 ** rng.uniform(-10, 10, image.shape)).astype(dtype)
    y, x = np.mgrid[-15:16, -15:16]
    peak = np.exp(-(0.3 * x * x + 0.2 * y * y + 0.2 * x * y)).astype(dtype)
    for a, b in (
        *((a, filter) for a in (image, dark, bright, spread, 1e30 * image, 1e-30 * image)),
        *((image, b) for b in (peak, 1e30 * filter)),
        (np.zeros_like(image), filter),
    ):
        assert hetero.plan("convolve2d", a, b, mode="same").chosen.method == "fft"
        found = hetero.convolve2d(a, b, "same")
        if a is dark:  # where all is zero, rounding is all there is
            a, found = a[:60], found[:45]
        assert eps_lost(found, a, b) < 1e3


def test_the_fill_value_and_each_image_count():
    image, filter = operands("float64")
    for fillvalue, kept in ((2.0, True), (1e12, False), (1e12, False), (2.0, True)):
        plan = hetero.plan("convolve2d", image, filter, mode="same", fillvalue=fillvalue)
        assert (plan.chosen.method == "fft") == kept
        found = hetero.convolve2d(image, filter, "same", "fill", fillvalue)
        expected = convolve2d(image, filter, "same", "fill", fillvalue)
        np.testing.assert_allclose(found[40:80, 40:80], expected[40:80, 40:80], rtol=1e-9)
    stack = np.stack([image, 1e20 * image, image])
    assert hetero.plan("convolve2d", stack, filter, mode="same").chosen.method == "fft"
    stack[1, 3, 4] = 1e40
    assert hetero.plan("convolve2d", stack, filter, mode="same").chosen.method == "direct"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fill_value_that_no_result_reads_changes_nothing(dtype, device):
    """Tiles reach beyond the image all the same, at its lower and its right edge."""
    large, small = rng.random((300, 310)).astype(dtype), rng.random((41, 30)).astype(dtype)
    dot = np.full((1, 1), 3.0, dtype)
    modes = {"valid": small, "full": dot, "same": dot}
    for method, (mode, filter) in product((None, "fft"), modes.items()):
        options = {"mode": mode, "method": method, "device": device}
        expected = hetero.convolve2d(large, filter, fillvalue=0, **options)
        for fillvalue in (1e20, np.nan):
            found = hetero.convolve2d(large, filter, fillvalue=fillvalue, **options)
            np.testing.assert_array_equal(found, expected, err_msg=f"{method} {mode}")


@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
@pytest.mark.parametrize("peaks", [np.s_[15, 15:17], np.s_[:2, :2], np.s_[-2:, 7:9]])
def test_peaks_of_a_filter_next_to_zeros(peaks, boundary):
    image, filter = np.pad(rng.random((60, 70)), 40), rng.random((31, 31))
    filter[peaks] = 1e12
    for mode in ("same", "valid", "full"):
        options = mode, boundary
        by_fft = hetero.convolve2d(image, filter, *options, method="fft", device="cpu")
        assert eps_lost(by_fft, image, filter, *options) > 1e3
        found = hetero.convolve2d(image, filter, *options)
        assert eps_lost(found, image, filter, *options) < 1e3


# -- Filters of low rank -------------------------------------------------------------------------


def test_no_tap_is_lost_next_to_larger_ones():
    """What a product of a column and a row misses, the image may meet where all else is zero."""
    image = np.zeros((40, 40))
    image[::20, ::20] = 1.0
    for large, small in ((1.0, 1e-17), (1e292, 1e-238), (1e20, 1.0)):
        filter = small * rng.random((9, 9))
        filter[2, 3] = large
        assert "rank" in obstacle(image, filter, "cpu", "separable")
        for mode in ("same", "full"):
            found = hetero.convolve2d(image, filter, mode)
            np.testing.assert_allclose(found, convolve2d(image, filter, mode), rtol=1e-12)


def test_products_of_a_filter_may_cancel_but_where_it_is_zero():
    squares, image = np.add.outer(np.arange(-10, 11) ** 2, np.arange(-10, 11) ** 2), np.ones((9, 9))
    for scale, zeros in ((16.0, True), (16.3, False)):
        laplacian = (squares / scale - 0.5) * np.exp(-2.0 * squares / scale)
        assert (laplacian == 0.0).any() == zeros
        reason = obstacle(image, laplacian, "cpu", "separable")
        assert "rank" in reason if zeros else reason is None


# -- One call after the other: what is remembered of one is not another's --------------------------

# By size: SciPy's own loop, the direct sum, a filter of low rank, transforms.
SIZES = {
    "small": ((8, 9), (3, 3), False),
    "direct": ((70, 61), (5, 6), False),
    "separable": ((120, 110), (15, 14), True),
    "transform": ((90, 100), (31, 30), False),
}


def sized(size):
    shape, taps, low = SIZES[size]
    image, filter = (9 * rng.random(n) - 4.5 for n in (shape, taps))
    return image, np.outer(filter[:, 0], filter[0]) if low else filter


def with_nan(a):
    a = a.copy()
    a[3, 4], a[5, 1] = np.nan, np.inf
    return a


# What differs in kind, dtype or layout alone is in `tests/calling/test_warm_calls.py`.
OPERANDS = {
    "other values": lambda a, b: (2 * a, b + 1),
    "full rank": lambda a, b: (a, rng.random(b.shape)),
    "NaN in the image": lambda a, b: (with_nan(a), b),
    "infinity in the filter": lambda a, b: (a, np.where(b == b[1, 1], np.inf, b)),
    "byte order": lambda a, b: (a.astype(">f8"), b),
    "filter of that many taps": lambda a, b: (a, np.ascontiguousarray(b.T)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("named", [{}, {"device": "cpu"}, {"method": "direct"}])
@pytest.mark.parametrize("size", SIZES)
def test_other_operands_after_a_remembered_call(size, named):
    a, b = sized(size)
    for change in OPERANDS.values():
        for x, y in ((a, b), change(a, b), change(a, b), (a, b)):
            spreads(hetero.convolve2d(x, y, "same", **named), x, y, "same", "fill", 0)


@pytest.mark.parametrize("size", [(6, 7), (130, 140)])
def test_infinity_next_to_complex_numbers(size):
    """A real operand counts as complex, whatever the sizes: zero times infinity is NaN."""
    values = rng.random(size), rng.random((5, 4))
    for real, bad, value in product((0, 1), (0, 1), (np.inf, np.nan)):
        given = [x.copy() for x in values]
        given[bad][2, 3] = value
        given[1 - real] = given[1 - real] + 0.5j
        found, expected = (convolve(*given, "same") for convolve in (hetero.convolve2d, convolve2d))
        np.testing.assert_array_equal(np.isnan(found.real), np.isnan(expected.real))
        np.testing.assert_array_equal(np.isnan(found.imag), np.isnan(expected.imag))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_fill_values_beyond_the_dtype_warn_as_scipys(dtype):
    for boundary, value in product(("fill", "wrap"), (10**400, 1e300, 2**70)):
        case = np.ones((200, 201), dtype), np.ones((3, 3), dtype), "same", boundary, value
        expected, warned = outcome(convolve2d, *case)
        for _ in range(2):
            found, also = outcome(hetero.convolve2d, *case)
            assert also == warned, case
            agrees(found, expected, str(case))


def outcome(function, *args):
    """(result or type of the exception, categories of the warnings)."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            return function(*args), [w.category for w in found]
        except Exception as error:
            return type(error), []


@pytest.mark.parametrize("size", SIZES)
def test_floating_point_flags_raise_nothing(size):
    """SciPy's loops look at none: what underflows on the way is nobody's."""
    a, b = sized(size)
    narrow = np.exp(-(np.arange(-20, 21) ** 2) / 2 / 0.5**2)
    tails = np.outer(narrow, narrow)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for image, filter in (
            (a, tails), (a, 1e-300 * b), (1e-300 * a, b), (1e300 * a, b),
            (a, np.full(b.shape, 1e308)), (1e-200 * a, 1e-200 * b), (a, np.full((1, 1), 1e-320)),
            (1e300 * a, 1e200 * b), (1e300 * a, np.full((1, 1), 1e200)), (with_nan(a), b),
            (a + 1j * a, 1e300j * b), (1e-300 * a.astype("c16"), 1e-300 * b),
        ):  # fmt: skip
            for mode in ("same", "full"):
                hetero.convolve2d(image, filter, mode)
            for method in ("fft", "separable"):
                with contextlib.suppress(MethodNotAvailable):
                    hetero.convolve2d(image, filter, method=method)
