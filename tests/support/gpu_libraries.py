"""Libraries with arrays on a GPU: what puts an array there and gets it back.

``negative``: arrays may have negative strides; ``views``: layouts that indexing gives.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hetero import devices

DEVICE = "cuda:0"


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


def _pycuda():
    gpuarray = pytest.importorskip("pycuda.gpuarray")

    def put(x):
        with devices.get(DEVICE).active():
            return gpuarray.to_gpu(np.ascontiguousarray(x))

    def get(x):
        assert x.flags.c_contiguous
        with devices.get(DEVICE).active():
            return x.get()

    both = {"put": put, "get": get}
    return SimpleNamespace(name="pycuda", type=gpuarray.GPUArray, **both, negative=True, views=())


LIBRARIES = {"cupy": _cupy, "torch": _torch, "pycuda": _pycuda}
