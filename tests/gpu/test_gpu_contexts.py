"""On an NVIDIA GPU: calls leave the contexts of the thread that makes them as they found them."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gpu_libraries import DEVICE, LIBRARIES

import hetero
from hetero import devices

pytestmark = pytest.mark.gpu

rng = np.random.default_rng(17)
A, B = rng.random((70, 60)), rng.random((60, 50))
POISSON = hetero.Poisson((40, 40))
POINTS = rng.random((300, 5))


def stack() -> list[int]:
    """The handles of this thread's contexts, the current one first."""
    library, popped, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), []
    while len(found) < 64 and not library.cuCtxPopCurrent_v2(ctypes.byref(popped)):
        found.append(popped.value)
    for handle in reversed(found):
        assert not library.cuCtxPushCurrent_v2(ctypes.c_void_p(handle))
    return found


def bad(put):
    with pytest.raises(ValueError, match="mismatch"):
        hetero.matmul(put(A), put(A), device="cuda")


CALLS = {
    "matmul": lambda put: hetero.matmul(put(A), put(B), device="cuda"),
    "matmul tiled": lambda put: hetero.matmul(put(A), put(B), method="tiled"),
    "matmul on the CPU": lambda put: hetero.matmul(put(A), put(B), device="cpu"),
    "matmul, shapes that do not fit": bad,
    "matvec": lambda put: hetero.matvec(put(A), put(B[:, 0].copy()), device="cuda"),
    "convolve2d direct": lambda put: hetero.convolve2d(put(A), B[:3, :4], device="cuda"),
    "convolve2d fft": lambda put: hetero.convolve2d(put(A), B, device="cuda", method="fft"),
    "solve_cg": lambda put: hetero.solve_cg(POISSON, put(A.ravel()[:1600].copy()), device="cuda"),
    "solve_poisson": lambda put: hetero.solve_poisson(put(A), device="cuda", method="multigrid"),
    "solve_poisson dst": lambda put: hetero.solve_poisson(put(A), device="cuda", method="dst"),
    "kmeans": lambda put: hetero.kmeans(put(POINTS), 4, random_state=0, device="cuda"),
    "plan": lambda put: hetero.plan("matmul", put(A), put(B)),
    "memory": lambda put: hetero.memory(),
    "clear_memory": lambda put: hetero.clear_memory(),
}


def outer(kind: str):
    """What puts operands where a thread has them that already uses the GPU by other means."""
    if kind == "primary":  # as PyCUDA's users push it
        devices.get(DEVICE).primary().push()
    put = LIBRARIES[kind]().put if kind in LIBRARIES else np.asarray
    put(A)
    return put


@pytest.mark.parametrize("kind", ["nothing", "primary", "cupy", "torch"])
def test_calls_leave_the_contexts_as_they_were(kind):
    """None stays none; that of CuPy, torch or PyCUDA's user stays current, and alone."""

    def work():
        try:
            put, before = outer(kind), stack()
            assert len(before) == (kind != "nothing")
            for _ in range(2):  # planned, then remembered
                for name, call in CALLS.items():
                    call(put)
                    assert stack() == before, name
        finally:
            if kind == "primary":
                devices.get(DEVICE).driver.Context.pop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert not devices.troubles()
