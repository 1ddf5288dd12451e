"""hetero.convolve2d behaves as scipy.signal.convolve2d, image by image, with every method.

Whole numbers are exact. Real and complex results lie within a bound around the sum in extended
precision: direct sums within (terms + 2) eps times the sum of the products' absolute values; what
goes by transforms or by factors of the filter within a multiple of eps times the norms.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from scipy import signal

import hetero
import hetero.ops
from hetero import devices
from hetero.arrays import describe, spec
from hetero.errors import DeviceNotAvailable, MethodNotAvailable
from hetero.kernels.convolution.rungs import RUNGS
from hetero.ops.convolve2d.operands import described
from hetero.ops.convolve2d.window import window_of
from hetero.runtime import call_cache, compiling, registry

rng = np.random.default_rng(23)
MODES = ["full", "same", "valid"]
BOUNDARIES = ["fill", "wrap", "symm"]
PAD = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}
REAL = ["float32", "float64"]


@pytest.fixture(autouse=True)
def no_failure():
    """A device that failed would go unnoticed: the CPU answers for it."""
    yield
    assert not devices.troubles(), "the device failed, the CPU answered"


def scipys(in1, in2, *args, **options):
    """What SciPy does, for each image of a stack."""
    stack = np.asarray(in1)
    if stack.ndim < 3:
        return signal.convolve2d(in1, in2, *args, **options)
    images = stack.reshape(-1, *stack.shape[-2:])
    results = [signal.convolve2d(image, in2, *args, **options) for image in images]
    return np.stack(results).reshape(*stack.shape[:-2], *results[0].shape)


_precise = {}  # the latest results of `precisely`


def precisely(a, b, sizes=False, **options):
    """`scipys` in extended precision, of the values or of their absolute ``sizes``.

    SciPy takes most of a second for a filter of a thousand elements, and several methods, devices
    and libraries are compared with the same result, so the latest ones are kept.
    """
    values = [hashlib.sha256(np.ascontiguousarray(x)).digest() for x in (a, b)]
    key = (*values, a.shape, b.shape, a.dtype, b.dtype, sizes, *sorted(options.items()))
    if key not in _precise:
        dtype = "clongdouble" if np.result_type(a, b).kind == "c" or sizes else "longdouble"
        operands = [x.astype(dtype) for x in (a, b)]
        if sizes:
            operands = [abs(x) for x in operands]
        if len(_precise) >= 64:
            del _precise[next(iter(_precise))]
        _precise[key] = scipys(*operands, **options)
        _precise[key].flags.writeable = False
    return _precise[key]


def outcome(function, *args, **options):
    """The result, or the type of the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN, overflow and complex fill values are wanted
            return function(*args, **options)
    except Exception as error:
        return type(error)


def swapped(a, b, mode):
    """Whether 'valid' takes the second operand for the image."""
    return mode == "valid" and any(s < t for s, t in zip(a.shape[-2:], b.shape, strict=True))


def bound_of(a, b, method, mode="full", boundary="fill", fillvalue=0):
    """How far a result may lie from the exact one, element by element or for all of them."""
    dtype = np.result_type(a, b)
    eps = np.finfo(dtype).eps * (4 if dtype.kind == "c" else 1)
    fill = abs(np.clongdouble(fillvalue))
    if method == "direct":
        terms = a[(0,) * (a.ndim - 2)].size if swapped(a, b, mode) else b.size
        sums = precisely(a, b, sizes=True, mode=mode, boundary=boundary, fillvalue=fill)
        return (terms + 2) * eps * sums + np.finfo(dtype).tiny
    a, b = abs(a.astype("clongdouble")), abs(b.astype("clongdouble"))
    if not swapped(a, b, mode):
        around = [(0, 0)] * (a.ndim - 2) + [(n - 1, n - 1) for n in b.shape]
        constant = {"constant_values": fill} if boundary == "fill" else {}
        a = np.pad(a, around, PAD[boundary], **constant)
    norms = np.sqrt((a**2).sum((-2, -1)).max() * (b**2).sum())
    steps = 8 * (np.log2(a.size + b.size) + max(a.shape[-2:] if swapped(a, b, mode) else b.shape))
    return steps * eps * norms + np.finfo(dtype).tiny


def close(result, a, b, method=None, **options):
    """Right in type, dtype and shape, and within the bound of the exact result."""
    dtype = np.result_type(a, b).newbyteorder("=")
    exact = precisely(a, b, **options)
    assert type(result) is np.ndarray
    assert (result.dtype, result.shape) == (dtype, exact.shape)
    bound = np.broadcast_to(bound_of(a, b, method, **options), exact.shape)
    wrong = ~(abs(result - exact) <= bound)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} wrong, by {(abs(result - exact) / bound).max():.3g} bounds"
    )


def same(ours, scipy, a, b, **options):
    """The exception of the same type, or an equal result; rounding where there is any."""
    if isinstance(scipy, type):
        assert isinstance(ours, type), f"a result where SciPy raises {scipy.__name__}"
        assert issubclass(ours, scipy)
        return
    assert not isinstance(ours, type), f"{ours.__name__} where SciPy gives a result"
    assert type(ours) is np.ndarray
    assert (ours.dtype, ours.shape) == (scipy.dtype, scipy.shape)
    assert ours.flags.c_contiguous
    assert ours.flags.writeable
    if scipy.dtype.kind in "fc" and np.size(a) and np.size(b):
        close(ours, np.asarray(a), np.asarray(b), **options)
    else:
        np.testing.assert_array_equal(ours, scipy)


def check(a, b, forced=None, **options):
    """As SciPy does, twice, the second time from memory; gives what SciPy gives."""
    expected = outcome(scipys, a, b, **options)
    for _ in range(2):
        ours = outcome(hetero.convolve2d, a, b, **options, **(forced or {}))
        same(ours, expected, a, b, **options)
    return expected


def ways():
    """(device, method) of everything that can run."""
    found = []
    for name in ("cpu", *devices.available()):
        kind = name.partition(":")[0]
        for implementation in registry.lookup("convolve2d"):
            if implementation.kind == kind and implementation.method != "scipy":  # not for these
                marks = [pytest.mark.gpu] if kind == "cuda" else []
                case = (name, implementation.method)
                found.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return found


WAYS = ways()
each_way = pytest.mark.parametrize(("device", "method"), WAYS)


def obstacle(a, b, device, method, **options):
    """Why the plan says that this method cannot do it there; None where it can."""
    try:
        plan = hetero.plan("convolve2d", a, b, device=device, method=method, **options)
    except MethodNotAvailable as error:
        return str(error)
    (found,) = [c for c in plan.candidates if (c.device, c.method) == (device, method)]
    return found.reason


def images(shape, dtype="float64", seed=None):
    """Noise around zero; with a seed, the same each time."""
    draw = rng if seed is None else np.random.default_rng(seed)
    values = draw.random(shape) - 0.5
    if np.dtype(dtype).kind == "c":
        values = values + 1j * (draw.random(shape) - 0.5)
    return values.astype(dtype)


def test_methods_that_must_be_here():
    named = {param.values for param in WAYS}
    for method in ("direct", "fft", "overlap_save", "separable"):
        assert ("cpu", method) in named
    for name in devices.available():
        for method in ("direct", "separable"):
            assert (name, method) in named
        if name.startswith("cuda"):
            assert (name, "fft") in named
            assert (name, "overlap_save") in named


# -- Shapes, modes, boundaries -------------------------------------------------------------------

IMAGES = [(1, 1), (1, 7), (6, 1), (5, 8), (9, 6), (12, 13)]
FILTERS = [(1, 1), (1, 3), (4, 1), (3, 3), (2, 4), (5, 4), (7, 10), (14, 15)]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("mode", MODES)
def test_shapes(mode, boundary):
    for shape in IMAGES:
        for filter_shape in FILTERS:
            for dtype in REAL:
                check(images(shape, dtype), images(filter_shape, dtype), None, mode=mode,
                      boundary=boundary, fillvalue=0.75)  # fmt: skip
            whole = rng.integers(-40, 40, shape), rng.integers(-40, 40, filter_shape)
            check(*whole, None, mode=mode, boundary=boundary, fillvalue=3)


def test_one_memory_for_every_mode_and_boundary():
    """Calls that differ in one option only, or in values only, do not share what they remember."""
    a, b = images((10, 9)), images((4, 3))
    for _ in range(2):
        for mode in MODES:
            for boundary in BOUNDARIES:
                for fillvalue in (0, 2.5, -1):
                    close(hetero.convolve2d(a, b, mode, boundary, fillvalue), a, b, "direct",
                          mode=mode, boundary=boundary, fillvalue=fillvalue)  # fmt: skip
        a *= 2.0
        b += 1.0


def test_defaults_and_positions():
    a, b = rng.integers(0, 9, (6, 7)), rng.integers(0, 9, (3, 2))
    np.testing.assert_array_equal(hetero.convolve2d(a, b), signal.convolve2d(a, b))
    np.testing.assert_array_equal(
        hetero.convolve2d(a, b, "same", "fill", 5), signal.convolve2d(a, b, "same", "fill", 5)
    )
    np.testing.assert_array_equal(
        hetero.convolve2d(in1=a, in2=b, mode="same"), signal.convolve2d(a, b, mode="same")
    )
    with pytest.raises(TypeError):
        hetero.convolve2d(a, b, "same", "fill", 0, "cpu")


def test_aliases_of_boundaries():
    a, b = rng.integers(0, 9, (6, 7)), rng.integers(0, 9, (3, 4))
    for boundary in ("pad", "circular", "symmetric", "reflect"):
        check(a, b, None, boundary=boundary)


# -- Every method on every device ----------------------------------------------------------------

# Images around the edges of tiles and blocks, with odd, even, tall and too large filters.
SIZES = [
    ((9, 12), (3, 3)),
    ((33, 48), (5, 4)),
    ((65, 31), (1, 16)),
    ((8, 9), (12, 11)),
    ((150, 131), (31, 20)),
    ((2, 3, 17, 20), (4, 5)),
]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@each_way
def test_methods(device, method, sizes, dtype):
    # Rungs have blocks of 32 x 16, and are slow unoptimised: more blocks tell nothing new.
    largest = 50 if method in RUNGS else 150
    a = images(tuple(min(n, largest) for n in sizes[0]), dtype, seed=1)
    rank_one = images((sizes[1][0], 1), dtype, 2) * images((1, sizes[1][1]), dtype, 3)
    b = rank_one if method == "separable" else images(sizes[1], dtype, 4)
    reasons = []
    for mode in MODES:
        for boundary in BOUNDARIES:
            options = {"mode": mode, "boundary": boundary, "fillvalue": 1.5}
            reason = obstacle(a, b, device, method, **options)
            if reason is not None:
                assert method not in ("direct", "fft"), reason
                reasons.append(reason)
                with pytest.raises(MethodNotAvailable):
                    hetero.convolve2d(a, b, **options, device=device, method=method)
                continue
            result = hetero.convolve2d(a, b, **options, device=device, method=method)
            close(result, a, b, method, **options)
    if len(reasons) == 9:
        pytest.skip("; ".join(sorted(set(reasons))))


@each_way
def test_operands_are_left_alone_and_results_are_new(device, method):
    a, b = images((40, 50)), np.outer([1.0, 2.0, 1.0], [1.0, 0.0, -1.0])
    if reason := obstacle(a, b, device, method):
        pytest.skip(reason)
    before = a.copy(), b.copy()
    a.flags.writeable = b.flags.writeable = False
    first = hetero.convolve2d(a, b, device=device, method=method)
    kept = first.copy()
    other = images((40, 50))
    second = hetero.convolve2d(other, b, device=device, method=method)
    close(second, other, b, method)
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])
    one = np.ones((1, 1))
    for mode in MODES:
        result = hetero.convolve2d(a, one, mode)
        assert not np.shares_memory(result, a)
        np.testing.assert_array_equal(result, a)


@each_way
def test_repeats_bit_for_bit(device, method):
    for dtype in REAL:
        a, b = images((90, 101), dtype), images((11, 1), dtype) * images((1, 8), dtype)
        if reason := obstacle(a, b, device, method):
            pytest.skip(reason)
        first = hetero.convolve2d(a, b, "same", "symm", device=device, method=method)
        for _ in range(3):
            hetero.convolve2d(a[:50], b[:5], device=device, method=method)
            again = hetero.convolve2d(a, b, "same", "symm", device=device, method=method)
            assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_swapped_operands(mode):
    """The smaller one first: only 'valid' takes the larger for the image."""
    for dtype in (*REAL, "int16", "complex64"):
        a, b = (10 * images((4, 3), dtype)).astype(dtype), (10 * images((11, 9))).astype(dtype)
        for boundary in BOUNDARIES:
            result = check(a, b, None, mode=mode, boundary=boundary)
            assert result.shape == {"full": (14, 11), "same": (4, 3), "valid": (8, 7)}[mode]


# -- Stacks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "complex128"])
@pytest.mark.parametrize("front", [(1,), (3,), (2, 3), (2, 1, 2)])
def test_stacks(front, dtype):
    for filter_shape in ((3, 3), (2, 5), (20, 21)):
        a = (20 * images((*front, 9, 14))).astype(dtype)
        b = (20 * images(filter_shape)).astype(dtype)
        for mode in MODES:
            for boundary in BOUNDARIES:
                check(a, b, None, mode=mode, boundary=boundary, fillvalue=2)


@each_way
def test_stacks_are_their_images(device, method):
    """Bit for bit, and in every layout, whatever does not depend on the size of the whole."""
    a, b = images((2, 3, 30, 33)), np.outer(images(5), images(4))
    if reason := obstacle(a, b, device, method):
        pytest.skip(reason)
    for name, lay in LAYOUTS.items():
        stack = lay(a)
        whole = hetero.convolve2d(stack, b, "same", device=device, method=method)
        close(whole, stack, b, method, mode="same")
        alone = hetero.convolve2d(stack[1, 2], b, "same", device=device, method=method)
        close(alone, stack[1, 2], b, method, mode="same")
        if method == "direct":
            np.testing.assert_array_equal(whole[1, 2], alone, err_msg=name)
    moved = np.moveaxis(images((30, 33, 3)), -1, 0)
    close(hetero.convolve2d(moved, b, device=device, method=method), moved, b, method)


def test_stacks_of_no_images():
    b = np.ones((3, 2), "f4")
    for mode, shape in (("full", (7, 7)), ("same", (5, 6)), ("valid", (3, 5))):
        result = hetero.convolve2d(np.ones((0, 5, 6), "f4"), b, mode)
        assert (result.shape, result.dtype) == ((0, *shape), np.float32)


# -- Dtypes --------------------------------------------------------------------------------------

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


# -- Layouts and types ---------------------------------------------------------------------------


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


# -- What SciPy refuses --------------------------------------------------------------------------

A, B = np.arange(12.0).reshape(3, 4), np.arange(4.0).reshape(2, 2)
BAD = {
    "no axes": (2.0, B, {}),
    "one axis": (A[0], B, {}),
    "filter of one axis": (A, B[0], {}),
    "filter of three axes": (A, B[None], {}),
    "filter without axes": (A, 2.0, {}),
    "both of one axis": (A[0], B[0], {}),
    "mode": (A, B, {"mode": "nonsense"}),
    "mode in capitals": (A, B, {"mode": "SAME"}),
    "number for a mode": (A, B, {"mode": 1}),
    "no mode": (A, B, {"mode": None}),
    "unhashable mode": (A, B, {"mode": ["full"]}),
    "boundary": (A, B, {"boundary": "nonsense"}),
    "boundary that is not implemented": (A, B, {"boundary": "reflect"}),
    "number for a boundary": (A, B, {"boundary": 0}),
    "unhashable boundary": (A, B, {"boundary": ["fill"]}),
    "neither is larger": (np.ones((3, 5)), np.ones((4, 2)), {"mode": "valid"}),
    "nor with a boundary": (
        np.ones((3, 5)),
        np.ones((4, 2)),
        {"mode": "valid", "boundary": "wrap"},
    ),
    "complex fill": (A, B, {"fillvalue": 1j}),
    "complex fill without imaginary part": (A, B, {"fillvalue": 1 + 0j}),
    "complex fill for 'valid'": (A, B, {"fillvalue": 1j, "mode": "valid"}),
    "two fills": (A, B, {"fillvalue": [1, 2]}),
    "two fills in an array": (A, B, {"fillvalue": np.ones(2)}),
    "no fill": (A, B, {"fillvalue": []}),
    "text": (A, B, {"fillvalue": "nonsense"}),
    "object": (A, B, {"fillvalue": object()}),
    "dict": (A, B, {"fillvalue": {}}),
    "text in an array": (A, B, {"fillvalue": np.array("4")}),
    "object in an array": (A, B, {"fillvalue": np.array([3], "O")}),
    "fill out of range": (A.astype("u1"), B.astype("u1"), {"fillvalue": 300}),
    "negative fill": (A.astype("u1"), B.astype("u1"), {"fillvalue": -1}),
    "NaN for whole numbers": (A.astype(int), B.astype(int), {"fillvalue": np.nan}),
    "fill in a wider array": (A.astype("f4"), B.astype("f4"), {"fillvalue": np.array(5)}),
    "two of them": (A, B, {"mode": "x", "boundary": "y", "fillvalue": 1j}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, opencl):
    a, b, options = BAD[case]
    for forced in ({}, {"device": "cpu"}, {"device": opencl}, {"method": "direct"}):
        assert isinstance(check(a, b, forced, **options), type)


def test_bad_input_for_a_stack():
    stack = np.ones((2, 3, 5))
    for b, options, error in (
        (np.ones((4, 2)), {"mode": "valid"}, ValueError),
        (np.ones((2, 2)), {"mode": "x"}, ValueError),
        (np.ones((2, 2)), {"boundary": "x"}, ValueError),
        (np.ones((2, 2)), {"fillvalue": 1j}, ValueError),
        (np.ones((2, 2, 2)), {}, ValueError),
    ):
        assert issubclass(outcome(hetero.convolve2d, stack, b, **options), error)


FILLS = {
    "float64": [0, 1.7, -1.7, True, "3", b"3", 2**53 + 1, [5], [[5]], np.array(5), np.array([[5]]),
                np.float32(2), np.int8(-1), -0.0],
    "float32": [1.7, [5], np.float64(1.7), np.int64(7), np.array([3], "f4"), "3"],
    "int64": [1.7, -1.7, -0.5, True, "3", 2**53 + 1, -(2**60), np.float32(2.5), [5]],
    "int32": [2**31 - 1, 2**31, -1.7, np.int64(7), np.array([[5]])],
    "uint8": [1.7, -0.5, "3", 255, 256, np.int8(-1), np.uint8(7), [5], np.array([[5]])],
    "complex64": [1.7, 1j, "3+1j", 1 - 2j, [5]],
    "complex128": [1 + 2j, np.complex64(1j), None],
}  # fmt: skip


@pytest.mark.parametrize("dtype", FILLS)
def test_fill_values(dtype):
    """Converted as SciPy converts them: truncated, parsed, wrapped or refused."""
    a, b = np.zeros((2, 3), dtype), np.ones((2, 2), dtype)
    for fillvalue in FILLS[dtype]:
        expected = outcome(scipys, a, b, fillvalue=fillvalue)
        ours = outcome(hetero.convolve2d, a, b, fillvalue=fillvalue)
        if isinstance(expected, type):
            assert isinstance(ours, type), f"{fillvalue!r} taken"
            assert issubclass(ours, expected), repr(fillvalue)
        else:
            np.testing.assert_array_equal(ours, expected, err_msg=repr(fillvalue), strict=True)


def test_fill_values_count_for_fill_only():
    a, b = rng.integers(0, 9, (4, 5)), rng.integers(0, 9, (3, 3))
    for boundary in ("wrap", "symm"):
        for fillvalue in (1j, "nonsense", [1, 2], object(), np.nan, 2**70):
            assert not isinstance(check(a, b, None, boundary=boundary, fillvalue=fillvalue), type)
    x, y = images((60, 61)), images((30, 31))
    check(x, y, None, boundary="symm", fillvalue=np.nan)


# -- Nothing to compute --------------------------------------------------------------------------

EMPTY = [
    (first, second)
    for first in ((0, 3), (3, 0), (0, 0), (2, 2))
    for second in ((0, 2), (2, 0), (0, 0), (1, 1), (2, 2))
    if 0 in first or 0 in second
]


def scipy_divides_by_zero(first, second, mode, boundary):
    """SciPy takes the whole process down where it should continue an image of no pixels."""
    return 0 in first and mode == "full" and boundary != "fill" and second[0] > 0


@pytest.mark.parametrize(("first", "second"), EMPTY, ids=str)
def test_empty(first, second, opencl):
    for mode in MODES:
        for boundary in BOUNDARIES:
            if scipy_divides_by_zero(first, second, mode, boundary):
                continue
            for dtype in ("float32", "int64", "complex128"):
                a, b = np.ones(first, dtype), np.ones(second, dtype)
                expected = outcome(scipys, a, b, mode, boundary, 7)
                for forced in ({}, {"device": "cpu"}, {"device": opencl}):
                    ours = outcome(hetero.convolve2d, a, b, mode, boundary, 7, **forced)
                    if isinstance(expected, type):
                        assert ours is not None
                        assert isinstance(ours, type)
                        assert issubclass(ours, expected)
                    else:
                        np.testing.assert_array_equal(ours, expected, strict=True)


def test_nothing_to_continue_is_no_crash():
    """An error or an array of the shape that 'fill' gives, where SciPy ends the process."""
    cases = [(a, b, boundary) for a, b in EMPTY for boundary in ("wrap", "symm")]
    cases = [case for case in cases if scipy_divides_by_zero(*case[:2], "full", case[2])]
    assert cases
    script = """
import sys
import numpy as np, hetero
for first, second, boundary in eval(sys.argv[1]):
    shape = tuple(max(s + t - 1, -1) for s, t in zip(first, second))
    try:
        result = hetero.convolve2d(np.ones(first), np.ones(second), "full", boundary)
    except ValueError:
        pass
    else:
        assert result.shape == shape, (first, second, boundary, result.shape)
print("right")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, repr(cases)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


# -- Filters of low rank -------------------------------------------------------------------------

SOBEL = np.outer([1.0, 2.0, 1.0], [1.0, 0.0, -1.0])
GAUSS = np.exp(-(np.arange(-7, 8) ** 2) / 9.0)
LOW_RANK = {
    "box": np.ones((9, 12)),
    "gaussian": np.outer(GAUSS, GAUSS) / GAUSS.sum() ** 2,
    "sobel": SOBEL,
    "row": np.arange(1.0, 8.0)[None],
    "column": np.arange(1.0, 8.0)[:, None],
    "rank 2": np.outer(GAUSS, GAUSS) + 0.3 * np.outer(np.arange(15.0), np.cos(np.arange(15.0))),
    "zero": np.zeros((5, 5)),
}
separable = pytest.mark.parametrize(
    "device",
    [
        pytest.param(*(v for v in way.values if v != "separable"), marks=way.marks)
        for way in WAYS
        if "separable" in way.values
    ],
)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", LOW_RANK)
@separable
def test_low_rank(device, name, dtype):
    b = LOW_RANK[name].astype(dtype)
    shapes, modes = ((40, 51), (7, 6), (2, 21, 22)), MODES
    if device.startswith(
        "opencl"
    ):  # a size more is some kernels more to compile, half a second each
        if (name, dtype) not in (("gaussian", "float32"), ("rank 2", "float64")):
            pytest.skip("half a second for each kernel: two of them are enough here")
        shapes, modes = shapes[:1], ("same",)
    for shape in shapes:
        a = images(shape, dtype, seed=1)
        for mode in modes:
            for boundary in BOUNDARIES:
                options = {"mode": mode, "boundary": boundary, "fillvalue": 0.5}
                if mode == "valid" and isinstance(outcome(scipys, a, b, **options), type):
                    continue
                if mode == "valid" and b.shape[0] > shape[-2]:
                    continue  # the image is the filter then, and of full rank
                if name in ("zero", "row", "column") and obstacle(a, b, device, "separable"):
                    continue  # a filter that is one factor already may be left to others
                result = hetero.convolve2d(a, b, **options, device=device, method="separable")
                close(result, a, b, "separable", **options)


@separable
def test_full_rank_is_refused(device):
    a, full, low = images((50, 50)), images((9, 9)), LOW_RANK["gaussian"][:9, :9]
    for _ in range(2):  # equal shapes, other values: the plan of one is not the other's
        assert obstacle(a, low, device, "separable") is None
        assert "rank" in obstacle(a, full, device, "separable")
        close(hetero.convolve2d(a, low, device=device, method="separable"), a, low, "separable")
        with pytest.raises(MethodNotAvailable, match="rank"):
            hetero.convolve2d(a, full, device=device, method="separable")


@separable
def test_nearly_low_rank_keeps_its_detail(device):
    """A second factor of a millionth of the first is no rounding in double precision."""
    a = images((40, 40))
    b = np.outer(GAUSS, GAUSS) + 1e-6 * np.outer(np.cos(np.arange(15)), np.sin(np.arange(15)))
    close(hetero.convolve2d(a, b, "same"), a, b, mode="same")
    if obstacle(a, b, device, "separable") is None:
        result = hetero.convolve2d(a, b, "same", device=device, method="separable")
        close(result, a, b, "separable", mode="same")


# -- NaN and infinity ----------------------------------------------------------------------------


def not_finite(dtype):
    """Name -> image, filter, fill value; the filters are so large that transforms are faster."""
    a, b = images((70, 63), dtype), images((33, 30), dtype)

    def put(x, *entries):
        x = x.copy()
        for index, value in entries:
            x[index] = value
        return x

    zeros = b.copy()
    zeros[abs(zeros) < 0.2] = 0.0
    return {
        "NaN in the image": (put(a, ((5, 7), np.nan)), b, 0),
        "Inf in the image": (put(a, ((5, 7), np.inf), ((60, 50), -np.inf)), b, 0),
        "both signs meet": (put(a, ((30, 30), np.inf), ((32, 31), -np.inf)), abs(b), 0),
        "Inf times 0": (put(a, ((30, 30), np.inf)), zeros, 0),
        "NaN in the filter": (a, put(b, ((4, 6), np.nan)), 0),
        "Inf in the filter, 0 around": (a, put(b, ((4, 6), np.inf)), 0),
        "Inf in the filter, 2 around": (a, put(b, ((4, 6), -np.inf)), 2),
        "NaN around": (a, b, np.nan),
        "Inf around": (a, zeros, np.inf),
        "None around": (a, b, None),
        "all of it": (put(a, ((0, 0), np.nan)), put(b, ((32, 29), np.inf)), -np.inf),
        "low rank": (
            put(a, ((5, 7), np.nan), ((40, 40), np.inf)),
            np.outer(np.ones(33, dtype), np.arange(30, dtype=dtype)),
            0,
        ),
    }


def spreads(result, a, b, *options):
    """Every NaN and infinity where SciPy's is; everything else close."""
    expected = outcome(scipys, a, b, *options)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(result), test(expected), err_msg=test.__name__)
    usual = np.isfinite(expected)
    fill = np.nan if options[2] is None else options[2]
    largest = max(abs(a[np.isfinite(a)]).max(), abs(fill) if np.isfinite(fill) else 0.0)
    scale = largest * abs(b[np.isfinite(b)]).sum()
    bound = (b.size + 2) * np.finfo(expected.dtype).eps * scale
    assert (abs(result[usual] - expected[usual]) <= bound).all()


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
            if method in ("fft", "overlap_save", "separable"):
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


# -- Anything ------------------------------------------------------------------------------------


@st.composite
def calls(draw):
    """Two operands of any dtype and layout, whole numbers, and any options."""
    kinds = st.sampled_from([*REAL, *REAL, "int16", "uint8", "int64", "complex64", ">f4", "bool"])
    extents = st.integers(1, 9)
    layouts = st.sampled_from(["C", "F", "padded", "strided", "reversed"])
    values = np.random.default_rng(draw(st.integers(0, 2**16)))
    front = draw(st.sampled_from([(), (), (), (2,), (1, 3)]))
    found = []
    first = draw(kinds)
    for lead, dtype in ((front, first), ((), draw(st.one_of(st.just(first), kinds)))):
        shape = (*lead, draw(extents), draw(extents))
        entries = values.integers(0 if dtype in ("uint8", "bool") else -4, 5, shape)
        found.append(LAYOUTS[draw(layouts)](entries.astype(dtype)))
    options = {
        "mode": draw(st.sampled_from(MODES)),
        "boundary": draw(st.sampled_from(BOUNDARIES)),
        "fillvalue": draw(st.sampled_from([0, 0, 1, 3, -2, 1.5, 2j])),
    }
    return *found, options


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(calls(), st.booleans())
def test_anything(call, forced):
    a, b, options = call
    place = {"device": next(iter([*devices.available(), "cpu"]))} if forced else {}
    expected = outcome(scipys, a, b, **options)
    ours = outcome(hetero.convolve2d, a, b, **options, **place)
    if options["boundary"] != "fill":
        options["fillvalue"] = 0
    same(ours, expected, a, b, **options)


# -- Threads -------------------------------------------------------------------------------------


def in_threads(work, count=8):
    """Run ``work(number)`` in so many threads at once; the first exception is raised here."""
    wrong, start = [], threading.Barrier(count)

    def body(number):
        try:
            start.wait()
            work(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


@each_way
def test_threads(device, method):
    step = 16 if device.startswith("opencl") else 8  # each size is seconds of compiling there
    pairs = [
        (images((n, n + 3)), np.outer(images(n // 6), images(n // 7))) for n in range(30, 62, step)
    ]
    if reason := obstacle(*pairs[0], device, method):
        pytest.skip(reason)
    forced = {"device": device, "method": method}
    expected = [hetero.convolve2d(*pair, "same", "wrap", **forced) for pair in pairs]
    for result, pair in zip(expected, pairs, strict=True):
        close(result, *pair, method, mode="same", boundary="wrap")

    def work(number):
        for turn in range(6):
            which = (number + turn) % len(pairs)
            result = hetero.convolve2d(*pairs[which], "same", "wrap", **forced)
            np.testing.assert_array_equal(result, expected[which])

    in_threads(work)


def test_threads_with_the_choice_left_open():
    pairs = [(images((n, n)), images((n // 5, 4))) for n in range(20, 60, 5)]

    def work(number):
        for turn in range(4):
            a, b = pairs[(number + turn) % len(pairs)]
            boundary = BOUNDARIES[turn % 3]
            close(hetero.convolve2d(a, b, "same", boundary), a, b, mode="same", boundary=boundary)
            with hetero.use(device="cpu", method="fft" if number % 2 else "direct"):
                close(hetero.convolve2d(a, b), a, b)

    in_threads(work)


# -- Placement -----------------------------------------------------------------------------------


def test_use():
    a, b = images((64, 60), "float32"), images((9, 8), "float32")
    direct = hetero.convolve2d(a, b, device="cpu", method="direct")
    by_fft = hetero.convolve2d(a, b, device="cpu", method="fft")
    assert (direct != by_fft).any(), "the methods cannot be told apart"
    with hetero.use(device="cpu", method="fft"):
        np.testing.assert_array_equal(hetero.convolve2d(a, b), by_fft)
        assert hetero.plan("convolve2d", a, b).chosen.method == "fft"
        with hetero.use(method="direct"):
            np.testing.assert_array_equal(hetero.convolve2d(a, b), direct)
        np.testing.assert_array_equal(hetero.convolve2d(a, b, method="direct"), direct)
    with hetero.use(method="separable"), pytest.raises(MethodNotAvailable):
        hetero.convolve2d(a, b)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_unknown_placement(dtype):
    a, b = np.ones((5, 5), dtype), np.ones((3, 3), dtype)
    for operands in ((a, b), (a[:0], b), (a.tolist(), b.tolist())):
        with pytest.raises(MethodNotAvailable, match=r"'direct'.*'nonsense'"):
            hetero.convolve2d(*operands, method="nonsense")
        with pytest.raises(DeviceNotAvailable, match=r"'cpu'.*'nonsense'"):
            hetero.convolve2d(*operands, device="nonsense")


def test_methods_of_other_devices(opencl):
    a, b = images((20, 20)), images((3, 3))
    for device, method in ((opencl, "overlap_save"), (opencl, "fft")):
        with pytest.raises(MethodNotAvailable):
            hetero.convolve2d(a, b, device=device, method=method)


def test_library_where_there_is_none():
    a, b = images((20, 20)), images((3, 3))
    (found,) = [
        c
        for c in hetero.plan("convolve2d", a, b, device="cpu", mode="same").candidates
        if c.method == "library"
    ]
    try:
        import cv2  # noqa: F401
    except ImportError:
        assert found.reason is not None
        with pytest.raises(MethodNotAvailable):
            hetero.convolve2d(a, b, "same", device="cpu", method="library")
    else:
        result = hetero.convolve2d(a, b, "same", device="cpu", method="library")
        close(result, a, b, "library", mode="same")


def test_plan():
    a, b = np.ones((2048, 2048), "f4"), images((3, 3), "float32")
    for mode in MODES:
        plan = hetero.plan("convolve2d", a, b, mode=mode, boundary="symm", fillvalue=0)
        assert plan.chosen.method not in ("fft", "overlap_save")
        methods = {c.method for c in plan.candidates if c.device == "cpu"}
        assert methods == {"direct", "fft", "overlap_save", "separable", "library", "scipy"}
        priced = [c for c in plan.candidates if c.seconds is not None]
        assert {"direct", "fft"} <= {c.method for c in priced if c.device == "cpu"}
        for candidate in plan.candidates:
            if candidate.seconds is not None:
                assert candidate.reason is None
                assert all(seconds >= 0.0 for seconds in candidate.terms.values())
                assert candidate.seconds == pytest.approx(sum(candidate.terms.values()))
        assert plan.chosen.seconds == min(c.seconds for c in priced)


def test_plan_of_a_large_filter():
    a, b = np.ones((1024, 1024), "f4"), images((255, 255), "float32")
    plan = hetero.plan("convolve2d", a, b, device="cpu", mode="same", boundary="fill")
    assert plan.chosen.method in ("fft", "overlap_save")
    seconds = {c.method: c.seconds for c in plan.candidates}
    assert seconds["direct"] > 10 * plan.seconds


def test_plan_counts_what_is_computed():
    """More images, more terms or a larger result: more seconds."""
    b = images((9, 9), "float32")

    def seconds(shape, filter=b, mode="full", method="direct"):
        a = np.zeros(shape, "f4")
        return hetero.plan(
            "convolve2d", a, filter, device="cpu", method=method, mode=mode
        ).chosen.seconds

    for method in ("direct", "fft"):
        assert seconds((8, 512, 512), method=method) > 4 * seconds((512, 512), method=method)
        assert seconds((1024, 1024), method=method) > 2 * seconds((512, 512), method=method)
    assert seconds((512, 512), images((27, 27), "float32")) > 3 * seconds((512, 512))
    wide = np.zeros((257, 257), "f4")
    assert seconds((512, 512), wide, "valid") < seconds((512, 512), wide, "same")
    assert seconds((512, 512), wide, "same") < seconds((512, 512), wide, "full")


def test_plan_is_what_the_call_does():
    """Bad arguments are errors of the plan too; stand-ins for arrays are taken."""
    a, b = images((20, 20)), images((3, 3))
    for options in ({"mode": "nonsense"}, {"boundary": "nonsense"}):
        with pytest.raises(ValueError, match=r"nonsense|must be|Acceptable"):
            hetero.plan("convolve2d", a, b, **options)
    spec = hetero.spec((512, 512), "float32"), hetero.spec((5, 5), "float32")
    assert hetero.plan("convolve2d", *spec, mode="same").chosen.reason is None
    plan = hetero.plan("convolve2d", a, b, device="cpu")
    chosen = plan.chosen.method
    forced = hetero.convolve2d(a, b, device="cpu", method=chosen)
    np.testing.assert_array_equal(hetero.convolve2d(a, b, device="cpu"), forced)


# -- Device arrays without a GPU -----------------------------------------------------------------


def test_device_arrays_come_back_to_their_device(cuda):
    """What no device computes in, and what is forced onto the CPU."""
    import fakes

    for dtype, forced in (("int16", {}), ("uint8", {}), ("float32", {"device": "cpu"})):
        a = np.asfortranarray((9 * rng.random((6, 7))).astype(dtype))
        b = (9 * rng.random((3, 4))).astype(dtype)
        there, filter_there = fakes.Cupy.of(a, cuda), fakes.Cupy.of(b, cuda)
        for first, second in ((there, filter_there), (there, b), (a, filter_there)):
            for mode in MODES:
                result = hetero.convolve2d(first, second, mode, "symm", **forced)
                assert type(result) is fakes.Cupy
                assert result.device.id == 0
                same(result.get(), scipys(a, b, mode, "symm"), a, b, mode=mode, boundary="symm")
        np.testing.assert_array_equal(there.get(), a)


# -- On a GPU ------------------------------------------------------------------------------------


def _cupy():
    cupy = pytest.importorskip("cupy")
    return SimpleNamespace(
        type=cupy.ndarray, put=cupy.asarray, get=cupy.asnumpy, views=("F", "strided", "reversed")
    )


def _torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    return SimpleNamespace(
        type=torch.Tensor,
        put=lambda x: torch.from_numpy(x.copy()).to("cuda:0"),
        get=lambda x: x.cpu().numpy(),
        views=("F", "strided"),
    )


def _pycuda():
    gpuarray = pytest.importorskip("pycuda.gpuarray")

    def put(x):
        with devices.get("cuda:0").active():
            return gpuarray.to_gpu(np.ascontiguousarray(x))

    def get(x):
        with devices.get("cuda:0").active():
            return x.get()

    return SimpleNamespace(type=gpuarray.GPUArray, put=put, get=get, views=())


LIBRARIES = {"cupy": _cupy, "torch": _torch, "pycuda": _pycuda}


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]()


def on_gpu(result, library):
    """The values of a result, which must be the library's and on the device."""
    assert type(result) is library.type
    assert describe(result).location == "cuda:0"
    return np.ascontiguousarray(library.get(result))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("method", [None, "direct", "fft", "overlap_save", "separable"])
def test_gpu_arrays(library, method, dtype):
    done = 0
    for shape, filter_shape in (((70, 83), (9, 8)), ((3, 40, 41), (4, 5)), ((300, 310), (31, 33))):
        a = images(shape, dtype, seed=1)
        b = images((filter_shape[0], 1), dtype, 2) * images((1, filter_shape[1]), dtype, 3)
        A, B = library.put(a), library.put(b)
        for mode in MODES:
            for boundary in BOUNDARIES:
                options = {"mode": mode, "boundary": boundary, "fillvalue": 0.5}
                if method and obstacle(A, B, "cuda:0", method, **options):
                    assert method != "direct"
                    continue
                place = {"device": "cuda:0", "method": method} if method else {}
                for first, second in ((A, B), (A, b), (a, B)):
                    result = hetero.convolve2d(first, second, **options, **place)
                    close(on_gpu(result, library), a, b, method, **options)
                    done += 1
        np.testing.assert_array_equal(library.get(A), a)
        np.testing.assert_array_equal(library.get(B), b)
    assert done, "nothing that this method can do"


@pytest.mark.gpu
def test_gpu_arrays_of_every_layout(library):
    a, b = images((40, 50), "float32"), images((6, 4), "float32")
    laid = {
        "F": lambda x: library.put(np.ascontiguousarray(x.T)).T,
        "strided": lambda x: library.put(np.repeat(np.repeat(x, 2, -1), 3, -2))[::3, ::2],
        "reversed": lambda x: library.put(np.ascontiguousarray(x[::-1, ::-1]))[::-1, ::-1],
    }
    for view in library.views:
        for method in ("direct", "fft"):
            if obstacle(laid[view](a), laid[view](b), "cuda:0", method):
                assert method != "direct"
                continue
            result = hetero.convolve2d(
                laid[view](a), laid[view](b), "same", "symm", device="cuda:0", method=method
            )
            close(on_gpu(result, library), a, b, method, mode="same", boundary="symm")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int16", "uint8", "int64", "complex64", "complex128", "float16"])
def test_gpu_arrays_of_other_dtypes(library, dtype):
    a, b = (9 * rng.random((20, 21))).astype(dtype), (9 * rng.random((4, 5))).astype(dtype)
    A, B = library.put(a), library.put(b)
    if dtype == "float16":
        with pytest.raises(ValueError, match=r"."):
            hetero.convolve2d(A, B)
        return
    for forced in ({}, {"device": "cuda:0"}, {"device": "cpu"}):
        result = on_gpu(hetero.convolve2d(A, B, "same", "wrap", **forced), library)
        same(result, scipys(a, b, "same", "wrap"), a, b, mode="same", boundary="wrap")


@pytest.mark.gpu
@pytest.mark.parametrize("case", not_finite("float64"))
def test_gpu_arrays_that_are_not_finite(library, case):
    for dtype in REAL:
        a, b, fillvalue = not_finite(dtype)[case]
        A, B = library.put(a), library.put(b)
        for mode in MODES:
            for boundary in BOUNDARIES:
                options = (mode, boundary, fillvalue)
                for forced in ({}, {"device": "cuda:0"}):
                    result = on_gpu(hetero.convolve2d(A, B, *options, **forced), library)
                    spreads(result, a, b, *options)


@pytest.mark.gpu
def test_gpu_bad_input(library):
    A, B = library.put(np.ones((5, 6))), library.put(np.ones((6, 3)))
    for options in ({"mode": "x"}, {"boundary": "x"}, {"mode": "valid"}, {"fillvalue": [1, 2]}):
        with pytest.raises(ValueError, match=r"."):
            hetero.convolve2d(A, B, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "int32"])
def test_gpu_forced_for_host_arrays_of_other_dtypes(dtype):
    a, b = (9 * images((60, 61), dtype)).astype(dtype), (9 * images((9, 8), dtype)).astype(dtype)
    for mode in MODES:
        for boundary in BOUNDARIES:
            check(a, b, {"device": "cuda:0"}, mode=mode, boundary=boundary, fillvalue=1)


@pytest.mark.gpu
def test_gpu_threads(library):
    pairs = [(images((n, n + 3)), images((n // 5, 4))) for n in range(30, 62, 8)]

    def work(number):
        for turn in range(6):
            a, b = pairs[(number + turn) % len(pairs)]
            close(hetero.convolve2d(a, b, device="cuda:0"), a, b)
            A, B = library.put(a), library.put(b)
            close(on_gpu(hetero.convolve2d(A, B, device="cuda:0"), library), a, b)

    in_threads(work)


def test_a_new_filter_costs_its_spectrum():
    """On a GPU a small host filter's spectrum is remembered; any other is transformed again."""
    info = {"kind": "cuda", "memory_bytes": 1 << 36}
    methods = registry.lookup("convolve2d")
    method = next(i for i in methods if (i.kind, i.method) == ("cuda", "fft"))
    image = spec((3000, 3000), "float32", on="cuda:0").operand()

    def work(on, size):
        filter = spec((size, size), "float32", on=on).operand()
        window = window_of(image.shape, filter.shape, "same")
        return method.work(described(image, filter, np.dtype("float32"), window), info)

    remembered, there, large = work("host", 64), work("cuda:0", 64), work("host", 65)
    assert remembered.calls == 1.0 < there.calls == large.calls
    assert there.dims[0] == pytest.approx(1.4 * remembered.dims[0], rel=1e-6)
    assert large.dims[0] > 1.3 * remembered.dims[0]


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


@pytest.mark.parametrize("dtypes", [(">f4", ">f4"), ("float32", "float64"), ("int32", ">f8")])
def test_scipys_method_is_not_considered_where_others_are_compiled(dtypes, monkeypatch):
    monkeypatch.setattr(compiling, "seconds_left", lambda implementation, problem: 0.0)
    call_cache.forget()
    image, filter = (np.ones((5, 5), d) for d in dtypes)
    for leaf in hetero.plan("convolve2d", image, filter).leaves():
        reasons = {c.method: c.reason for c in leaf.candidates}
        assert "it is for what no other method computes" in reasons["scipy"]


@pytest.mark.parametrize("boundary", ["fill", "wrap"])
@pytest.mark.parametrize("mode", ["full", "same"])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32"])
@pytest.mark.parametrize("front", [(0,), (2,), (2, 0)])
@pytest.mark.parametrize("shape", [(8, 0), (0, 8), (0, 0), (3, 4)])
def test_stacks_without_elements_have_the_shapes_of_scipys_results(
    shape, front, dtype, mode, boundary
):
    filter = np.ones((3, 7), dtype)
    one = signal.convolve2d(np.ones(shape, dtype), filter, mode)
    result = hetero.convolve2d(np.ones((*front, *shape), dtype), filter, mode, boundary)
    assert result.shape == (*front, *one.shape)
    assert result.dtype == one.dtype
