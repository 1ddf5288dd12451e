"""The compiled loops of convolutions on the CPU, and those that look at an image's values."""

from __future__ import annotations

import numpy as np

from hetero.host.compiled import loop_compiler, loops
from hetero.imports import load
from hetero.ops.convolve2d.window import Window, mode_of

_SERIAL = 1 << 17  # elements below which NumPy multiplies faster than our threads start

SUMS = loops.register(loops.Family("convolutions", 3.5, f"{__name__}:sums"))
_RANGES = loops.register(loops.Family("ranges", 3.0, f"{__name__}:ranges", served=True))

# ``ranges_serving(dtype)`` for float32 or float64.
ranges_serving = loop_compiler.Serving(
    _RANGES, "hetero.kernels.cpu.ranges", "hetero.kernels.cpu.ranges_numpy"
)


def looks_by_loops(dtype: np.dtype) -> bool:
    """Whether the loops that look at an image are there; NumPy does it with one thread else."""
    return loops.is_ready(_RANGES.of(dtype))


def are_few(window: Window, batch: int, dtype: np.dtype) -> bool:
    """Whether the direct sum is SciPy's: there are few products."""
    return window.has_few(dtype.char) and batch == 1 and mode_of(window) is not None


def is_one(window: Window, batch: int) -> bool:
    """Whether the direct sum is NumPy's: one tap, and an image that is not worth threads."""
    taps = window.filter_height * window.filter_width
    return taps == 1 and batch * window.height * window.width < _SERIAL


def sums(dtype: np.dtype) -> None:
    """Call every loop: the direct sum and the two passes share them."""
    convolve = load("hetero.kernels.cpu.convolve")
    out, taps = np.zeros((1, 64, 64), dtype), np.ones((3, 3), dtype)
    convolve.direct(np.ones((1, 64, 64), dtype), taps, out, 1, 1, convolve.WRAP, 0.0)


def ranges(dtype: np.dtype) -> None:
    """Call every loop."""
    ranges = load("hetero.kernels.cpu.ranges")
    planes = np.ones((1, 40, 40), dtype)
    found, _, _ = ranges.block_sums(planes, 3, 3)
    ranges.least_lines(planes, np.argwhere(found > 0.0), *found.shape[1:])
