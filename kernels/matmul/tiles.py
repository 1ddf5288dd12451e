"""Ways to cut C = A B into tiles, and how fast they are.

Speeds were measured on NVIDIA's H100 and H200 (sm_90). On other devices their proportions decide.
"""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES

_TENSOR_K = 16


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


def _plain(
    per_thread: tuple[int, int],
    warps: tuple[int, int],
    depth: int,
    start: float,
    stored: float,
    rates: tuple[int, ...],
    stages: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each with ``per_thread`` results; with ``stages`` of tiles that are
    copied asynchronously. ``stored`` and ``rates`` are in GB/s and GFLOP/s."""
    m, n = 8 * per_thread[0] * warps[0], 4 * per_thread[1] * warps[1]
    defines = (
        ("THREAD_M", per_thread[0]),
        ("THREAD_N", per_thread[1]),
        ("WARPS_M", warps[0]),
        ("WARPS_N", warps[1]),
        ("TILE_K", depth),
        *((("STAGES", stages),) if stages else ()),
    )
    shared = stages * depth * (m + n + 8) * ELEMENT_BYTES["float32"]
    return Tile(
        "matmul_pipelined.cu" if stages else "matmul.cu",
        *(m, n, depth, 32 * warps[0] * warps[1], defines),
        ((shared, shared), (shared, shared)),
        *(start, 1e9 * stored, tuple(1e9 * rate for rate in rates)),
    )


def _tensor(
    per_warp: tuple[int, int],
    warps: tuple[int, int],
    stages: int,
    start: float,
    stored: float,
    rates: tuple[int, ...],
    slices: int = 1,
) -> Tile:
    """Warps with ``per_warp`` results, multiplied on tensor cores; units as in `_plain`.

    ``slices``: groups of them, which share the steps of k.
    """
    depth = _TENSOR_K * slices
    m, n = per_warp[0] * warps[0], per_warp[1] * warps[1]
    defines = (
        ("WARP_M", per_warp[0]),
        ("WARP_N", per_warp[1]),
        ("WARPS_M", warps[0]),
        ("WARPS_N", warps[1]),
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
        *(m, n, depth, 32 * warps[0] * warps[1] * slices, defines, (a, b)),
        *(start, 1e9 * stored, tuple(1e9 * rate for rate in rates)),
    )


PORTABLE = {
    "float32": (
        _plain((8, 16), (2, 2), 8, 8.6e-7, 129, (253, 380)),
        _plain((4, 8), (2, 2), 32, 5e-7, 60, (260, 306, 320)),
        _plain((4, 4), (1, 2), 32, 5e-7, 60, (126, 207, 201, 226, 216, 232, 214, 227)),
    ),
    "float64": (
        _plain((8, 8), (2, 4), 8, 1e-6, 120, (185,)),
        _plain((4, 8), (2, 2), 16, 5e-7, 60, (130, 142)),
        _plain((4, 4), (1, 2), 32, 5e-7, 60, (61, 112, 112, 129)),
    ),
}
PIPELINED = (
    _plain((8, 8), (1, 4), 16, 9.9e-7, 88, (334, 356, 380), 3),
    _plain((8, 8), (2, 2), 16, 1.04e-6, 72, (313, 329, 365), 3),
    _plain((4, 8), (2, 2), 16, 3.0e-7, 87, (278, 298, 323, 341), 3),
    _plain((4, 8), (1, 2), 32, 3.1e-7, 85, (162, 279, 238, 280, 279), 3),
    _plain((4, 4), (1, 2), 32, 1.3e-7, 50, (145, 237, 192, 247, 229, 263, 252), 3),
)
TENSOR = (
    _tensor((64, 32), (2, 4), 4, 8.5e-7, 61, (482,)),
    _tensor((32, 32), (2, 4), 4, 7.8e-7, 49, (472,)),
    _tensor((32, 32), (2, 2), 3, 3.7e-7, 139, (315, 446, 451)),
    _tensor((32, 16), (2, 2), 4, 2.8e-7, 126, (266, 371, 387, 370)),
    _tensor((32, 16), (2, 2), 3, 3.0e-7, 28, (322, 368), slices=2),
    _tensor((16, 16), (2, 2), 5, 3.5e-7, 23, (281, 285), slices=2),
    _tensor((16, 16), (1, 2), 4, 1.9e-7, 8, (165, 215), slices=4),
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
