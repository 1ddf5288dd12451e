"""The vectors of a solve: their dtype, brought to the host and back, and loops over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import HOST, Operand, describe
from hetero.host.loops import Family, Serving, register
from hetero.imports import load

_FAMILY = register(Family("vectors", f"{__name__}:examples"))
# ``on_vectors(dtype)`` for float32 or float64: compiled, or NumPy's where they are not.
on_vectors = Serving(_FAMILY, "hetero.kernels.cpu.vectors", "hetero.kernels.cpu.vectors_numpy")


def examples(dtype: np.dtype) -> None:
    """Call every loop."""
    loops = load("hetero.kernels.cpu.vectors")
    x, r, p, q = np.ones((4, 16), dtype)
    loops.norm(x)
    loops.scale_and_add(p, 0.5, r)
    loops.step(x, r, p, q, 0.5)
    loops.times_zero(x)


def real_dtype(**dtypes: Any) -> np.dtype:
    """float32 if all dtypes fit in it, else float64; ValueError for what is not real."""
    for name, dtype in dtypes.items():
        if np.dtype(dtype).kind not in "fiub":
            raise ValueError(f"{name} must be real, got dtype {np.dtype(dtype)}")
    return number_dtype(**dtypes)


def number_dtype(**dtypes: Any) -> np.dtype:
    """`real_dtype`, or complex64 or complex128 where one of them is complex."""
    small, kind = True, "f"
    for name, dtype in dtypes.items():
        dtype = np.dtype(dtype)
        if dtype.kind not in "fiubc":
            raise ValueError(f"{name} must be real or complex, got dtype {dtype}")
        if dtype.kind == "c":
            kind = "c"
        small = small and dtype.char in "efF"
    return _DTYPES[kind, small]


_DTYPES = {
    ("f", True): np.dtype(np.float32),
    ("f", False): np.dtype(np.float64),
    ("c", True): np.dtype(np.complex64),
    ("c", False): np.dtype(np.complex128),
}


def on_host(array: Any, operand: Operand, dtype: np.dtype) -> np.ndarray:
    """Values of an array on the host, C-contiguous and of the solve's dtype."""
    if operand.location != HOST:
        transfer = load("hetero.moving.transfer")
        array = transfer.to_host(array, operand)
    return np.ascontiguousarray(array, dtype)


def like(array: Any, values: np.ndarray) -> Any:
    """Host values as a new array of the kind of a device array, on its device."""
    transfer = load("hetero.moving.transfer")
    made, _ = transfer.empty_like(array, describe(array), values.shape, values.dtype)
    transfer.from_host(values, made, describe(made))
    return made
