"""Where a convolution runs: threads, device= and method=, plans, arrays of devices."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from convolutions import (
    BOUNDARIES,
    MODES,
    REAL,
    check,
    close,
    each_way,
    images,
    not_finite,
    obstacle,
    rng,
    same,
    scipys,
    spreads,
)
from gpu_libraries import LIBRARIES
from scipy import signal

import hetero.ops
from hetero import registry
from hetero.arrays import describe
from hetero.errors import DeviceNotAvailable, MethodNotAvailable
from hetero.ops.convolve2d import direct_cpu
from hetero.ops.convolve2d.window import window_of

pytestmark = pytest.mark.usefixtures("no_failure")


def in_threads(work, count=8):
    """Run ``work(number)`` in so many threads at once; the first exception is raised here."""
    start = threading.Barrier(count)

    def body(number):
        start.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(body, range(count)))


@each_way
def test_threads(device, method):
    step = 16 if device.startswith("opencl") else 8  # each size is seconds of compiling there
    pairs = [
        (images((n, n + 3)), np.outer(images(n // 6), images(n // 7))) for n in range(30, 62, step)
    ]
    reasons = [obstacle(*pair, device, method) for pair in pairs]
    pairs = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
    if not pairs:
        pytest.skip(reasons[0])
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


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        (window_of((30, 40), (3, 5), "same"), None),
        (window_of((30, 40), (11, 11), "same", "symm"), None),
        (window_of((30, 40), (3, 5), "valid"), None),
        (window_of((30, 40), (1, 1), "full"), None),
        (window_of((30, 40), (1, 2), "full"), "larger than the image"),
        (window_of((30, 40), (2, 1), "full"), "larger than the image"),
        (window_of((30, 40), (3, 5), "same", "wrap"), "periodically"),
        (window_of((30, 40), (3, 5), "same", filled=True), "fills with zeros"),
        (window_of((30, 40), (12, 3), "same"), "above 11 x 11"),
        (window_of((30, 40), (3, 12), "same"), "above 11 x 11"),
        (window_of((5, 40), (5, 3), "same", "symm"), None),
        (window_of((4, 4), (5, 5), "same"), None),
        (window_of((4, 40), (5, 3), "same", "symm"), "only once"),
        (window_of((40, 4), (3, 5), "same", "symm"), "only once"),
    ],
)
def test_what_opencv_can_do(window, reason):
    found = direct_cpu.opencvs_obstacle(window, here=False)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_opencv_gives_what_scipy_does(monkeypatch):
    """With a stand-in for OpenCV: a correlation that keeps the image's dtype where depth is -1."""

    def filter2d(plane, depth, taps, anchor, borderType):
        assert depth == -1
        left, top = anchor
        after = taps.shape[0] - 1 - top, taps.shape[1] - 1 - left
        edges = (top, after[0]), (left, after[1])
        return signal.correlate2d(np.pad(plane, edges, borderType), taps, "valid")

    cv2 = {"filter2D": filter2d, "BORDER_REFLECT": "symmetric", "BORDER_CONSTANT": "constant"}
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(**cv2))
    monkeypatch.setattr(direct_cpu, "opencv_is_here", lambda: True)
    a, b = images((2, 20, 23), "float32"), images((4, 3), "float32")
    for mode, boundary in (("same", "fill"), ("same", "symm"), ("valid", "fill")):
        result = hetero.convolve2d(a, b, mode, boundary, device="cpu", method="library")
        close(result, a, b, "library", mode=mode, boundary=boundary)


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
        assert methods == {i.method for i in registry.lookup("convolve2d") if i.kind == "cpu"}
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
