"""Vector operations on the CPU: compiled loops, or NumPy's where these are being compiled."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from hetero.devices import loop_compiler, loops

_FAMILY = loops.register(loops.Family("vectors", 5.0, f"{__name__}:examples", served=True))
_compiled: dict[np.dtype, ModuleType] = {}  # what a look-up has to cost


def serving(dtype: np.dtype) -> ModuleType:
    """`hetero.kernels.cpu.vectors`, or what serves in its place, for float32 or float64."""
    found = _compiled.get(dtype)
    if found is not None:
        return found
    name = _FAMILY.of(dtype)
    if loops.is_ready(name):
        from hetero.kernels.cpu import vectors

        _compiled[dtype] = vectors
        return vectors
    loop_compiler.begin(name)
    from hetero.kernels.cpu import vectors_numpy

    return vectors_numpy


def examples(dtype: np.dtype) -> None:
    """Call every loop for vectors of both kinds: one thread's and all threads'."""
    from hetero.kernels.cpu import vectors

    for n in (16, vectors.SHARED):
        x, r, p, q = np.ones((4, n), dtype)
        vectors.norm(x)
        vectors.scale_and_add(p, 0.5, r)
        vectors.step(x, r, p, q, 0.5)
        vectors.times_zero(x)
