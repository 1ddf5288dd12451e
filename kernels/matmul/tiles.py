"""Ways to cut C = A B into tiles, and White's execution metrics to choose among them."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES

__all__ = ["Tile", "choose", "chunk_of", "tiles"]

_LEAST_CHUNK = 64  # of k, in a part
_CHUNK_MULTIPLE = 32  # and of the tile's own depth


class _Machine(NamedTuple):
    """What every tile shares: seconds, and bytes per second. Fitted, as the tiles' own figures are.

    Attributes
    ----------
    launch, second_launch : float
        Of a product, and of the sum of its parts.
    latency : float
        Between asking for bytes and having them.
    read, written, summed : float
        Of operands, each read once; of results; of parts.
    """

    launch: float
    second_launch: float
    latency: float
    read: float
    written: float
    summed: float


_MACHINE = {
    "float32": _Machine(3.6e-6, 2.3e-6, 0.56e-6, 6.6e12, 2.35e12, 1.23e12),
    "float64": _Machine(3.1e-6, 2.7e-6, 1.21e-6, 6.6e12, 4.3e12, 2.8e12),
}

_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))
_TENSOR_K = 16


class Tile(NamedTuple):
    """A way to cut C: a kernel, the sizes it is compiled with, and how fast it then is.

    Attributes
    ----------
    source : str
    m, n, depth : int
        Extents of a block's tile, and of k in a step.
    threads : int
    defines : tuple of (str, int)
    shared : tuple of tuple of int
        Bytes of dynamic shared memory by whether A's and B's fast dimension is k.
    on_their_way : int
        Bytes that a block asks for before it needs them.
    start, stored : float
        Seconds that a wave takes beside its products, bytes per second that one multiprocessor
        stores.
    rates : tuple of float
        FLOP/s of one multiprocessor with 1, 2, ... blocks on it, as many as its registers hold.
        All was measured on an H200 (docs/kernels.md); only ratios matter to the choice.
    """

    source: str
    m: int
    n: int
    depth: int
    threads: int
    defines: tuple[tuple[str, int], ...]
    shared: tuple[tuple[int, int], tuple[int, int]]
    on_their_way: int
    start: float
    stored: float
    rates: tuple[float, ...]


def _plain(
    thread_m: int,
    thread_n: int,
    warps_m: int,
    warps_n: int,
    depth: int,
    beside: tuple[float, float],
    *gigaflops: float,
    stages: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each with thread_m x thread_n; copied asynchronously with stages.

    ``beside``: microseconds of `Tile.start`, GB/s of `Tile.stored`.
    """
    m, n = 8 * thread_m * warps_m, 4 * thread_n * warps_n
    defines = (
        ("THREAD_M", thread_m),
        ("THREAD_N", thread_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("TILE_K", depth),
        *((("STAGES", stages),) if stages else ()),
    )
    size = ELEMENT_BYTES["float32"]
    shared = stages * depth * (m + n + 8) * size
    return Tile(
        "matmul_pipelined.cu" if stages else "matmul.cu",
        *(m, n, depth, 32 * warps_m * warps_n, defines),
        ((shared, shared), (shared, shared)),
        max(stages - 1, 1) * depth * (m + n) * size,
        *(1e-6 * beside[0], 1e9 * beside[1]),
        tuple(1e9 * rate for rate in gigaflops),
    )


def _tensor(
    warp_m: int,
    warp_n: int,
    warps_m: int,
    warps_n: int,
    stages: int,
    beside: tuple[float, float],
    *gigaflops: float,
    slices: int = 1,
) -> Tile:
    """Warps with warp_m x warp_n each, multiplied on tensor cores; ``beside`` as in `_plain`.

    ``slices``: groups of them, which share the steps of k.
    """
    depth = _TENSOR_K * slices
    m, n = warp_m * warps_m, warp_n * warps_n
    defines = (
        ("WARP_M", warp_m),
        ("WARP_N", warp_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("STAGES", stages),
        ("SLICES", slices),
    )
    size = ELEMENT_BYTES["float64"]
    # Where k is slow, a row of the tile is 4 elements longer.
    a, b = (
        tuple(stages * depth * (m + n + 4 * (not a_k) + 4 * (not b_k)) * size for b_k in (0, 1))
        for a_k in (0, 1)
    )
    return Tile(
        "matmul_tensor.cu",
        *(m, n, depth, 32 * warps_m * warps_n * slices, defines, (a, b)),
        (stages - 1) * depth * (m + n) * size,
        *(1e-6 * beside[0], 1e9 * beside[1]),
        tuple(1e9 * rate for rate in gigaflops),
    )


_PORTABLE = {
    "float32": (
        _plain(8, 16, 2, 2, 8, (0.53, 121), 260, 388),
        _plain(8, 8, 1, 4, 16, (1.23, 252), 263, 314, 318),
        _plain(4, 8, 2, 2, 32, (0.5, 60), 260, 306, 320),
        _plain(4, 4, 1, 2, 32, (0.5, 60), 126, 207, 201, 226, 216, 232, 214, 227),
    ),
    "float64": (
        _plain(8, 8, 2, 4, 8, (1.0, 120), 185),
        _plain(4, 8, 2, 2, 16, (0.5, 60), 130, 142),
        _plain(4, 4, 1, 2, 32, (0.5, 60), 61, 112, 112, 129),
    ),
}
_PIPELINED = (
    _plain(8, 8, 1, 4, 16, (0.66, 60), 334, 354, 385, stages=3),
    _plain(8, 8, 2, 2, 16, (0.73, 59), 306, 322, 358, stages=3),
    _plain(4, 8, 2, 2, 16, (0.25, 58), 274, 299, 337, 342, stages=3),
    _plain(4, 8, 1, 2, 32, (0.56, 82), 165, 277, 240, 276, 277, stages=3),
    _plain(8, 4, 1, 2, 32, (0.50, 77), 135, 249, 206, 257, 238, stages=3),
    _plain(4, 4, 2, 2, 16, (0.19, 42), 211, 222, 253, 271, 268, 268, stages=4),
    _plain(4, 4, 1, 2, 32, (0.37, 61), 142, 243, 202, 251, 233, 257, 244, stages=3),
)
_TENSOR = (
    _tensor(64, 32, 2, 4, 4, (0.82, 67), 488),
    _tensor(32, 32, 2, 4, 4, (0.76, 51), 481),
    _tensor(32, 32, 2, 2, 3, (0.42, 97), 315, 454, 462),
    _tensor(16, 32, 2, 2, 4, (0.83, 146), 312, 352, 364, 376),
    _tensor(32, 16, 2, 2, 4, (0.48, 88), 274, 367, 384, 396),
    _tensor(16, 16, 2, 2, 4, (0.80, 223), 217, 281, 277, 285, 282),
    _tensor(32, 16, 2, 2, 3, (0.69, 33), 334, 376, slices=2),
    _tensor(16, 16, 2, 2, 5, (0.50, 18), 300, 311, slices=2),
    _tensor(16, 16, 1, 2, 4, (0.23, 7), 153, 225, slices=4),
)


@cache
def tiles(dtype: str, capability: tuple[int, int] | None) -> tuple[Tile, ...]:
    """The tiles there are for a dtype, on CUDA devices of a compute capability; None: others."""
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        return _TENSOR
    if dtype == "float32" and capability is not None and capability >= _ASYNCHRONOUS:
        return _PORTABLE[dtype][:2] + _PIPELINED
    return _PORTABLE[dtype]


def chunk_of(tile: Tile, k: int, parts: int) -> int:
    """How much of k a part has, if it is taken in about so many: whole steps of the tile."""
    multiple = max(_CHUNK_MULTIPLE, tile.depth)
    return -(-k // (parts * multiple)) * multiple


def choose(
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    layout: tuple[bool, bool],
    multiprocessors: int,
    block_limit: int,
    shared_limit: int,
    capability: tuple[int, int] | None,
) -> tuple[Tile, int, float]:
    """Return the tile and the number of parts with the least predicted time, and that time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    ``layout`` tells whether k is the fast dimension of A, and of B.
    """
    best = math.inf
    chosen = None
    a_k, b_k = layout
    element = ELEMENT_BYTES[dtype]
    machine = _MACHINE[dtype]
    outputs_bytes = m * n * batch * element
    bytes_read = (m + n) * k * batch * element
    for tile in tiles(dtype, capability):
        if tile.threads > block_limit or tile.shared[a_k][b_k] > shared_limit:
            continue
        rates = tile.rates
        count = -(-m // tile.m) * -(-n // tile.n) * batch
        stored = tile.m * tile.n * element / tile.stored
        resident = len(rates)
        if own := tile.shared[a_k][b_k]:  # a block that fits alone leaves 1 KB of a multiprocessor
            resident = min(resident, (shared_limit + 1024) // (own + 1024))
        active = resident * multiprocessors
        choices = {1}
        if count <= active // 2 and k >= 2 * _LEAST_CHUNK:
            most = k // _LEAST_CHUNK
            for blocks in (active, 2 * multiprocessors, multiprocessors):
                choices.add(max(min(blocks // count, most), 1))
        for wanted in choices:
            chunk = chunk_of(tile, k, wanted)
            parts = -(-k // chunk)
            steps = -(-min(chunk, k) // tile.depth)
            flops = 2.0 * tile.m * tile.n * tile.depth * steps
            waves, rest = divmod(count * parts, active)
            computing = waves * (tile.start + resident * (stored + flops / rates[resident - 1]))
            if rest:
                blocks = -(-rest // multiprocessors)
                computing += tile.start + blocks * (stored + flops / rates[blocks - 1])
            blocks = min(resident, -(-count * parts // multiprocessors))
            reading = blocks * tile.on_their_way * multiprocessors / machine.latency
            moving = bytes_read / min(reading, machine.read)
            if parts == 1:
                moving += outputs_bytes / machine.written
            seconds = machine.launch + math.hypot(computing, moving)
            if parts > 1:
                seconds += machine.second_launch + (parts + 1) * outputs_bytes / machine.summed
            if seconds < best:
                best = seconds
                chosen = tile, parts
    if chosen is None and capability is not None:
        return choose(
            m, n, k, batch, dtype, layout, multiprocessors, block_limit, shared_limit, None
        )
    if chosen is None:
        raise ValueError(f"block_limit must be at least 64, got {block_limit}")
    return *chosen, best
