"""Launch plans of C = A B."""

from __future__ import annotations

import math
from typing import NamedTuple

from .launch import VECTOR_BYTES, Launch, Steps, ceil_div, check_dtype
from .plan_matvec import matvec
from .plan_partial import sum_partials

__all__ = ["matmul"]

_REAL = {"float32": "float", "float64": "double"}


# Least k of a part; what a second launch costs, in seconds and in bytes per second of its traffic;
# and the share of the time that a split may take at most, since its cost is the least sure.
_LEAST_CHUNK = 64
_CHUNK_MULTIPLE = 32  # of every TILE_K
_LAUNCH_SECONDS = 3.0e-6
_PARTIAL_BYTES_PER_SECOND = 2.0e12
_SPLIT_SHARE = 0.85
# A block's start and end: its first loads from memory, its stores.
_BLOCK_SECONDS = 1.0e-6


class Tile(NamedTuple):
    """A way to cut C: the sizes that matmul.cu is compiled with, and how fast it then is.

    ``rates`` are FLOP/s of one multiprocessor with 1, 2, ... blocks on it, as measured on an H200
    (docs/kernels.md); as many as its registers hold. Only their ratios, and their order of
    magnitude beside the seconds above, matter to the choice.
    """

    m: int
    n: int
    threads: int
    defines: tuple[tuple[str, int], ...]
    rates: tuple[float, ...]


def _tile(
    thread_m: int, thread_n: int, warps_m: int, warps_n: int, depth: int, rates: tuple[float, ...]
) -> Tile:
    """Return a tile of warps_m x warps_n warps of 8 x 4 threads, each with thread_m x thread_n."""
    defines = (
        ("THREAD_M", thread_m),
        ("THREAD_N", thread_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("TILE_K", depth),
        ("RESIDENT", len(rates)),
    )
    return Tile(
        8 * thread_m * warps_m, 4 * thread_n * warps_n, 32 * warps_m * warps_n, defines, rates
    )


# By dtype, and whether on tensor cores.
_TILES = {
    ("float32", False): (
        _tile(8, 16, 2, 2, 8, (273e9, 369e9)),
        _tile(8, 8, 1, 4, 16, (269e9, 349e9, 360e9)),
        _tile(4, 8, 2, 2, 32, (254e9, 285e9, 312e9)),
        _tile(4, 4, 1, 2, 32, (127e9, 197e9, 197e9, 220e9, 220e9, 228e9, 228e9, 228e9)),
    ),
    ("float64", False): (
        _tile(8, 8, 2, 4, 8, (185e9,)),
        _tile(8, 8, 1, 4, 8, (123e9, 160e9)),
        _tile(4, 8, 2, 2, 16, (130e9, 142e9)),
        _tile(4, 4, 1, 2, 32, (61e9, 112e9, 112e9, 129e9)),
    ),
    ("float64", True): (
        _tile(8, 8, 1, 4, 8, (169e9, 314e9)),
        _tile(4, 8, 2, 2, 16, (198e9, 263e9)),
        _tile(4, 4, 1, 2, 32, (100e9, 127e9, 143e9, 152e9)),
    ),
}


def matmul(
    *,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    multiprocessors: int,
    alignment: int,
    block_limit: int = 1024,
    tensor_cores: bool = False,
) -> Steps:
    """Plan C = A B for a batch of m x k and k x n matrices.

    Parameters
    ----------
    m, n, k, batch : int
        Extents, each at least 1.
    dtype : {"float32", "float64"}
        Of all operands; sums are kept in it too.
    a_strides, b_strides, c_strides : tuple of int
        (batch, row, column), in elements, of any sign; 0 repeats (not in C).
    multiprocessors : int
        Of the device.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    block_limit : int
        Most threads the device takes in a block; at least 64.
    tensor_cores : bool
        Whether the device is a CUDA device with tensor cores for float64 (compute capability 8.0,
        9.0 or 10.0). They are used for float64 only, and round like the other units.

    Returns
    -------
    Steps
        The launches use the buffers ``"A"``, ``"B"``, ``"C"`` and, if split, ``"partial"``.
    """
    width = VECTOR_BYTES // check_dtype(dtype)
    if n == 1 or m == 1:
        return _as_matvec(
            m == 1, m * n, k, batch, dtype, a_strides, b_strides, c_strides,
            multiprocessors, alignment, block_limit,
        )  # fmt: skip
    names = ("A", "B")
    if abs(c_strides[2]) != 1 and abs(c_strides[1]) == 1:
        # C^T = B^T A^T has rows that are contiguous.
        m, n = n, m
        a_strides, b_strides = _transposed(b_strides), _transposed(a_strides)
        c_strides = _transposed(c_strides)
        names = ("B", "A")

    a_k = _k_is_fast(a_strides[2], a_strides[1], m, k)
    b_k = _k_is_fast(b_strides[1], b_strides[2], n, k)
    aligned = alignment >= VECTOR_BYTES
    loads = (
        aligned
        and _loads_aligned(a_strides[0], a_strides[2], a_strides[1], k, m, a_k, batch, width)
        and _loads_aligned(b_strides[0], b_strides[1], b_strides[2], k, n, b_k, batch, width)
    )
    tensor = tensor_cores and dtype == "float64"
    tile, parts = _choose(m, n, k, batch, dtype, tensor, multiprocessors, block_limit)
    chunk = ceil_div(ceil_div(k, parts), _CHUNK_MULTIPLE) * _CHUNK_MULTIPLE
    parts = ceil_div(k, chunk)
    to, to_strides = (
        ("C", (0, *c_strides)) if parts == 1 else ("partial", (batch * m * n, m * n, n, 1))
    )
    stores = (
        (aligned or parts > 1)
        and n % width == 0
        and to_strides[3] == 1
        and (m == 1 or to_strides[2] % width == 0)
        and (batch == 1 or to_strides[1] % width == 0)
    )
    real = _REAL[dtype]
    variant = ("tensor" if tensor else "tile") + f"{tile.m}x{tile.n}" + ("" if loads else "s")
    first = Launch(
        source="matmul_tensor.cu" if tensor else "matmul.cu",
        kernel="matmul",
        defines=(
            ("REAL", real),
            ("WIDTH", width),
            *tile.defines,
            ("A_K", int(a_k)),
            ("B_K", int(b_k)),
            ("ALIGNED", int(loads)),
        ),
        grid=ceil_div(m, tile.m) * ceil_div(n, tile.n) * parts * batch,
        block=tile.threads,
        arguments=(
            *names,
            to,
            m,
            n,
            k,
            parts,
            chunk,
            *a_strides,
            *b_strides,
            *to_strides,
            int(stores),
        ),
    )
    if parts == 1:
        return Steps((first,), 0, variant)
    second = sum_partials(
        real=real,
        parts=parts,
        batch=batch,
        rows=m,
        cols=n,
        strides=c_strides,
        out="C",
        multiprocessors=multiprocessors,
        block_limit=block_limit,
    )
    return Steps((first, second), parts * batch * m * n, f"{variant}p{parts}")


def _transposed(strides: tuple[int, int, int]) -> tuple[int, int, int]:
    return strides[0], strides[2], strides[1]


def _k_is_fast(k_stride: int, outer_stride: int, outer: int, k: int) -> bool:
    """Tell whether neighbours in memory are neighbours along k."""
    if k == 1 or k_stride == 0:
        return False
    return outer == 1 or outer_stride == 0 or abs(k_stride) <= abs(outer_stride)


def _loads_aligned(
    batch_stride: int,
    k_stride: int,
    outer_stride: int,
    k: int,
    outer: int,
    k_fast: bool,
    batch: int,
    width: int,
) -> bool:
    """Tell whether an operand can be loaded by vectors along its fast dimension."""
    if k_fast:
        fast, fast_extent, slow, slow_extent = k_stride, k, outer_stride, outer
    else:
        fast, fast_extent, slow, slow_extent = outer_stride, outer, k_stride, k
    return (
        fast == 1
        and fast_extent % width == 0
        and (slow_extent == 1 or slow % width == 0)
        and (batch == 1 or batch_stride % width == 0)
    )


def _choose(
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    tensor: bool,
    multiprocessors: int,
    block_limit: int,
) -> tuple[Tile, int]:
    """Return the tile and the number of parts with the least predicted time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    """
    best = math.inf
    chosen = None
    outputs_bytes = m * n * batch * check_dtype(dtype)
    for tile in _TILES[dtype, tensor]:
        tile_m, tile_n, threads, _, rates = tile
        if threads > block_limit:
            continue
        tiles = -(-m // tile_m) * -(-n // tile_n) * batch
        resident = len(rates)
        active = resident * multiprocessors
        choices = (1,)
        if tiles <= active // 2 and k >= 2 * _LEAST_CHUNK:
            most = k // _LEAST_CHUNK
            choices = (1, min(active // tiles, most))
            if resident > 1 and 2 * tiles <= multiprocessors:
                choices += (min(multiprocessors // tiles, most),)
        for parts in choices:
            flops = 2.0 * tile_m * tile_n * -(-k // parts)
            waves, rest = divmod(tiles * parts, active)
            seconds = waves * (_BLOCK_SECONDS + resident * flops / rates[-1])
            if rest:
                blocks = -(-rest // multiprocessors)
                seconds += _BLOCK_SECONDS + blocks * flops / rates[blocks - 1]
            if parts > 1:
                traffic = (parts + 1) * outputs_bytes
                seconds += _LAUNCH_SECONDS + traffic / _PARTIAL_BYTES_PER_SECOND
                seconds /= _SPLIT_SHARE
            if seconds < best:
                best = seconds
                chosen = tile, parts
    if chosen is None:
        raise ValueError(f"block_limit must be at least 64, got {block_limit}")
    return chosen


def _as_matvec(
    row: bool,
    outputs: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    multiprocessors: int,
    alignment: int,
    block_limit: int,
) -> Steps:
    """Plan a product with a single column, c = A b, or a single row, c = B^T a, as a matvec."""
    if row:
        names = {"A": "B", "x": "A", "y": "C"}
        matrix = _transposed(b_strides)
        x, y = (a_strides[0], a_strides[2]), (c_strides[0], c_strides[2])
    else:
        names = {"A": "A", "x": "B", "y": "C"}
        matrix = a_strides
        x, y = b_strides[:2], c_strides[:2]
    steps = matvec(
        m=outputs,
        k=k,
        batch=batch,
        dtype=dtype,
        a_strides=matrix,
        x_strides=x,
        y_strides=y,
        multiprocessors=multiprocessors,
        alignment=alignment,
        block_limit=block_limit,
    )
    launches = tuple(
        launch._replace(arguments=tuple(names.get(a, a) for a in launch.arguments))
        for launch in steps.launches
    )
    return steps._replace(launches=launches)
