"""What the direct sum has exactly, every method has: zeros, whole numbers, nothing negative.

A result is 0 where every product is; whole if operands are, as long as sums fit the dtype; not
negative if no operand is.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from convolutions import REAL, WAYS, obstacle, scipys

import hetero

OTHERS = [way for way in WAYS if way.values[1] in ("fft", "separable")]
EXTENSIONS = [
    *((mode, boundary, 0.0) for mode in ("full", "same", "valid") for boundary in ("wrap", "symm")),
    *((mode, "fill", 0.0) for mode in ("full", "same", "valid")),
    *(("same", "fill", fillvalue) for fillvalue in (2.0, 0.25)),
]
y, x = np.mgrid[-12:13, -12:13]
disc = (x * x + y * y <= 144).astype(float)
laplacian = ((x * x + y * y) / 16.0 - 0.5) * np.exp(-(x * x + y * y) / 8.0)  # 0 at some taps


@cache
def cases(dtype):
    """Name -> image, filter."""
    rng = np.random.default_rng(6)
    spots, dense = np.zeros((170, 60)), 0.5 + rng.random((170, 60))
    spots[30:34, 40:43], spots[0, 7], spots[130:, 59], spots[90, 20] = 1, 1, 2, 3
    box = np.outer([1, 2, 3, 2, 1], [2, 3, 6, 3, 2])
    found = {
        "a mask and a disc": (spots, disc),
        "broken numbers": (spots * 0.3, disc * rng.random(disc.shape)),
        "negative ones": (-0.3 * spots, disc - 0.5 * (disc > 0)),
        "zeros of the filter at the corners": (dense, disc),
        "a column and a row": (spots, box),
        "products that cancel": (spots * 0.3, laplacian[4:21, 4:21]),
        "both signs": (rng.integers(-9, 9, dense.shape), np.rint(30 * laplacian[4:21, 4:21])),
        "nothing": (0.0 * spots, laplacian),
        "no zeros": (dense, rng.random((9, 9))),
        "zeros one by one": (np.where(np.indices(dense.shape).sum(0) % 59, dense, 0), box + 0.1),
        "zeros in a column": (dense * (np.arange(170) % 20 > 9)[:, None], box[:, :1] + 0.1),
    }
    return {name: tuple(x.astype(dtype) for x in pair) for name, pair in found.items()}


@cache
def expected(name, dtype, mode, boundary, fillvalue):
    """SciPy's result, and of how many products in each neither factor is 0."""
    image, filter = cases(dtype)[name]
    support = [(x != 0.0).astype(float) for x in (image, filter)]
    found = scipys(image, filter, mode, boundary, fillvalue)
    return found, scipys(*support, mode, boundary, float(fillvalue != 0.0))


def exact(found, name, dtype, *options):
    """As SciPy's result in all that is promised."""
    direct, met = expected(name, dtype, *options)
    operands = *cases(dtype)[name], np.array(options[2])
    assert (found[met == 0.0] == 0.0).all(), name
    assert (found >= 0.0).all() or any((x < 0.0).any() for x in operands), name
    if all((x == np.rint(x)).all() for x in operands):
        np.testing.assert_array_equal(found, direct, err_msg=name)
    np.testing.assert_allclose(found, direct, 0, 1e-5 * abs(direct).max(initial=1), err_msg=name)


def every_case(device, method, dtype):
    ran = 0
    for name, operands in cases(dtype).items():
        for options in EXTENSIONS:
            given = dict(zip(("mode", "boundary", "fillvalue"), options, strict=True))
            if method is None or obstacle(*operands, device, method, **given) is None:
                found = hetero.convolve2d(*operands, *options, device=device, method=method)
                exact(found, name, dtype, *options)
                ran += 1
    assert ran


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize(("device", "method"), [pytest.param(None, None, id="chosen"), *OTHERS])
def test_what_the_direct_sum_has_exactly(device, method, dtype):
    every_case(device, method, dtype)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.3 + 0.7j])
def test_zeros_come_and_go_after_a_remembered_call(scale, dtype):
    """By default, of masks and of an image without zeros, of one shape."""
    y, x = np.mgrid[-20:21, -20:21]
    dilate = (x * x + y * y <= 400).astype(dtype)
    full, mask = np.ones((80, 90), dtype), np.zeros((80, 90), dtype)
    mask[30:34, 40:43] = 1.0
    assert hetero.plan("convolve2d", mask, dilate, mode="same").chosen.method == "fft"
    for image in (mask, mask, full, full, mask):
        image = (scale * image).astype(np.result_type(dtype, np.min_scalar_type(scale)))
        found = hetero.convolve2d(image, dilate, "same")
        direct = scipys(image, dilate, "same")
        np.testing.assert_array_equal(found != 0.0, direct != 0.0)
        np.testing.assert_allclose(found, direct, rtol=1e-4)
        assert min(found.real.min(), found.imag.min()) >= 0.0
        if scale == 1.0:
            np.testing.assert_array_equal(found, direct)


@pytest.mark.parametrize("shapes", [((900, 1), (1, 800)), ((1, 900), (800, 1)), ((1, 1), (30, 40))])
def test_a_column_and_a_row_are_one_product_each(shapes):
    """Priced and computed so, whatever of it is wanted; infinity meets the zeros beyond."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape) for shape in shapes)
    plan = hetero.plan("convolve2d", a, b, device="cpu")
    assert plan.chosen.method == "direct"
    large = hetero.plan("convolve2d", rng.random((900, 800)), np.ones((1, 1)), device="cpu")
    assert plan.chosen.seconds < 2.0 * large.chosen.seconds
    for mode in ("full", "same"):
        np.testing.assert_array_equal(hetero.convolve2d(a, b, mode), scipys(a, b, mode))
    b[0, 0] = np.inf
    np.testing.assert_array_equal(hetero.convolve2d(a, b), scipys(a, b))


# -- cuFFT's transforms, by NumPy ------------------------------------------------------------------
