"""CUDA kernels that copy asynchronously, with no GPU: run as fibers on the CPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import compiled
import numpy as np
import pytest

from hetero import kernels

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

LAUNCH = """
static long long *given;
static void kernel()
{
    matmul((const REAL *)given[0], (const REAL *)given[1], (REAL *)given[2], given[3], given[4],
           given[5], given[6], given[7], given[8], given[9], given[10], given[11], given[12],
           given[13], given[14], given[15], given[16], given[17], given[18]);
}
extern "C" const char *launch(int grid, long long *arguments)
{
    given = arguments;
    failure = nullptr;
    run(kernel, grid, THREADS);
    return failure;
}
"""


def tile_of(source, tile):
    across = (8 * tile["THREAD_M"], 4 * tile["THREAD_N"]) if source == FLOAT32 else None
    m, n = across or (tile["WARP_M"], tile["WARP_N"])
    return m * tile["WARPS_M"], n * tile["WARPS_N"]


def emulated(source, defines, directory, edit=lambda text: text, family="matmul", call=LAUNCH):
    """The kernel as a function of a grid and its arguments."""
    if not shutil.which("g++"):
        pytest.skip("no g++ to compile the kernel for the CPU")
    text = (Path(kernels.__file__).parent / family / source).read_text()
    text = edit(text.replace('#include "ptx.cu"\n', ""))
    text = re.sub(r'#include "(\w+\.cu)"', lambda found: kernels.source(found[1]), text)
    text, found = re.subn(
        r"extern __shared__ \S+ (\w+) shared\[\];", r"\1 *const shared = (\1 *)shared_memory;", text
    )
    assert found == 1
    header = (Path(__file__).parents[1] / "support" / "cuda_on_cpu.h").read_text()
    options = [f"-D{name}={value}" for name, value in defines.items()]
    command = [
        "g++",
        "-O1",
        "-w",
        "-std=c++17",
        "-shared",
        "-fPIC",
        *options,
        "-o",
        "kernel.so",
        "kernel.cpp",
    ]
    text = f"{header}\n{text}\n{call}"

    def make():
        (directory / "kernel.cpp").write_text(text)
        subprocess.run(command, cwd=directory, check=True)
        return (directory / "kernel.so").read_bytes()

    machine_code = compiled.remembered(make, text, command, compiled.gpp_version())
    (directory / "kernel.so").write_bytes(machine_code)
    launch = ctypes.CDLL(str(directory / "kernel.so")).launch
    launch.restype = ctypes.c_char_p
    return launch


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
        arguments = [A.ctypes.data, B.ctypes.data, C.ctypes.data, m, n, k, parts, chunk]
        arguments += [*steps(A), *steps(B), *steps(C), int(n % width == 0)]
        assert launch(grid, (ctypes.c_longlong * len(arguments))(*arguments)) is None
        error = np.abs(C.sum(0) - A.astype(float) @ B.astype(float)).max()
        found.append(error / (k * np.finfo(dtype).eps))
    return np.nan_to_num(found, nan=np.inf)


@pytest.mark.parametrize(("source", "tile", "layout"), LAID, ids=str)
def test_products(source, tile, layout, tmp_path):
    launch = emulated(source, {**tile, **layout}, tmp_path)
    assert max(errors(launch, source, tile, layout)) < 1.0


@pytest.mark.parametrize(("source", "tile"), CASES[::5], ids=str)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("        wait_for_copies();\n", ""),
        ("step + STAGES - 1 < steps", "step + STAGES < steps"),
        ("writing = reading;", "writing = reading + 1 == STAGES ? 0 : reading + 1;"),
    ],
    ids=["waits for nothing", "last tile not copied", "copies over what is read"],
)
def test_planted_mistakes_show(source, tile, right, wrong, tmp_path):
    """A kernel with any of these must fail the test above."""
    layout = LAYOUTS[1]

    def edit(text):
        text = re.sub(r"^ +(?=wait_for_copies)", " " * 8, text, flags=re.MULTILINE)
        assert right in text
        return text.replace(right, wrong)

    launch = emulated(source, {**tile, **layout}, tmp_path, edit)
    assert max(errors(launch, source, tile, layout)) > 1.0
