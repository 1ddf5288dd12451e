"""Arrays of other streams than the default one: who waits for whom; run by test_failing_driver.py.

Kernels of the fake driver do nothing: what is checked are the calls that reach it. Prints "right".
"""

from __future__ import annotations

import ctypes
import gc
from functools import partial

import failing_driver
import fakes
import numpy as np
from failing_driver import driver

import hetero
from hetero import devices

HOST_WAITS = {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"}
HOST_WAITS |= {"cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"}
failing_driver.install(computing=False)
failing_driver.fresh()
device = devices.get("cuda:0")
rng = np.random.default_rng(1)
device.primary()
library = ctypes.CDLL("libcuda.so.1")


def new_stream() -> int:
    """A handle that PyCUDA knows nothing of."""
    handle = ctypes.c_void_p()
    with device.active():
        assert library.cuStreamCreate(ctypes.byref(handle), 1) == 0
    return handle.value


def foreign(shape, stream):
    """An array of a library that names its stream."""
    with device.active():
        return fakes.Array.of(rng.random(shape, np.float32), device, stream)


def seen(call):
    """(waits, calls that hold up the host) of a second call, which compiles and loads nothing."""
    call()
    driver.fail(0)
    call()
    return driver.waits(), [name for name in driver.names() if name in HOST_WAITS]


first, second = new_stream(), new_stream()
A, B, out = foreign((64, 48), first), foreign((48, 32), second), foreign((64, 32), None)
x, image, filter = foreign((48,), None), foreign((300, 300), None), foreign((3, 3), first)


def both(*streams):
    return sorted([(0, s) for s in streams] + [(s, 0) for s in streams])


for placed in ({"method": "tiled"}, {"method": "tiled", "out": out}):
    waits, held = seen(lambda placed=placed: hetero.matmul(A, B, device="cuda", **placed))
    assert sorted(waits) == both(first, second), waits
    assert {w for w, _ in waits[:2]} == {0}, "before it computes, the default stream waits"
    assert not held, held
waits, held = seen(lambda: hetero.matvec(A, x, device="cuda", method="tiled"))
assert (sorted(waits), held) == (both(first), []), (waits, held)
square, other = foreign((32, 32), first), foreign((32, 32), None)
waits, held = seen(lambda: hetero.matmul(square, other, out=square, device="cuda"))
assert (set(waits), held) == (set(both(first)), []), (waits, held)
in_stream = foreign((300, 300), second)
taps = np.ones((3, 3), np.float32)
for pixels, kernel, streams in (
    (in_stream, taps, [second]),
    (in_stream, filter, [first, second]),
    (image, filter, [first]),
    (image, taps, []),
):
    placed = {"device": "cuda", "method": "direct"}
    waits, held = seen(partial(hetero.convolve2d, pixels, kernel, "same", **placed))
    assert (sorted(waits), held) == (both(*streams), []), (waits, held)

# Where the host reads a result it waits for that alone, and the streams are ordered all the same.
matrix, b = foreign((32, 32), first), foreign((32,), second)
waits, held = seen(lambda: hetero.solve_cg(matrix, b, maxiter=1, device="cuda"))
assert sorted(waits) == both(first, second), waits
waits, held = seen(lambda: hetero.matmul(A, B, device="cpu"))
assert (0, first) in waits
assert (0, second) in waits
assert held == ["cuMemcpyDtoH_v2"] * 2, held

gc.collect()
assert driver.live()["event"] <= 8, driver.live()
assert not driver.live()["pushed"], driver.live()
print("right")
