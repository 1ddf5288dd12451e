"""On an NVIDIA GPU: CuPy, torch and PyCUDA arrays, streams, contexts, threads, memory, exits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import processes
import pytest
from gpu_libraries import DEVICE, LIBRARIES, lay, view
from layouts import LAYOUTS
from scipy import signal

import hetero
from hetero import devices
from hetero.arrays import describe

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_failure")]

rng = np.random.default_rng(3)


@pytest.fixture
def gpu():
    return devices.get(DEVICE)


def close(result, *operands, function=np.matmul):
    """Within the bound that holds for sums of products in whatever order."""
    exact = function(*(x.astype(np.float64) for x in operands))
    magnitude = function(*(abs(x).astype(np.float64) for x in operands))
    bound = (operands[0].shape[-1] + 1) * np.finfo(operands[0].dtype).eps * magnitude
    assert result.dtype == np.result_type(*operands)
    assert result.shape == exact.shape
    np.testing.assert_array_less(abs(result - exact), bound + 1e-300)


# -- Libraries -----------------------------------------------------------------------------------


@pytest.fixture(params=LIBRARIES)
def library(request, gpu):
    return LIBRARIES[request.param]()


@pytest.fixture
def cupy(gpu):
    return pytest.importorskip("cupy")


VIEWS = [name for name in LAYOUTS if name != "repeated"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout_b", VIEWS)
@pytest.mark.parametrize("layout_a", VIEWS)
def test_type_in_is_type_out(library, layout_a, layout_b, dtype):
    a, b = rng.random((37, 50)).astype(dtype), rng.random((50, 29)).astype(dtype)
    A, B = lay(library, a, layout_a), lay(library, b, layout_b)
    for options in ({}, {"device": "cuda"}, {"method": "tiled"}, {"device": "cpu"}):
        C = hetero.matmul(A, B, **options)
        assert type(C) is library.type
        assert describe(C).location == DEVICE
        close(library.get(C), a, b)
    y = hetero.matvec(A, view(B, np.s_[:, 0]), method="tiled")
    assert type(y) is library.type
    close(library.get(y), a, b[:, 0])
    z = hetero.matmul(view(A, 0), B, method="tiled")
    close(library.get(z), a[0], b)


def test_nan_and_inf(library):
    a = rng.random((33, 34))
    a[1, 2], a[2, 3], a[3, 4] = np.nan, np.inf, -np.inf
    for dtype in ("float32", "float64"):
        x, y = a.astype(dtype), np.eye(34, dtype=dtype) + 1
        with np.errstate(invalid="ignore"):
            expected = x @ y
        C = library.get(hetero.matmul(library.put(x), library.put(y), method="tiled"))
        np.testing.assert_array_equal(np.isnan(C), np.isnan(expected))
        np.testing.assert_allclose(C, expected, rtol=1e-5)


# -- out= ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", VIEWS)
@pytest.mark.parametrize("place", [None, "cuda", "cpu"])
def test_out(library, layout, place):
    a, b = rng.random((21, 30), np.float32), rng.random((30, 17), np.float32)
    out = lay(library, np.zeros((21, 17), np.float32), layout)
    assert hetero.matmul(library.put(a), library.put(b), out=out, device=place) is out
    close(hetero.to_host(out), a, b)


@pytest.mark.parametrize("layout", VIEWS)
def test_out_that_is_an_operand(library, layout):
    a, b = rng.random((30, 30), np.float32), rng.random((30, 30), np.float32)
    A = lay(library, a, layout)
    assert hetero.matmul(A, library.put(b), out=A, device="cuda") is A
    close(hetero.to_host(A), a, b)
    x = library.put(a[0])
    hetero.matvec(library.put(b), x, out=x, device="cuda")
    close(hetero.to_host(x), b, a[0])


# -- Methods -------------------------------------------------------------------------------------


def tells_its_device(library):
    if library.name == "pycuda" and sum(n.startswith("cuda") for n in devices.available()) > 1:
        pytest.skip("memory of PyCUDA does not tell which of several devices it is on")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape",
    [(17, 600), (255, 515), (1001, 1003), (3001, 3001), (6007, 130), (70_001, 1), (3, 100_000)],
)
def test_matrices_that_begin_anywhere(cupy, shape, dtype, order):
    """Lines that are no whole number of vectors; and the same result every time."""
    m, k = shape
    for offset in range(4):
        room = (rng.random(m * k + 8) - 0.5).astype(dtype)
        a = room[offset : offset + m * k].reshape(m, k, order=order)
        A = cupy.asarray(room)[offset : offset + m * k].reshape(m, k, order=order)
        x = (rng.random(k + 1) - 0.5).astype(dtype)
        first, *others = (
            hetero.matvec(A, cupy.asarray(x)[1:], device="cuda", method="tiled") for _ in range(3)
        )
        close(cupy.asnumpy(first), a, x[1:], function=np.matvec)
        assert all((first == other).all() for other in others)


@pytest.mark.parametrize("method", ["tiled", "library"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(64, 48, 32), (40, 3, 5000), (512, 512, 512)])
def test_remembered_calls_take_the_short_way(library, general, shape, dtype, method):
    """From the second call on nothing is described or planned, and the results are as before."""
    tells_its_device(library)
    m, n, k = shape
    inputs = [
        (rng.random((m, k)).astype(dtype), rng.random((k, n)).astype(dtype)) for _ in range(3)
    ]
    with devices.get(DEVICE).active():
        for a, b in inputs:
            A, B, x = library.put(a), library.put(b), library.put(np.ascontiguousarray(b[:, 0]))
            general.clear()
            C = hetero.matmul(A, B, device="cuda", method=method)
            assert type(C) is library.type
            close(hetero.to_host(C), a, b)
            close(hetero.to_host(hetero.matmul(A, B, out=C, device="cuda", method=method)), a, b)
            y = hetero.matvec(A, x, device="cuda", method="tiled")
            close(hetero.to_host(y), a, b[:, 0], function=np.matvec)
    assert not general


@pytest.mark.parametrize(
    ("method", "is_there"),
    [("direct", False), ("separable", False), ("fft", False), ("direct", True), ("fft", True)],
)
def test_remembered_convolutions(library, general, method, is_there):
    """Likewise, with a small filter on the host, whose copy on the device is kept as long, or on
    the device, where a launch reads it."""
    tells_its_device(library)
    options = {"device": "cuda", "method": method}
    filters = [rng.random((3, 5 + i % 4)).astype("float32") for i in range(12)]
    if method == "separable":
        filters = [np.outer(filter[:, 0], filter[0]) for filter in filters]
    with devices.get(DEVICE).active():
        for _ in range(2):
            image = rng.random((300, 200)).astype("float32")
            there = library.put(image)
            general.clear()
            for filter in filters:
                taps = library.put(filter) if is_there else filter
                for mode in ("full", "same"):
                    found = hetero.convolve2d(there, taps, mode, **options)
                    assert type(found) is library.type
                    expected = signal.convolve2d(image, filter, mode)
                    found = hetero.to_host(found)
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not general


@pytest.mark.parametrize("order", ["C", "F"])
def test_more_elements_than_32_bits_count(cupy, order):
    """A has more than 2**31 elements; what lies behind them is read, and read right."""
    m, k, n = 66_001, 32_768, 20
    assert m * k > 2**31
    try:
        A = cupy.zeros((m, k), "float32", order=order)
    except cupy.cuda.memory.OutOfMemoryError:
        pytest.skip("the device has less than 9 GB left")
    rows = [0, 1, 32_767, m - 2, m - 1]
    values = rng.random((len(rows), k)).astype("float32")
    A[cupy.asarray(rows)] = cupy.asarray(values)
    b = rng.random((k, n)).astype("float32")
    B, x = cupy.asarray(b), cupy.asarray(np.ascontiguousarray(b[:, 0]))
    for found, function, other in (
        (hetero.matmul(A, B, device="cuda", method="tiled"), np.matmul, b),
        (hetero.matvec(A, x, device="cuda", method="tiled"), np.matvec, b[:, 0]),
    ):
        close(cupy.asnumpy(found[cupy.asarray(rows)]), values, other, function=function)
        found[cupy.asarray(rows)] = 0
        assert not found.any()
    if order == "C":  # and a result of as many elements
        del A
        wide = rng.random((4, 66_001)).astype("float32")
        tall = rng.random((32_768, 4)).astype("float32")
        C = hetero.matmul(cupy.asarray(tall), cupy.asarray(wide), device="cuda", method="tiled")
        for part in (slice(0, 3), slice(-3, None)):
            close(cupy.asnumpy(C[part]), tall[part], wide)


# -- Several devices -----------------------------------------------------------------------------


def test_operands_on_two_gpus(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU only")
    a, b = rng.random((30, 20), np.float32), rng.random((20, 10), np.float32)
    with cupy.cuda.Device(0):
        A = cupy.asarray(a)
    with cupy.cuda.Device(1):
        B = cupy.asarray(b)
        X = cupy.asarray(np.ascontiguousarray(b.T)).T
    for second in (B, X):
        for place in (None, "cuda:0", "cuda:1", "cpu"):
            C = hetero.matmul(A, second, device=place)
            assert C.device.id == 0
            close(cupy.asnumpy(C), a, b)


# -- Threads and processes -----------------------------------------------------------------------


def test_threads(library):
    pairs = [
        (rng.random((n, n + 3), np.float32), rng.random((n + 3, 20), np.float32))
        for n in range(30, 60, 5)
    ]

    def work(number):
        for turn in range(20):
            a, b = pairs[(number + turn) % len(pairs)]
            close(hetero.matmul(a, b, device="cuda"), a, b)
            C = hetero.matmul(library.put(a), library.put(b), device="cuda")
            close(library.get(C), a, b)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))  # the first exception is raised here


def run(script):
    """A process that uses the GPU ends with code 0 and complains of nothing."""
    done = processes.python("-W", "ignore::DeprecationWarning", "-c", PREAMBLE + script)
    complaints = [
        s for s in done.stderr.splitlines() if s and "taking conservative constants" not in s
    ]
    assert not complaints, done.stderr
    return done.stdout


PREAMBLE = """
import numpy as np
a = np.random.default_rng(0).random((64, 64), np.float32)
"""


@pytest.mark.parametrize(
    "script",
    [
        "import hetero; hetero.matmul(a, a, device='cuda')",
        "import hetero; kept = [hetero.matmul(a, a, device='cuda') for _ in range(9)]",
        "import hetero; hetero.machine(); hetero.matmul(a, a, method='tiled')",
        "import cupy, hetero; A = cupy.asarray(a); kept = hetero.matmul(A, A)",
        "import hetero, cupy; hetero.matmul(a, a, device='cuda'); A = cupy.asarray(a); A @ A",
        "import torch, hetero; A = torch.from_numpy(a).cuda(); kept = hetero.matmul(A, A)",
        "import hetero, threading\n"
        "t = threading.Thread(target=hetero.matmul, args=(a, a), kwargs={'device': 'cuda'})\n"
        "t.start(); t.join()",
    ],
)
def test_exit_code(script):
    for name in ("cupy", "torch"):
        if name in script:
            pytest.importorskip(name)
    run(script)


def test_forked_child_computes_on_the_cpu(gpu):
    out = run(
        """
import os, sys, hetero
hetero.matmul(a, a, device="cuda")
child = os.fork()
if not child:
    right = all(np.array_equal(hetero.matmul(a, a, **o), a @ a) for o in ({}, {"device": "cuda"}))
    print("right" if right else "wrong", flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert np.allclose(hetero.matmul(a, a, device="cuda"), a @ a, rtol=1e-4)
"""
    )
    assert "right" in out


# -- Commands ------------------------------------------------------------------------------------


def test_verify_with_operands_on_the_gpu(data):
    found = data("verify", "--on", DEVICE, "--count", 3, "--largest", 256, "--seconds", 20)
    assert found["problems"] > 0
    assert any("tiled on cuda:0" in name for name in found["prediction_error"])


def test_our_arrays_of_the_second_device_need_no_current_context():
    names = [name for name in hetero.machine()["devices"] if name.startswith("cuda:")]
    if len(names) < 2:
        pytest.skip("needs two CUDA devices")
    a = np.random.default_rng(0).random((40, 30), np.float32)
    device = devices.get(names[1])
    A, B = device.array_of(a), device.array_of(np.ascontiguousarray(a.T))
    C = hetero.matmul(A, B)
    again = hetero.matmul(C, A)
    close(hetero.to_host(C), a, a.T)
    close(hetero.to_host(again), hetero.to_host(C), a)
