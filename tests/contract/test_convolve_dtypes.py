"""hetero.convolve2d with every dtype, layout and type of array, as SciPy has them."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import BOUNDARIES, MODES, check, images, rng
from layouts import LAYOUTS
from scipy import signal

import hetero.ops

pytestmark = pytest.mark.usefixtures("no_failure")

DTYPES = [
    "float32", "float64", "float16", "longdouble", "complex64", "complex128", "clongdouble",
    "bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", ">f4", ">f8", ">i4",
    ">c8", "object",
]  # fmt: skip


@pytest.mark.parametrize("first", DTYPES)
def test_dtypes(first):
    for number, second in enumerate(DTYPES):
        a = (5 * rng.random((6, 7))).astype(first)
        b = (5 * rng.random((3, 2))).astype(second)
        mode, boundary = MODES[number % 3], BOUNDARIES[number // 3 % 3]
        check(a, b, None, mode=mode, boundary=boundary)
        check(a, b, None, fillvalue=2)


def test_dtypes_with_a_device_forced(opencl):
    """What the device does not compute in comes out right all the same."""
    for first in DTYPES:
        a, b = (9 * rng.random((8, 9))).astype(first), (9 * rng.random((3, 4))).astype(first)
        for device in ("cpu", opencl):
            check(a, b, {"device": device}, mode="same", boundary="symm")


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "U3", "S3", "V4", [("x", "f4")]], ids=str)
def test_dtypes_that_scipy_refuses(dtype):
    a = np.zeros((3, 3), dtype)
    for first, second in ((a, a), (a, np.ones((2, 2))), (np.ones((2, 2)), a)):
        assert isinstance(check(first, second), type)


def test_integers_wrap_around():
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, (12, 13), dtype)
        b = rng.integers(info.min, info.max, (4, 5), dtype)
        for boundary in BOUNDARIES:
            check(a, b, None, mode="same", boundary=boundary, fillvalue=100)


def test_integers_are_exact_however_large_the_filter():
    """Sums beyond what double precision holds, where a transform would be the fastest."""
    a = rng.integers(-(2**31), 2**31, (90, 91))
    b = rng.integers(-(2**25), 2**25, (40, 41))
    assert abs(check(a, b, None, mode="same")).max() > 2**55


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex(dtype):
    for sizes in (((20, 21), (3, 4)), ((60, 61), (31, 30)), ((3, 16, 17), (5, 5))):
        a, b = images(sizes[0], dtype), images(sizes[1], dtype)
        for mode in MODES:
            for boundary in BOUNDARIES:
                check(a, b, None, mode=mode, boundary=boundary, fillvalue=1 - 2j)
                check(a, b.real, None, mode=mode, boundary=boundary, fillvalue=2j)
        forced = {"device": "cpu", "method": "fft"}
        check(a, b, forced, mode="same", boundary="wrap")


@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(layout_a, layout_b, opencl):
    for dtype in ("float32", "float64", "int16"):
        a = LAYOUTS[layout_a]((20 * images((2, 11, 14))).astype(dtype))
        b = LAYOUTS[layout_b]((20 * images((4, 3))).astype(dtype))
        a.flags.writeable = b.flags.writeable = False
        for first in (a, a[1]):
            for forced in (None, {"device": "cpu", "method": "direct"}, {"device": opencl}):
                if dtype == "int16" and forced and "method" in forced:
                    continue
                check(first, b, forced, mode="same", boundary="symm")


def test_misaligned():
    raw = np.zeros(8 * 60 + 3, np.uint8)
    a = raw[3:].view(np.float64).reshape(6, 10)
    a[...] = images((6, 10))
    assert not a.flags.aligned
    check(a, images((3, 3)))


class Tagged(np.ndarray):
    """A subclass, which SciPy does not carry through."""


def test_types():
    a, b = rng.integers(0, 9, (4, 5)), rng.integers(0, 9, (2, 2))
    cases = [
        a.tolist(),
        tuple(map(tuple, a.tolist())),
        a.view(np.matrix),
        a.view(Tagged),
        np.ma.masked_array(a, a > 3),
        [[1.5]],
        [[]],
        [],
        2.0,
        "text",
        None,
        [[1, 2], [3]],
        object(),
    ]
    for case in cases:
        check(case, b)
        check(b, case)


@pytest.mark.parametrize("dtypes", [(">f4", ">f4"), ("float32", "float64"), ("int32", ">f8")])
@pytest.mark.parametrize("shape", [(5, 5), (2, 40, 41)])
def test_scipys_method_answers_as_scipy_where_it_is_named(shape, dtypes):
    values = np.random.default_rng(0)
    image, filter = (
        (9 * values.random(s)).astype(d) for s, d in zip((shape, (5, 2)), dtypes, strict=True)
    )
    images = image.reshape(-1, *shape[-2:])
    expected = np.stack([signal.convolve2d(one, filter) for one in images])
    found = hetero.convolve2d(image, filter, method="scipy")
    assert found.dtype == expected.dtype
    assert np.array_equal(found.reshape(expected.shape), expected)
    plan = hetero.plan("convolve2d", image, filter, method="scipy")
    assert {leaf.chosen.method for leaf in plan.leaves()} == {"scipy"}


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "V8", "f4,f4", "object"])
def test_a_plan_refuses_the_dtypes_that_a_call_refuses(dtype):
    other = np.ones((4, 4)).astype(object) if dtype == "object" else np.zeros((4, 4), dtype)
    for operands in ((np.eye(4), other), (other, np.eye(4)), (other, other)):
        with pytest.raises((TypeError, ValueError)) as refused:
            hetero.convolve2d(*operands)
        with pytest.raises(refused.type) as planned:
            hetero.plan("convolve2d", *operands)
        assert str(planned.value) == str(refused.value)
