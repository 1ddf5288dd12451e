"""What scipy.signal.convolve2d refuses, and what is empty: the same errors and shapes."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from convolutions import BOUNDARIES, MODES, agrees, check, images, outcome, rng, scipys
from scipy import signal, sparse

import hetero.ops

pytestmark = pytest.mark.usefixtures("no_failure")

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


def test_an_image_with_its_channels_last():
    """Refused as SciPy does; narrow images, and those of a stack by name, are taken."""
    b = images((3, 3))
    for shape in ((64, 60, 3), (20, 17, 4)):
        a = images(shape)
        for call in (hetero.convolve2d, partial(hetero.plan, "convolve2d")):
            with pytest.raises(ValueError, match="Per channel"):
                call(a, b, "same")
        np.testing.assert_allclose(hetero.convolve2d(a[None], b)[0], scipys(a, b), atol=1e-13)
    for shape in ((2, 40, 3), (40, 5, 3), (3, 64, 64), (64, 64, 5)):
        check(images(shape), b)


def test_a_sparse_matrix_is_named():
    a = sparse.csr_array(np.eye(5))
    with pytest.raises(ValueError, match=r"csr_array .* ndarray of 2; in1 is sparse: .*toarray"):
        hetero.convolve2d(a, B)
    with pytest.raises(ValueError, match="in2 is sparse"):
        hetero.convolve2d(A, a)


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
        agrees(ours, expected, repr(fillvalue))


def test_fill_values_count_for_fill_only():
    a, b = rng.integers(0, 9, (4, 5)), rng.integers(0, 9, (3, 3))
    for boundary in ("wrap", "symm"):
        for fillvalue in (1j, "nonsense", [1, 2], object(), np.nan, 2**70):
            assert not isinstance(check(a, b, None, boundary=boundary, fillvalue=fillvalue), type)
    x, y = images((60, 61)), images((30, 31))
    check(x, y, None, boundary="symm", fillvalue=np.nan)


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
                    agrees(ours, expected)


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
    command = [sys.executable, "-c", script, repr(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


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


@pytest.mark.parametrize("shapes", [((0, 4), (0, 3)), ((4, 0), (3, 0)), ((2, 0, 4), (0, 3))])
def test_two_operands_that_are_empty_along_an_axis(shapes):
    """SciPy refuses a result of length -1; so does the plan, as the call."""
    image, values = map(np.empty, shapes)
    if image.ndim == 2:
        with pytest.raises(ValueError, match="negative"):
            signal.convolve2d(image, values)
    with pytest.raises(ValueError, match="both empty along an axis"):
        hetero.convolve2d(image, values)
    with pytest.raises(ValueError, match="both empty along an axis"):
        hetero.plan("convolve2d", image, values)
