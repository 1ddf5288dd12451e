"""Results that stay on a real GPU, and arrays brought to the host beside other work."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from fakes import moves
from gpu_libraries import SPIN, cycles_of
from scipy import signal

import hetero
from hetero import devices
from hetero.devices import cuda
from hetero.devices.cuda.driver import array_type

pytestmark = pytest.mark.gpu
rng = np.random.default_rng(17)
N = 700
X = (rng.standard_normal((N, N)) / np.sqrt(N)).astype(np.float32)
TAPS = np.array([[0.1, 0.2, 0.1], [0.2, 0.8, 0.2], [0.1, 0.2, 0.1]], np.float32)
EXPECTED = signal.convolve2d(X @ X, TAPS, "same")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def moved(monkeypatch):
    """(direction, bytes) of what goes to the device and back, but for small filters."""
    return moves(monkeypatch, type(devices.get("cuda:0")), X.nbytes)


def chain():
    """Three calls in a row: X squared, that smoothed, and its product with a vector."""
    B = hetero.matmul(X, X)
    C = hetero.convolve2d(B, TAPS, "same")
    return B, C, hetero.matvec(C, X[0])


def close(found, expected):
    error = np.linalg.norm(np.asarray(found, float) - expected) / np.linalg.norm(expected)
    assert error < 1e-3, error


@pytest.mark.parametrize("stream", ["default", "own"])
def test_a_chain_is_moved_once(cupy, moved, stream):
    with cupy.cuda.Stream.null if stream == "default" else cupy.cuda.Stream(non_blocking=True):
        with hetero.use(device="cuda", results="device"):
            _, C, y = chain()
        assert type(C) is type(y) is cupy.ndarray
        assert moved == [("upload", X.nbytes)]
        got = hetero.to_host(C)
        assert moved[1:] == [("download", X.nbytes)] * (len(moved) - 1)
        close(got, EXPECTED)
        close((y * 2).get() / 2, EXPECTED @ X[0])  # read on the caller's stream


def test_without_cupy_they_are_our_own_or_pycudas(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with hetero.use(device="cuda", results="device"):
        B, C, y = chain()
        z = hetero.matvec(C[::2], B[0])
    assert type(B) is type(C) is type(y) is array_type(cuda.chosen().driver)
    close(hetero.to_host(y), EXPECTED @ X[0])
    close(hetero.to_host(z), EXPECTED[::2] @ (X @ X)[0])


def test_a_download_does_not_wait_for_what_follows(cupy):
    """A kernel of 0.3 s is queued behind it, in the default stream."""
    large = cupy.asarray(rng.random((2000, 3000), np.float32))
    spin = cupy.RawKernel(SPIN, "spin")
    hetero.to_host(large)
    spin((1,), (1,), (1,))
    cupy.cuda.runtime.deviceSynchronize()
    took = []
    for _ in range(3):  # a busy host may be late once
        pending = hetero.to_host(large, wait=False)
        spin((1,), (1,), (300_000_000,))
        begin = time.perf_counter()
        got = pending.wait()
        took.append(time.perf_counter() - begin)
        assert not cupy.cuda.Stream.null.done, "the kernel still runs"
        cupy.cuda.runtime.deviceSynchronize()
    assert min(took) < 0.15
    np.testing.assert_array_equal(got, large.get())


def test_torch_comes_to_the_host():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    values = rng.random((300, 200), np.float32)
    with torch.cuda.stream(torch.cuda.Stream()):
        array = torch.from_numpy(values).cuda()
        torch.cuda._sleep(cycles_of(0.1))
        array = array + 1
        np.testing.assert_array_equal(hetero.to_host(array), values + 1)
