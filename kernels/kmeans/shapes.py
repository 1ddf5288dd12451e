"""Which kernel finds the nearest centroids, and how it is cut into blocks."""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES, REAL, VECTOR_BYTES, Launch, ceil_div
from ..common.tuning import Table

__all__ = [
    "STEP",
    "Assignment",
    "Points",
    "Tile",
    "choose",
    "power_of_two",
    "small",
    "tiled",
    "tiles",
]

STEP = 8  # columns of X that a tile's step takes
_STAGES = 4
_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_RESIDENT = 2  # blocks of a resident kernel that a multiprocessor's shared memory must hold
_RESERVED = 1 << 10  # bytes of it that the driver takes for each block
_MOST_COLUMNS = 32  # of a point that a thread keeps in registers
_MOST_ITEMS = 8  # sums that it keeps there


class Points(NamedTuple):
    """What the choice depends on.

    Attributes
    ----------
    n, d, k : int
        Points, their elements, and clusters.
    dtype : str
    weighted : bool
    aligned : bool
        Whether rows of X can be read by vectors of 16 bytes.
    multiprocessors, block_limit, shared_limit : int
        Of the device.
    capability : (int, int) or None
    """

    n: int
    d: int
    k: int
    dtype: str
    weighted: bool
    aligned: bool
    multiprocessors: int
    block_limit: int
    shared_limit: int
    capability: tuple[int, int] | None

    @property
    def weights(self) -> str:
        """The buffer that stands where a kernel takes weights: it reads none without them."""
        return "weights" if self.weighted else "X"


class Tile(NamedTuple):
    """A way to cut the products: points and centroids of a block's tile.

    Attributes
    ----------
    m, n, threads : int
    defines : tuple of (str, int)
    resident : int
        Blocks for which a multiprocessor has the registers.
    """

    m: int
    n: int
    threads: int
    defines: tuple[tuple[str, int], ...]
    resident: int


class Assignment(NamedTuple):
    """A launch that finds the labels, and what belongs to it.

    Attributes
    ----------
    launch : Launch or None
    tile, depth : int
        How centroids are packed: tiles of (depth, tile), of which each has ``tile`` centroids.
    sums : bool
        Whether it also makes the sums of clusters,
    parts : int
        in so many parts.
    variant : str
    prepare : tuple of Launch
        Once, before all.
    scratch : dict
        Bytes of buffers of its own.
    """

    launch: Launch | None
    tile: int
    depth: int
    sums: bool
    parts: int
    variant: str
    prepare: tuple[Launch, ...] = ()
    scratch: dict[str, int] = {}  # noqa: RUF012


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def _tile(thread_m: int, thread_n: int, warps_m: int, warps_n: int, resident: int) -> Tile:
    """Warps of 8 x 4 threads, each with thread_m x thread_n."""
    defines = (
        ("THREAD_M", thread_m),
        ("THREAD_N", thread_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
    )
    m, n = 8 * thread_m * warps_m, 4 * thread_n * warps_n
    return Tile(m, n, 32 * warps_m * warps_n, defines, resident)


_TILES = {
    "float32": (_tile(8, 8, 2, 1, 6), _tile(8, 8, 2, 2, 3), _tile(8, 16, 2, 2, 2)),
    "float64": (_tile(4, 8, 2, 1, 4), _tile(4, 8, 2, 2, 2)),
}


def tiles(dtype: str) -> tuple[Tile, ...]:
    """The tiles there are, from few centroids to many."""
    return _TILES[dtype]


def choose(points: Points, table: Table) -> Assignment:
    """The kernel that is expected to be the fastest."""
    if points.d <= _MOST_COLUMNS and points.k * points.d <= table["kmeans.small"][points.dtype]:
        found = small(points, table)
        if found is not None:
            return found
    threads = [t for t in tiles(points.dtype) if t.threads <= points.block_limit]
    tile = next((t for t in threads if t.n >= points.k), threads[-1])
    return tiled(points, tile)


def small(points: Points, table: Table) -> Assignment | None:
    """A point to a thread, all centroids in shared memory; None where they have no room."""
    n, d, k, dtype = points[:4]
    size = ELEMENT_BYTES[dtype]
    width = VECTOR_BYTES // size
    whole = ceil_div(d, width) * width
    centroids = max(power_of_two(k * whole), 64)
    threads = min(256 if d <= 16 else 128, points.block_limit)
    threads = power_of_two(threads + 1) // 2
    shared = (centroids + centroids // whole + 1 + threads * ((d + 1) | 1)) * size + 4 * threads
    if shared > min(points.shared_limit, 48 << 10):
        return None
    pairs = power_of_two(k * (d + 1))
    items = max(1, pairs // threads)
    sums = items <= min(_MOST_ITEMS, table["kmeans.small_items"])
    groups = max(1, threads // pairs) if sums else 1
    blocks = min(ceil_div(n, threads), table["kmeans.small_blocks"] * points.multiprocessors)
    launch = Launch(
        source="kmeans_small.cu",
        kernel="assign_small",
        defines=(
            ("REAL", REAL[dtype]),
            ("WIDTH", width),
            ("D", d),
            ("CENTROIDS", centroids),
            ("THREADS", threads),
            ("UPDATE", int(sums)),
            ("WEIGHTED", int(points.weighted)),
            ("GROUPS", groups),
            ("ITEMS", items if sums else 1),
        ),
        grid=blocks,
        block=threads,
        arguments=(
            *("X", points.weights, "centroids", "labels", "partial", "partial_weights", "state"),
            *(n, k, blocks),
        ),
    )
    return Assignment(launch, 1, d, sums, blocks, f"small{threads}" + "s" * sums)


def tiled(points: Points, tile: Tile, resident: bool | None = None) -> Assignment:
    """A product by tiles that keeps the least distances; ``resident``: a block holds its points."""
    n, d, k, dtype = points[:4]
    size = ELEMENT_BYTES[dtype]
    width = VECTOR_BYTES // size
    depth = ceil_div(d, STEP) * STEP
    elements = depth * (tile.m + width) + _STAGES * STEP * tile.n
    thread_m = dict(tile.defines)["THREAD_M"]
    shared = elements * size + thread_m * tile.threads * (size + 4)
    if resident is None:
        resident = (
            points.capability is not None
            and points.capability >= _ASYNCHRONOUS
            and _RESIDENT * (shared + _RESERVED) <= points.shared_limit + _RESERVED
            and dtype == "float32"
        )
    columns = ceil_div(k, tile.n)
    defines = (
        ("REAL", REAL[dtype]),
        ("WIDTH", width),
        *tile.defines,
        ("RESIDENT", tile.resident),
        ("ALIGNED", int(points.aligned)),
    )
    if resident:
        defines += (("TILE_K", STEP), ("STAGES", _STAGES))
    launch = Launch(
        source="kmeans_resident.cu" if resident else "kmeans_tiles.cu",
        kernel="assign_resident" if resident else "assign_tiles",
        defines=defines,
        grid=ceil_div(n, tile.m),
        block=tile.threads,
        arguments=("X", "packed", "norms", "labels", "state", n, d, columns),
        shared_bytes=shared if resident else 0,
    )
    variant = f"{'resident' if resident else 'tiles'}{tile.m}x{tile.n}"
    return Assignment(launch, tile.n, depth, False, 0, variant)
