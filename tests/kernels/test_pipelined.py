"""CUDA kernels that copy asynchronously, with no GPU: run as fibers on the CPU."""

from __future__ import annotations

import re

import cuda_on_cpu
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


def is_double(tile):
    return tile.source == "matmul_tensor.cu"


def built(tile, layout, *edit):
    more = {} if is_double(tile) else {"REAL": "float", "WIDTH": 4}
    defines = {"RESIDENT": 1, **more, **dict(tile.defines), **layout}
    return cuda_on_cpu.kernel(tile.source, "matmul", defines, *edit)


def operand(rng, batch, rows, columns, by_rows, aligned, dtype):
    """A matrix with gaps between its lines, within an array of NaN."""
    width = 16 // np.dtype(dtype).itemsize
    long = (columns if by_rows else rows) + (width if aligned else 3)
    lines = rows if by_rows else columns
    room = np.full(batch * lines * long + 64, np.nan, dtype)
    begin = -room.ctypes.data % 64 // room.itemsize + (0 if aligned else 1)
    whole = room[begin : begin + batch * lines * long].reshape(batch, lines, long)
    used = whole[:, :, : columns if by_rows else rows]
    used[...] = rng.random(used.shape) - 0.5
    return used if by_rows else used.transpose(0, 2, 1)


def steps(array):
    return [stride // array.itemsize for stride in array.strides]


def errors(launch, tile, layout):
    """Of products of several shapes, in roundings of k products; NaN is infinitely wrong."""
    dtype = np.float64 if is_double(tile) else np.float32
    aligned = layout["ALIGNED"]
    width = 16 // np.dtype(dtype).itemsize
    tile_m, tile_n = tile.m, tile.n
    rng = np.random.default_rng(0)
    found = []
    for m, n, k, parts, batch in (
        (tile_m, tile_n, 160, 1, 1),
        (tile_m + 4, tile_n - 4, 52, 1, 2),
        (8, 12, 200, 3, 1),
        (tile_m + 1, 7, 33, 1, 1),
        (3, tile_n + 5, 1, 1, 2),
    ):
        if aligned and (m % width or n % width or k % width):
            continue
        A = operand(rng, batch, m, k, layout["A_K"], aligned, dtype)
        B = operand(rng, batch, k, n, not layout["B_K"], aligned, dtype)
        chunk = max(-(-k // parts // 64) * 64, 64)
        parts = -(-k // chunk)
        C = np.full((parts, batch, m, n), np.nan, dtype)
        grid = -(-m // tile_m) * -(-n // tile_n) * parts * batch
        sizes = m, n, k, parts, chunk, *steps(A), *steps(B), *steps(C), int(n % width == 0)
        assert launch(grid, A, B, C, *sizes) is None
        error = np.abs(C.sum(0) - A.astype(float) @ B.astype(float)).max()
        found.append(error / (k * np.finfo(dtype).eps))
    return np.nan_to_num(found, nan=np.inf)


@pytest.mark.parametrize(("tile", "layout"), LAID)
def test_products(tile, layout):
    assert max(errors(built(tile, layout), tile, layout)) < 1.0


@pytest.mark.parametrize("tile", TILES[::5])
def test_a_kernel_that_waits_for_no_copy_shows(tile):
    def edit(text):
        return re.sub(r"^ +wait_for_copies\(\);\n", "", text, flags=re.MULTILINE)

    layout = LAYOUTS[1]
    assert max(errors(built(tile, layout, edit), tile, layout)) > 1.0
