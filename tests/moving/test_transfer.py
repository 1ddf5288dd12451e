"""Device arrays in and out: types, layouts, places, ``out=``, streams.

The CUDA devices here are fakes in host memory (`fakes`), so that all of it runs without a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext

import fakes
import numpy as np
import pytest
from layouts import LAYOUTS

import hetero
from hetero.devices.base import Copy
from hetero.errors import DeviceMemoryError

rng = np.random.default_rng(7)
A32 = rng.random((6, 5), np.float32)
B32 = rng.random((5, 7), np.float32)


def close(result, expected):
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result.get(), expected, rtol=2e-6)


# -- Device arrays -------------------------------------------------------------------------------

PLACES = [None, "cpu", "cuda"]


@pytest.fixture(params=[*PLACES, "opencl"])
def everywhere(request, opencl):
    """Each place, of OpenCL the device that is here."""
    return opencl if request.param == "opencl" else request.param


@pytest.mark.parametrize("kind", [fakes.Cupy, fakes.Array])
@pytest.mark.parametrize("place", PLACES)
def test_type_in_is_type_out(cuda, kind, place):
    first, second = kind.of(A32, cuda), kind.of(B32, cuda)
    result = hetero.matmul(first, second, device=place)
    assert type(result) is kind
    close(result, A32 @ B32)
    moved = "upload" in cuda.log or "download" in cuda.log
    assert moved == (place == "cpu"), "an operand that lies there costs nothing to move"
    nothing = hetero.matmul(kind.of(A32[:0], cuda), second, device=place)
    assert (type(nothing), nothing.shape) == (kind, (0, 7))


@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(cuda, everywhere, layout_a, layout_b, warnings_of):
    a, b = LAYOUTS[layout_a](A32), LAYOUTS[layout_b](B32)
    first, second = fakes.Cupy.of(a, cuda), fakes.Cupy.of(b, cuda)
    result = hetero.matmul(first, second, device=everywhere)
    assert type(result) is fakes.Cupy
    close(result, a @ b)
    assert not warnings_of()


@pytest.mark.parametrize(
    "dtype", ["int32", "bool", "complex64", "float16", ">f4", "longdouble", "uint8"]
)
@pytest.mark.parametrize("place", PLACES)
def test_dtypes_that_devices_do_not_compute_in(cuda, place, dtype):
    a, b = (10 * A32).astype(dtype), (10 * B32).astype(dtype)
    result = hetero.matmul(fakes.Cupy.of(a, cuda), fakes.Cupy.of(b, cuda), device=place)
    expected = a @ b
    assert type(result) is fakes.Cupy
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.get(), expected)


class UnderWay(Copy):
    """A copy that says when it begins and when it was waited for, which fails once."""

    def __init__(self, log, error):
        self.log, self.error = log, error
        log.append("begun")

    def wait(self):
        error, self.error = self.error, None
        if error:
            raise error
        self.log.append("there")


@pytest.mark.parametrize("error", [None, DeviceMemoryError("of the copy"), KeyboardInterrupt()])
def test_operands_go_up_at_once_and_none_is_on_its_way_behind_a_failure(cuda, monkeypatch, error):
    log, errors = cuda.log, [None, error]
    begin = lambda *_, overlap: UnderWay(log, errors.pop())  # noqa: E731
    monkeypatch.setattr(cuda, "begin_upload", begin)
    monkeypatch.setattr(cuda, "trim", lambda: False)  # or it would be tried once more
    interrupted = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        hetero.matmul(A32, B32, device="cuda")
    moved = [x for x in log if x in ("begun", "there", "synchronize", "compute")]
    then = ["there", "there", "compute"] if error is None else ["there", "there", "synchronize"]
    assert moved[:5] == ["begun", "begun", *then]


# -- out= ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_wrong_outs_are_refused_and_left_as_they_were(cuda, place):
    """With NumPy's type of error, also after a remembered call; one of a wider dtype is taken."""
    first, second = fakes.Cupy.of(A32, cuda), fakes.Cupy.of(B32, cuda)
    for shape, dtype, readonly, error in (
        ((7, 8), "float32", False, ValueError),
        ((6, 7), "int32", False, TypeError),
        ((6, 7), "float32", True, ValueError),
    ):
        out = fakes.Cupy.of(np.zeros(shape, dtype), cuda, readonly=readonly)
        for _ in range(2):
            with pytest.raises(error):
                hetero.matmul(first, second, out=out, device=place)
            hetero.matmul(first, second, device=place)
        assert not out.get().any()
    wider = fakes.Cupy.of(np.zeros((6, 7)), cuda)
    assert hetero.matmul(first, second, out=wider, device=place) is wider
    np.testing.assert_allclose(wider.get(), A32 @ B32, rtol=2e-6)


def part_of(whole, host, part):
    """The view of a device array that a view of its values on the host is."""
    at = whole.pointer + part.ctypes.data - host.ctypes.data
    memory, shape = whole.memory, part.shape
    return fakes.Cupy(memory, at, shape, part.dtype, part.strides, whole.owner, None, False)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("which", [np.s_[::2, 1:8], np.s_[3:9, ::2], np.s_[10:4:-1, 7:0:-1]])
def test_out_that_is_part_of_an_array_leaves_the_rest(cuda, everywhere, which, order):
    host = np.asarray(rng.random((12, 14), np.float32), order=order)
    whole, part = fakes.Cupy.of(host, cuda), host[which]
    out = part_of(whole, host, part)
    first, second = fakes.Cupy.of(A32, cuda), fakes.Cupy.of(B32, cuda)
    assert hetero.matmul(first, second, out=out, device=everywhere) is out
    part[...] = A32 @ B32
    np.testing.assert_allclose(whole.get(), host, rtol=1e-6)
