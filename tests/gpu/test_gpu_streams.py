"""Arrays that CuPy and torch write and read on streams of their own, on a real GPU.

The kernel before a call runs for tenths of a second. A call that did not wait for it would read
zeros; one at which the host waits would return after it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest
from fakes import noting
from gpu_libraries import SPIN, cycles_of
from scipy import signal

import hetero
from hetero import devices

pytestmark = pytest.mark.gpu
SLOW = 0.15  # seconds of the kernel before a call
rng = np.random.default_rng(5)
A = rng.standard_normal((600, 500)).astype(np.float32)
B = rng.standard_normal((500, 400)).astype(np.float32)
TAPS = rng.standard_normal((5, 4)).astype(np.float32)


class OfCupy:
    """What the tests do with CuPy."""

    def __init__(self):
        self.xp = pytest.importorskip("cupy")
        self._spin = self.xp.RawKernel(SPIN, "spin")

    def stream(self):
        return self.xp.cuda.Stream(non_blocking=True)

    def within(self, stream):
        return stream

    def late(self, values):
        """An array that is zero until a slow kernel has run, on the current stream."""
        source, made = self.xp.asarray(values), self.xp.zeros_like(self.xp.asarray(values))
        self.xp.cuda.get_current_stream().synchronize()
        self._spin((1,), (1,), (int(1e9 * SLOW),))
        made[...] = source
        return made

    def is_done(self, stream):
        return stream.done

    def get(self, array):
        return array.get()


class OfTorch(OfCupy):
    """The same with torch."""

    def __init__(self):
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("torch without CUDA")
        self._cycles = cycles_of(SLOW)

    def stream(self):
        return self.torch.cuda.Stream()

    def within(self, stream):
        return self.torch.cuda.stream(stream)

    def late(self, values):
        source = self.torch.from_numpy(np.ascontiguousarray(values)).to("cuda:0")
        made = self.torch.zeros_like(source)
        self.torch.cuda.current_stream().synchronize()
        self.torch.cuda._sleep(self._cycles)
        made.copy_(source)
        return made

    def is_done(self, stream):
        return stream.query()

    def get(self, array):
        return array.cpu().numpy()


@pytest.fixture(params=[OfCupy, OfTorch], ids=["cupy", "torch"])
def library(request):
    return request.param()


@pytest.fixture
def waits(monkeypatch):
    """Names of the device's functions that hold up the host, as they are called."""
    kind, found = type(devices.get("cuda:0")), []
    for name in ("synchronize", "download"):
        noting(monkeypatch, kind, name, lambda *_, name=name: found.append(name))
    return found


def convolved(image, taps):
    return hetero.convolve2d(image, taps, "same", device="cuda", method="direct")


CALLS = {
    "matmul": (lambda x, y: hetero.matmul(x, y, device="cuda"), A, B, A @ B),
    "matvec": (lambda x, y: hetero.matvec(x, y, device="cuda"), A, B[:, 0], A @ B[:, 0]),
    "convolve2d": (convolved, A, TAPS, signal.convolve2d(A, TAPS, "same")),
}


@pytest.mark.parametrize(("name", "is_default"), [*((n, False) for n in CALLS), ("matmul", True)])
def test_producers_are_waited_for_and_consumers_wait(library, waits, name, is_default):
    call, first, second, expected = CALLS[name]
    stream = library.stream()
    with nullcontext() if is_default else library.within(stream):
        second = library.late(second)
        library.get(2 * call(library.late(first), second))  # compiled and loaded
        late = library.late(first)
        waits.clear()
        begin = time.perf_counter()
        result = call(late, second)
        seconds = time.perf_counter() - begin
        was_done = not is_default and library.is_done(stream)
        del late
        twice = 2 * result  # on the caller's stream
        assert not waits
        assert not was_done, f"the host waited for {seconds:.3f} s"
        assert seconds < SLOW / 3
        np.testing.assert_allclose(library.get(twice), 2 * expected, rtol=2e-4, atol=1e-2)
