"""Libraries with arrays on a GPU: what puts an array there and gets it back.

``negative``: arrays may have negative strides; ``views``: layouts that indexing gives.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import hetero
from hetero import devices
from hetero.devices import cuda
from hetero.devices.cuda.driver import array_type, given

DEVICE = "cuda:0"
# By the clock that all multiprocessors share: a kernel that goes on with another one, after other
# programs' turns, would find another count in that one's own clock, and wait for minutes.
SPIN = """
__device__ long long now() {
    long long nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}
extern "C" __global__ void spin(long long nanoseconds) {
    for (long long begin = now(); now() - begin < nanoseconds;);
}
"""


def cycles_of(seconds: float) -> int:
    """What a kernel of torch's, which counts cycles, is to wait for."""
    device = devices.get(DEVICE)
    return int(1e3 * seconds * given("cuDeviceGetAttribute", 13, device.number))


def _cupy():
    cupy = pytest.importorskip("cupy")
    views, both = ("F", "strided", "reversed"), {"put": cupy.asarray, "get": cupy.asnumpy}
    return SimpleNamespace(name="cupy", type=cupy.ndarray, **both, negative=True, views=views)


def _torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    return SimpleNamespace(
        name="torch",
        type=torch.Tensor,
        put=lambda x: torch.from_numpy(x.copy()).to(DEVICE),
        get=lambda x: x.cpu().numpy(),
        negative=False,
        views=("F", "strided"),
    )


def _made_by_hetero(name):
    if cuda.chosen().name.startswith("PyCUDA") != (name == "pycuda"):
        pytest.skip("the other of PyCUDA and cuda-bindings calls the driver, and makes the arrays")
    return SimpleNamespace(
        name=name,
        type=array_type(cuda.chosen().driver),
        put=devices.get(DEVICE).array_of,
        get=hetero.to_host,
        negative=True,
        views=(),
    )


LIBRARIES = {"cupy": _cupy, "torch": _torch}
LIBRARIES |= {name: partial(_made_by_hetero, name) for name in ("pycuda", "own")}


def lay(library, host, layout):
    """The matrix ``host`` on the device in a given layout, by the library's own views."""
    m, n = host.shape
    if layout == "C":
        return library.put(host)
    if layout == "F":
        return view(library.put(np.ascontiguousarray(host.T)), lambda x: x.T)
    if layout == "padded":
        return view(library.put(np.ascontiguousarray(np.hstack([host, host]))), np.s_[:, :n])
    if layout == "strided":
        wide = np.zeros((3 * m, 2 * n), host.dtype)
        wide[::3, ::2] = host
        return view(library.put(wide), np.s_[::3, ::2])
    if not library.negative:
        pytest.skip(f"{library.name} has no negative strides")
    return view(library.put(np.ascontiguousarray(host[::-1, ::-1])), np.s_[::-1, ::-1])


def view(array, index):
    """``array[index]``, or ``index(array)``: PyCUDA makes views only where a context is current."""
    with devices.get(DEVICE).active():
        return index(array) if callable(index) else array[index]
