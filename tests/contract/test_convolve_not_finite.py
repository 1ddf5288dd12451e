"""NaN, infinity and values that range widely: what a transform would spread or lose."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import (
    BOUNDARIES,
    MODES,
    REAL,
    close,
    each_way,
    images,
    not_finite,
    obstacle,
    outcome,
    scipys,
    spreads,
)

import hetero.ops
from hetero.errors import MethodNotAvailable

pytestmark = pytest.mark.usefixtures("no_failure")


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", not_finite("float64"))
def test_not_finite(case, dtype):
    a, b, fillvalue = not_finite(dtype)[case]
    for mode in MODES:
        for boundary in BOUNDARIES:
            options = (mode, boundary, fillvalue)
            spreads(outcome(hetero.convolve2d, a, b, *options), a, b, *options)
            spreads(outcome(hetero.convolve2d, a, b, *options, device="cpu"), a, b, *options)


@each_way
def test_not_finite_with_a_method_forced(device, method):
    for case, (a, b, fillvalue) in not_finite("float32").items():
        for boundary in ("fill", "symm"):
            if boundary == "symm" and "around" in case and np.isfinite(a).all():
                continue
            options = {"mode": "same", "boundary": boundary, "fillvalue": fillvalue}
            reason = obstacle(a, b, device, method, **options)
            if method == "direct":
                assert reason is None, case
            if method in ("fft", "separable"):
                assert reason is not None, case
            if reason is None:
                result = outcome(hetero.convolve2d, a, b, **options, device=device, method=method)
                spreads(result, a, b, *options.values())
            else:
                if method == "fft":
                    assert "finite" in reason, reason
                with pytest.raises(MethodNotAvailable):
                    hetero.convolve2d(a, b, **options, device=device, method=method)


def test_plans_do_not_outlive_the_values():
    """The same arrays, finite and not in turn."""
    a, b = images((200, 210)), images((41, 40))
    kept = a.copy()
    for _ in range(2):
        close(hetero.convolve2d(a, b, "same"), a, b, mode="same")
        assert obstacle(a, b, "cpu", "fft", mode="same") is None
        a[100, 7] = np.nan
        spreads(hetero.convolve2d(a, b, "same"), a, b, "same", "fill", 0)
        assert "finite" in obstacle(a, b, "cpu", "fft", mode="same")
        a[...] = kept
        b[3, 4] = np.inf
        spreads(outcome(hetero.convolve2d, a, b, "same"), a, b, "same", "fill", 0)
        b[3, 4] = 0.25


def test_not_finite_in_a_stack_stays_in_its_image():
    a, b = images((3, 60, 61)), images((30, 31))
    a[1, 20, 20] = np.nan
    result = hetero.convolve2d(a, b, "same")
    for image, expected in zip(result, a, strict=True):
        spreads(image, expected, b, "same", "fill", 0)
    assert np.isfinite(result[::2]).all()


def test_not_finite_complex():
    a, b = images((50, 51), "complex128"), images((20, 21), "complex128")
    a[3, 4], a[40, 40] = complex(0, np.nan), complex(np.inf, 1)
    expected = outcome(scipys, a, b, "same")
    result = outcome(hetero.convolve2d, a, b, "same")
    usual = np.isfinite(expected)
    assert usual.any()
    np.testing.assert_array_equal(np.isfinite(result), usual)
    np.testing.assert_allclose(result[usual], expected[usual], rtol=0, atol=1e-12 * b.size)


def test_large_values_do_not_overflow_on_the_way():
    """Sums that the dtype holds, though the sum over the whole image would not fit."""
    a, b = np.full((150, 140), 1e37, "f4"), np.full((41, 40), 0.01, "f4")
    b += 1e-3 * images(b.shape, "f4")
    result = outcome(hetero.convolve2d, a, b, "same")
    np.testing.assert_allclose(result, scipys(a, b, "same"), rtol=1e-3)
