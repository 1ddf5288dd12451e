"""Calls of convolve2d one after the other: what is remembered of one is not another's.

Each call is made cold, then remembered, then with one option changed, in one process.
"""

from __future__ import annotations

import contextlib
import warnings
from itertools import product

import numpy as np
import pytest
from convolutions import agrees
from scipy.signal import convolve2d

import hetero
from hetero.errors import MethodNotAvailable

rng = np.random.default_rng(8)
# By size: SciPy's own loop, the direct sum, a filter of low rank, transforms.
SIZES = {
    "small": ((8, 9), (3, 3), False),
    "direct": ((70, 61), (5, 6), False),
    "separable": ((120, 110), (15, 14), True),
    "transform": ((90, 100), (31, 30), False),
}


def operands(size):
    shape, taps, low = SIZES[size]
    image, filter = (9 * rng.random(n) - 4.5 for n in (shape, taps))
    return image, np.outer(filter[:, 0], filter[0]) if low else filter


def right(found, a, b):
    """As SciPy's; NaN and infinity where it has them."""
    expected = convolve2d(a, b, "same")
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    usual = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), usual)
    largest = abs(a[np.isfinite(a)]).max() + 4.0
    bound = 100 * np.finfo(float).eps * largest * abs(b[np.isfinite(b)]).sum()
    assert (abs(found[usual] - expected[usual]) <= bound).all()


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
@pytest.mark.parametrize("size", SIZES)
def test_other_operands_after_a_remembered_call(size):
    a, b = operands(size)
    for change in OPERANDS.values():
        right(hetero.convolve2d(a, b, "same"), a, b)
        x, y = change(a, b)
        for _ in range(2):
            right(hetero.convolve2d(x, y, "same"), x, y)
    right(hetero.convolve2d(a, b, "same"), a, b)


@pytest.mark.parametrize("size", [(6, 7), (130, 140)])
def test_infinity_beside_complex_numbers(size):
    """A real operand counts as complex, whatever the sizes: zero times infinity is NaN."""
    values = rng.random(size), rng.random((5, 4))
    for real, bad, value in product((0, 1), (0, 1), (np.inf, -np.inf, np.nan)):
        given = [x.copy() for x in values]
        given[bad][2, 3] = value
        given[1 - real] = given[1 - real] + 0.5j
        found, expected = (convolve(*given, "same") for convolve in (hetero.convolve2d, convolve2d))
        np.testing.assert_array_equal(np.isnan(found.real), np.isnan(expected.real))
        np.testing.assert_array_equal(np.isnan(found.imag), np.isnan(expected.imag))


# -- What SciPy takes, refuses and warns of ------------------------------------------------------


def outcome(function, *args):
    """(result or type of the exception, categories of the warnings)."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            result = function(*args)
        except Exception as error:
            return type(error), []
    return result, [w.category for w in found]


A, B = np.ones((200, 201)), np.ones((3, 3))
VALUES = (10**400, 1e300, -1e300, 2**70)
EDGE_CASES = [
    (np.ones((8, 31)), np.zeros((0, 0)), "same"),
    (np.ones((8, 31)), np.zeros((0, 3)), "same"),
    (A, B, "full", (1, 2)),
    (np.ones((3, 5)), np.ones((4, 2)), "valid", ["fill"]),  # shapes come before the boundary
    (np.ones((3, 5)), np.ones((4, 2)), "valid", "x"),
    (A, B, "full", None),
    (A, B, (1, 2)),
    (A, B, np.str_("valid"), np.str_("symm")),
    *(
        (A.astype(dtype), B.astype(dtype), "same", boundary, value)
        for dtype, boundary, value in product(("f4", "f8", "i4"), ("fill", "wrap"), VALUES)
    ),
]


def test_errors_and_warnings_are_scipys():
    for case in EDGE_CASES:
        expected, warned = outcome(convolve2d, *case)
        for _ in range(2):
            found, also = outcome(hetero.convolve2d, *case)
            assert also == warned, case
            agrees(found, expected, str(case))


@pytest.mark.parametrize("size", SIZES)
def test_floating_point_flags_raise_nothing(size):
    """SciPy's loops look at none: what underflows on the way is nobody's."""
    a, b = operands(size)
    x = np.arange(-20, 21)
    narrow = np.exp(-(x**2) / 2 / 0.5**2)
    tails = np.outer(narrow, narrow)
    huge = np.full(b.shape, 1e308)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for image, filter in (
            (a, tails), (a, 1e-300 * b), (1e-300 * a, b), (1e300 * a, b), (a, huge),
            (1e-200 * a, 1e-200 * b), (a, np.full((1, 1), 1e-320)), (1e300 * a, 1e200 * b),
            (1e300 * a, np.full((1, 1), 1e200)), (with_nan(a), b), (a + 1j * a, 1e300j * b),
            (1e-300 * a.astype("c16"), 1e-300 * b),
        ):  # fmt: skip
            for mode in ("same", "full"):
                found = hetero.convolve2d(image, filter, mode)
                assert found.dtype == np.result_type(image, filter)
            for method in ("fft", "separable"):
                with contextlib.suppress(MethodNotAvailable):
                    hetero.convolve2d(image, filter, method=method)
