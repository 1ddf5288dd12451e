"""Ways to cut C = A B into tiles, and how fast they are.

Speeds were measured on NVIDIA's H100 and H200 (sm_90). On other devices their proportions decide.
"""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES


class Tile(NamedTuple):
    """A way to cut C: a kernel, and the sizes it is compiled with."""

    source: str
    m: int  # extents of a block's tile
    n: int
    depth: int  # of k in a step
    threads: int
    defines: tuple[tuple[str, int], ...]
    # Bytes of dynamic shared memory by whether A's and B's fast dimension is k.
    shared: tuple[tuple[int, int], tuple[int, int]]
    start: float  # seconds that a wave of blocks takes in addition to its products
    stored: float  # bytes per second that one multiprocessor stores of a tile
    # FLOP/s of one multiprocessor with 1, 2, ... blocks, up to as many as it has registers for.
    rates: tuple[float, ...]


def _tile(
    source: str,
    each: tuple[int, int],
    warps: tuple[int, int],
    depth: int,
    start: float,
    stored: float,
    rates: tuple[int, ...],
    stages: int = 0,
    slices: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each of which has ``each`` results; on tensor cores each warp has
    them. ``stored`` and ``rates`` are in GB/s and GFLOP/s.

    ``stages``: of tiles that are copied asynchronously. ``slices``: groups of warps on tensor
    cores, which share the steps of k.
    """
    tensor = slices > 0
    kind, (down, across) = ("WARP", (1, 1)) if tensor else ("THREAD", (8, 4))
    m, n = down * each[0] * warps[0], across * each[1] * warps[1]
    sizes = {f"{kind}_M": each[0], f"{kind}_N": each[1], "WARPS_M": warps[0], "WARPS_N": warps[1]}
    sizes |= {} if tensor else {"TILE_K": depth}
    sizes |= {"STAGES": stages} if stages else {}
    sizes |= {"SLICES": slices} if tensor else {}
    line = stages * depth * ELEMENT_BYTES["float64" if tensor else "float32"]
    # On tensor cores a row of the tile is 4 elements longer where k is slow, elsewhere always.
    longer = [line * (m + n + 8 - 4 * tensor * fast) for fast in range(3)]
    shared = (longer[0], longer[1]), (longer[1], longer[2])
    threads, speeds = 32 * warps[0] * warps[1] * max(slices, 1), tuple(1e9 * r for r in rates)
    defines = tuple(sizes.items())
    return Tile(source, m, n, depth, threads, defines, shared, start, 1e9 * stored, speeds)


_PLAIN, _ASYNC, _CORES = "matmul.cu", "matmul_pipelined.cu", "matmul_tensor.cu"
PORTABLE = {
    "float32": (
        _tile(_PLAIN, (8, 16), (2, 2), 8, 8.6e-7, 129, (253, 380)),
        _tile(_PLAIN, (4, 8), (2, 2), 32, 5e-7, 60, (260, 306, 320)),
        _tile(_PLAIN, (4, 4), (1, 2), 32, 5e-7, 60, (126, 207, 201, 226, 216, 232, 214, 227)),
    ),
    "float64": (
        _tile(_PLAIN, (8, 8), (2, 4), 8, 1e-6, 120, (185,)),
        _tile(_PLAIN, (4, 8), (2, 2), 16, 5e-7, 60, (130, 142)),
        _tile(_PLAIN, (4, 4), (1, 2), 32, 5e-7, 60, (61, 112, 112, 129)),
    ),
}
PIPELINED = (
    _tile(_ASYNC, (8, 8), (1, 4), 16, 9.9e-7, 88, (334, 356, 380), 3),
    _tile(_ASYNC, (8, 8), (2, 2), 16, 1.04e-6, 72, (313, 329, 365), 3),
    _tile(_ASYNC, (4, 8), (2, 2), 16, 3.0e-7, 87, (278, 298, 323, 341), 3),
    _tile(_ASYNC, (4, 8), (1, 2), 32, 3.1e-7, 85, (162, 279, 238, 280, 279), 3),
    _tile(_ASYNC, (4, 4), (1, 2), 32, 1.3e-7, 50, (145, 237, 192, 247, 229, 263, 252), 3),
)
TENSOR = (
    _tile(_CORES, (64, 32), (2, 4), 16, 8.5e-7, 61, (482,), 4, 1),
    _tile(_CORES, (32, 32), (2, 4), 16, 7.8e-7, 49, (472,), 4, 1),
    _tile(_CORES, (32, 32), (2, 2), 16, 3.7e-7, 139, (315, 446, 451), 3, 1),
    _tile(_CORES, (32, 16), (2, 2), 16, 2.8e-7, 126, (266, 371, 387, 370), 4, 1),
    _tile(_CORES, (32, 16), (2, 2), 32, 3.0e-7, 28, (322, 368), 3, 2),
    _tile(_CORES, (16, 16), (2, 2), 32, 3.5e-7, 23, (281, 285), 5, 2),
    _tile(_CORES, (16, 16), (1, 2), 64, 1.9e-7, 8, (165, 215), 4, 4),
)


class _Speeds(NamedTuple):
    """Of a device, for products of a dtype."""

    launch: float  # seconds that a product takes however small it is
    second_launch: float  # that a second launch adds
    read: float  # bytes per second of operands
    written: float  # of results
    summed: float  # of the partial results of a split k


SPEEDS = {
    "float32": _Speeds(3.4e-6, 2.3e-6, 7.5e12, 2.0e12, 1.2e12),
    "float64": _Speeds(3.0e-6, 2.7e-6, 5.0e12, 3.4e12, 2.5e12),
}
