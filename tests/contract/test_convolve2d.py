"""hetero.convolve2d behaves as scipy.signal.convolve2d, image by image, with every method.

Whole numbers are exact. Real and complex results lie within a bound around the sum in extended
precision: direct sums within (terms + 2) eps times the sum of the products' absolute values; what
goes by transforms or by factors of the filter within a multiple of eps times the norms.
"""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import (
    BOUNDARIES,
    MODES,
    REAL,
    WAYS,
    check,
    close,
    each_way,
    images,
    obstacle,
    outcome,
    rng,
    same,
    scipys,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from scipy import signal

import hetero.ops
from hetero import devices
from hetero.errors import MethodNotAvailable

pytestmark = pytest.mark.usefixtures("no_failure")


def test_methods_that_must_be_here():
    named = {param.values for param in WAYS}
    for method in ("direct", "fft", "separable"):
        assert ("cpu", method) in named
    for name in devices.available():
        for method in ("direct", "separable"):
            assert (name, method) in named
        if name.startswith("cuda"):
            assert (name, "fft") in named


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
    a = images(tuple(min(n, 150) for n in sizes[0]), dtype, seed=1)
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
