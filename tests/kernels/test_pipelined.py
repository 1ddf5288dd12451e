"""CUDA kernels that copy asynchronously, with no GPU: run as fibers on the CPU."""

from __future__ import annotations

import re

import cuda_on_cpu
import numpy as np
import pytest

FLOAT32, FLOAT64 = "matmul_pipelined.cu", "matmul_tensor.cu"
TILES = {
    FLOAT32: (
        {"THREAD_M": 8, "THREAD_N": 16, "WARPS_M": 2, "WARPS_N": 2, "TILE_K": 8, "STAGES": 4},
        {"THREAD_M": 8, "THREAD_N": 8, "WARPS_M": 1, "WARPS_N": 4, "TILE_K": 16, "STAGES": 3},
        {"THREAD_M": 4, "THREAD_N": 8, "WARPS_M": 2, "WARPS_N": 2, "TILE_K": 16, "STAGES": 4},
        {"THREAD_M": 4, "THREAD_N": 4, "WARPS_M": 1, "WARPS_N": 2, "TILE_K": 32, "STAGES": 3},
    ),
    FLOAT64: (
        {"WARP_M": 64, "WARP_N": 32, "WARPS_M": 2, "WARPS_N": 4, "STAGES": 4},
        {"WARP_M": 32, "WARP_N": 32, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 3},
        {"WARP_M": 16, "WARP_N": 32, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 2},
        {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 5, "SLICES": 2},
        {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 1, "WARPS_N": 2, "STAGES": 4, "SLICES": 4},
        {"WARP_M": 32, "WARP_N": 16, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 3, "SLICES": 2},
    ),
}
LAYOUTS = [{"A_K": a, "B_K": b, "ALIGNED": v} for a in (0, 1) for b in (0, 1) for v in (0, 1)]
CASES = [(source, tile) for source, tiles in TILES.items() for tile in tiles]
# Every tile with each pair of what makes a layout, and every second tile with all three alike.
LAID = [
    (*case, layout)
    for turn, case in enumerate(CASES)
    for layout in LAYOUTS
    if sum(layout.values()) % 2 == turn % 2
]


def built(source, tile, layout, *edit):
    more = {"REAL": "float", "WIDTH": 4} if source == FLOAT32 else {"SLICES": 1}
    return cuda_on_cpu.kernel(source, "matmul", {"RESIDENT": 1, **more, **tile, **layout}, *edit)


def tile_of(source, tile):
    across = (8 * tile["THREAD_M"], 4 * tile["THREAD_N"]) if source == FLOAT32 else None
    m, n = across or (tile["WARP_M"], tile["WARP_N"])
    return m * tile["WARPS_M"], n * tile["WARPS_N"]


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


def errors(launch, source, tile, layout):
    """Of products of several shapes, in roundings of k products; NaN is infinitely wrong."""
    dtype = np.float32 if source == FLOAT32 else np.float64
    aligned = layout["ALIGNED"]
    width = 16 // np.dtype(dtype).itemsize
    tile_m, tile_n = tile_of(source, tile)
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


@pytest.mark.parametrize(("source", "tile", "layout"), LAID, ids=str)
def test_products(source, tile, layout):
    launch = built(source, tile, layout)
    assert max(errors(launch, source, tile, layout)) < 1.0


@pytest.mark.parametrize(("source", "tile"), CASES[::5], ids=str)
def test_a_kernel_that_waits_for_no_copy_shows(source, tile):
    def edit(text):
        return re.sub(r"^ +wait_for_copies\(\);\n", "", text, flags=re.MULTILINE)

    layout = LAYOUTS[1]
    launch = built(source, tile, layout, edit)
    assert max(errors(launch, source, tile, layout)) > 1.0
