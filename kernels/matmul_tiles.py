"""Ways to cut C = A B into tiles, and White's execution metrics to choose among them."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from .launch import ELEMENT_BYTES

__all__ = ["CHUNK_MULTIPLE", "Tile", "choose", "tiles"]

# Least k of a part; what a second launch costs, in seconds and in bytes per second of its traffic;
# and the share of the time that a split may take at most, since its cost is the least sure.
_LEAST_CHUNK = 64
CHUNK_MULTIPLE = 32  # of every TILE_K
_LAUNCH_SECONDS = 3.0e-6
_PARTIAL_BYTES_PER_SECOND = 4.0e12
_SPLIT_SHARE = 0.95
# A block's start and end: its first loads from memory; and its stores, in bytes per second.
_BLOCK_SECONDS = 1.0e-6
_STORED_PER_SECOND = 25e9
# Reading the operands once takes that long at least; less is reached with few bytes on their way.
_READ_PER_SECOND = 3.9e12
_LATENCY_SECONDS = 1.4e-6

_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))
_TENSOR_K = 16


class Tile(NamedTuple):
    """A way to cut C: a kernel, the sizes it is compiled with, and how fast it then is.

    ``shared`` are the bytes of dynamic shared memory by whether A's and B's fast dimension is k.
    ``on_their_way`` are the bytes that a block asks for before it needs them.
    ``rates`` are FLOP/s of one multiprocessor with 1, 2, ... blocks on it, as measured on an H200
    (docs/kernels.md); as many as its registers hold. Only their ratios, and their order of
    magnitude beside the seconds above, matter to the choice.
    """

    source: str
    m: int
    n: int
    threads: int
    defines: tuple[tuple[str, int], ...]
    shared: tuple[tuple[int, int], tuple[int, int]]
    on_their_way: int
    rates: tuple[float, ...]


def _plain(
    thread_m: int,
    thread_n: int,
    warps_m: int,
    warps_n: int,
    depth: int,
    *gigaflops: float,
    stages: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each with thread_m x thread_n; copied asynchronously with stages."""
    m, n = 8 * thread_m * warps_m, 4 * thread_n * warps_n
    defines = (
        ("THREAD_M", thread_m),
        ("THREAD_N", thread_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("TILE_K", depth),
        *((("STAGES", stages),) if stages else ()),
    )
    source = "matmul_pipelined.cu" if stages else "matmul.cu"
    shared = stages * depth * (m + n + 8) * ELEMENT_BYTES["float32"]
    rates = tuple(1e9 * rate for rate in gigaflops)
    threads = 32 * warps_m * warps_n
    ahead = max(stages - 1, 1) * depth * (m + n) * ELEMENT_BYTES["float32"]
    return Tile(source, m, n, threads, defines, ((shared, shared), (shared, shared)), ahead, rates)


def _tensor(
    warp_m: int, warp_n: int, warps_m: int, warps_n: int, stages: int, *gigaflops: float
) -> Tile:
    """Warps with warp_m x warp_n each, multiplied on tensor cores."""
    m, n = warp_m * warps_m, warp_n * warps_n
    defines = (
        ("WARP_M", warp_m),
        ("WARP_N", warp_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("STAGES", stages),
    )
    # Where k is slow, a row of the tile is 4 elements longer.
    elements = [[m + n + 4 * (not a_k) + 4 * (not b_k) for b_k in (0, 1)] for a_k in (0, 1)]
    shared = [[stages * _TENSOR_K * e * ELEMENT_BYTES["float64"] for e in row] for row in elements]
    rates = tuple(1e9 * rate for rate in gigaflops)
    threads = 32 * warps_m * warps_n
    ahead = (stages - 1) * _TENSOR_K * (m + n) * ELEMENT_BYTES["float64"]
    shared = tuple(map(tuple, shared))
    return Tile("matmul_tensor.cu", m, n, threads, defines, shared, ahead, rates)


_PORTABLE = {
    "float32": (
        _plain(8, 16, 2, 2, 8, 273, 382),
        _plain(8, 8, 1, 4, 16, 306, 365, 370),
        _plain(4, 8, 2, 2, 32, 260, 306, 320),
        _plain(4, 4, 1, 2, 32, 126, 207, 201, 226, 216, 232, 214, 227),
    ),
    "float64": (
        _plain(8, 8, 2, 4, 8, 185),
        _plain(4, 8, 2, 2, 16, 130, 142),
        _plain(4, 4, 1, 2, 32, 61, 112, 112, 129),
    ),
}
_PIPELINED = (
    _plain(8, 8, 1, 4, 16, 316, 335, 364, stages=3),
    _plain(8, 8, 2, 2, 16, 308, 324, 361, stages=3),
    _plain(4, 8, 2, 2, 16, 268, 293, 330, 335, stages=3),
    _plain(4, 8, 1, 2, 32, 150, 251, 218, 250, 251, stages=3),
    _plain(8, 4, 1, 2, 32, 142, 261, 216, 270, 250, stages=3),
    _plain(4, 4, 2, 2, 16, 213, 224, 256, 274, 271, 271, stages=4),
    _plain(4, 4, 1, 2, 32, 134, 229, 190, 237, 220, 242, 230, stages=3),
)
_TENSOR = (
    _tensor(64, 32, 2, 4, 4, 477),
    _tensor(32, 32, 2, 4, 4, 447),
    _tensor(32, 32, 2, 2, 3, 273, 393, 400),
    _tensor(16, 32, 2, 2, 4, 307, 346, 358, 370),
    _tensor(32, 16, 2, 2, 4, 255, 341, 357, 368),
    _tensor(16, 16, 2, 2, 4, 226, 293, 289, 297, 294),
)

# Copied element by element, it would not fit into the registers.
_TENSOR_ALIGNED = (_tensor(64, 32, 1, 2, 4, 220, 418),)


@cache
def tiles(dtype: str, capability: tuple[int, int] | None, aligned: bool = True) -> tuple[Tile, ...]:
    """The tiles there are for a dtype, on CUDA devices of a compute capability; None: others.

    ``aligned`` tells whether both operands are loaded by vectors.
    """
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        return _TENSOR + (_TENSOR_ALIGNED if aligned else ())
    if dtype == "float32" and capability is not None and capability >= _ASYNCHRONOUS:
        return _PORTABLE[dtype][:2] + _PIPELINED
    return _PORTABLE[dtype]


def choose(
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    layout: tuple[bool, bool],
    aligned: bool,
    multiprocessors: int,
    block_limit: int,
    shared_limit: int,
    capability: tuple[int, int] | None,
) -> tuple[Tile, int]:
    """Return the tile and the number of parts with the least predicted time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    ``layout`` tells whether k is the fast dimension of A, and of B, ``aligned`` whether both are
    loaded by vectors.
    """
    best = math.inf
    chosen = None
    a_k, b_k = layout
    element = ELEMENT_BYTES[dtype]
    outputs_bytes = m * n * batch * element
    bytes_read = (m + n) * k * batch * element
    for tile in tiles(dtype, capability, aligned):
        _, tile_m, tile_n, threads, _, shared, on_their_way, rates = tile
        if threads > block_limit or shared[a_k][b_k] > shared_limit:
            continue
        count = -(-m // tile_m) * -(-n // tile_n) * batch
        stored = tile_m * tile_n * element / _STORED_PER_SECOND
        resident = len(rates)
        active = resident * multiprocessors
        choices = (1,)
        if count <= active // 2 and k >= 2 * _LEAST_CHUNK:
            most = k // _LEAST_CHUNK
            choices = (1, min(active // count, most))
            if resident > 1 and 2 * count <= multiprocessors:
                choices += (min(multiprocessors // count, most),)
        for parts in choices:
            flops = 2.0 * tile_m * tile_n * -(-k // parts)
            waves, rest = divmod(count * parts, active)
            seconds = waves * (_BLOCK_SECONDS + resident * (stored + flops / rates[-1]))
            if rest:
                blocks = -(-rest // multiprocessors)
                seconds += _BLOCK_SECONDS + blocks * (stored + flops / rates[blocks - 1])
            reading = min(resident, -(-count * parts // multiprocessors)) * on_their_way
            reading *= multiprocessors / _LATENCY_SECONDS
            reading = bytes_read / min(reading, _READ_PER_SECOND)
            seconds = (seconds**4 + reading**4) ** 0.25  # the longer one, and some of the other
            if parts > 1:
                traffic = (parts + 1) * outputs_bytes
                seconds += _LAUNCH_SECONDS + traffic / _PARTIAL_BYTES_PER_SECOND
                seconds /= _SPLIT_SHARE
            if seconds < best:
                best = seconds
                chosen = tile, parts
    if chosen is None:
        raise ValueError(
            f"block_limit must be at least 64, got {block_limit}, "
            f"or shared_limit is too small, {shared_limit}"
        )
    return chosen
