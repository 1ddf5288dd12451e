"""Where a convolution runs: threads, device= and method=, plans, arrays of devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from convolutions import (
    BOUNDARIES,
    MODES,
    REAL,
    close,
    images,
    not_finite,
    obstacle,
    rng,
    same,
    scipys,
    spreads,
)
from gpu_libraries import LIBRARIES, lay

import hetero.ops
from hetero import tables
from hetero.arrays import describe
from hetero.host import loops

pytestmark = pytest.mark.usefixtures("no_failure")


def test_threads_with_the_choice_left_open():
    pairs = [(images((n, n)), images((n // 5, 4))) for n in range(20, 60, 5)]

    def work(number):
        for turn in range(4):
            a, b = pairs[(number + turn) % len(pairs)]
            boundary = BOUNDARIES[turn % 3]
            close(hetero.convolve2d(a, b, "same", boundary), a, b, mode="same", boundary=boundary)
            with hetero.use(device="cpu", method="fft" if number % 2 else "direct"):
                close(hetero.convolve2d(a, b), a, b)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))  # the first exception is raised here


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
@pytest.mark.parametrize("method", [None, "direct", "fft", "separable"])
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
    for layout in library.views:
        A, B = (lay(library, x, layout) for x in (a, b))
        for method in ("direct", "fft"):
            if obstacle(A, B, "cuda:0", method):
                assert method != "direct"
                continue
            result = hetero.convolve2d(A, B, "same", "symm", device="cuda:0", method=method)
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


@pytest.mark.parametrize("dtypes", [(">f4", ">f4"), ("float32", "float64"), ("int32", ">f8")])
def test_scipys_method_is_not_considered_where_others_are_compiled(dtypes, monkeypatch):
    monkeypatch.setattr(loops, "is_ready", lambda name: True)
    tables.forget()
    image, filter = (np.ones((5, 5), d) for d in dtypes)
    for leaf in hetero.plan("convolve2d", image, filter).leaves():
        reasons = {c.method: c.reason for c in leaf.candidates}
        assert "for dtypes that no other method computes" in reasons["scipy"]
