"""CUDA kernels that copy asynchronously, with no GPU: run as fibers on the CPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import cuda_on_cpu
import kernel_runs
import numpy as np
import pytest

from hetero.kernels.matmul.plan import tiles

TILES = tiles("float32", (9, 0))[1:] + tiles("float64", (9, 0))
LAYOUTS = [{"A_K": a, "B_K": b, "ALIGNED": v} for a in (0, 1) for b in (0, 1) for v in (0, 1)]
# Every tile with each pair of what makes a layout, and every second tile with all three alike.
LAID = [
    (tile, layout)
    for turn, tile in enumerate(TILES)
    for layout in LAYOUTS
    if sum(layout.values()) % 2 == turn % 2
]


def operand(batch, rows, columns, by_rows, aligned, dtype):
    """A matrix with gaps between its lines, within an array of NaN."""
    layout = ("row" if by_rows else "column") + (", padded" if aligned else ", odd padding")
    place = SimpleNamespace(empty=np.empty)
    _, view = kernel_runs.operand(place, batch, rows, columns, dtype, layout, 1 - aligned)
    kernel_runs.fill(view, rows)
    return view


@pytest.mark.parametrize(("tile", "layout"), LAID)
def test_products(tile, layout):
    """Of several shapes, to k roundings of k products."""
    is_double, aligned = tile.source == "matmul_tensor.cu", layout["ALIGNED"]
    dtype, width = (np.float64, 2) if is_double else (np.float32, 4)
    more = {} if is_double else {"REAL": "float", "WIDTH": 4}
    defines = {"RESIDENT": 1, **more, **dict(tile.defines), **layout}
    launch = cuda_on_cpu.kernel(tile.source, "matmul", defines)
    for m, n, k, parts, batch in (
        (tile.m, tile.n, 160, 1, 1),
        (tile.m + 4, tile.n - 4, 52, 1, 2),
        (8, 12, 200, 3, 1),
        (tile.m + 1, 7, 33, 1, 1),
        (3, tile.n + 5, 1, 1, 2),
    ):
        if aligned and (m % width or n % width or k % width):
            continue
        A = operand(batch, m, k, layout["A_K"], aligned, dtype)
        B = operand(batch, k, n, not layout["B_K"], aligned, dtype)
        chunk = max(-(-k // parts // 64) * 64, 64)
        parts = -(-k // chunk)
        C = np.full((parts, batch, m, n), np.nan, dtype)
        grid = -(-m // tile.m) * -(-n // tile.n) * parts * batch
        strides = itertools.chain(*map(kernel_runs.elements, (A, B, C)))
        sizes = m, n, k, parts, chunk, *strides, int(n % width == 0)
        assert launch(grid, A, B, C, *sizes) is None
        error = np.abs(C.sum(0) - A.astype(float) @ B.astype(float)).max()
        assert error < k * np.finfo(dtype).eps, (m, n, k)  # and no NaN
