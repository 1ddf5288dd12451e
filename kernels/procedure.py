"""White's procedure: execution metrics of a launch, and launch parameters that follow from them.

The metrics say what a launch is to a device (White 2013, section 3.3). With ``CARDS["Tesla T10"]``
they are his equations 3.7 to 3.13; a card of today differs in its figures, and in how registers and
shared memory are rounded when they are given out. `matvec_block` and its like are his fifth step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Card(NamedTuple):
    """A device, as the execution metrics see it; memory in bytes, registers of 32 bits."""

    name: str
    multiprocessors: int
    blocks: int  # what one multiprocessor holds at a time, as the next three
    threads: int
    registers: int
    shared: int
    block_threads: int  # the most of a block
    block_shared: int
    warp: int  # threads that run together
    group: int  # threads with combined accesses to memory: half a warp on the first cards
    sector: int  # of memory, that are moved at least: the smallest transaction
    saturating: int  # threads on the device from which on its memory is busy
    partitions: int = 1  # of global memory; 1 where addresses are hashed,
    partition_bytes: int = 0  # else the bytes after which the next one begins
    register_unit: int = 1  # registers go to warps in multiples of it; 1: to blocks, as they are
    warp_unit: int = 1  # schedulers, each with an equal part of the registers
    shared_unit: int = 1  # shared memory goes to blocks in multiples of it,
    shared_reserved: int = 0  # and each block takes this much more than it asks for
    at_once: int = 1  # blocks that can wait for each other


# The T10: White 2013, sections 2.2 and 3.3; a half warp's accesses become 32, 64 or 128 bytes, and
# 12800 threads keep memory busy (4.5: 400 cycles of latency / 8 x 32 threads x 8 partitions).
# Compute capability 2.0 and 3.5: NVIDIA's CUDA C Programming Guide and occupancy calculator;
# their loads are lines of a cache. The K40c's figures are its report's own.
# fmt: off
CARDS = {card.name: card for card in (
    Card("Tesla T10", 30, 8, 1024, 16384, 16384, 512, 16384, 32, 16, 32, 12800, 8, 256),
    Card("GTX 480", 15, 8, 1536, 32768, 49152, 1024, 49152, 32, 32, 128, 15 * 1536 // 4,
         1, 0, 64, 2, 128),
    Card("Tesla K40c", 15, 16, 2048, 65536, 49152, 1024, 49152, 32, 32, 128, 15 * 2048 // 4,
         1, 0, 256, 4, 256),
)}
# fmt: on


def of_attributes(device: Any, get: Callable[[str], Any]) -> Card:
    """The card of a CUDA device; ``get`` asks the driver for an attribute by its name."""
    kinds, several = ("BLOCKS", "THREADS", "REGISTERS", "SHARED_MEMORY"), device.multiprocessors
    holds, warp = [get(f"MAX_{kind}_PER_MULTIPROCESSOR") for kind in kinds], get("WARP_SIZE")
    block = device.block_limit, get("MAX_SHARED_MEMORY_PER_BLOCK")
    units = {"register_unit": 256, "warp_unit": 4, "shared_unit": 128}
    units["shared_reserved"] = get("RESERVED_SHARED_MEMORY_PER_BLOCK")
    memory = 32, several * holds[1] // 4
    return Card(device.name, several, *holds, *block, warp, warp, *memory, **units, at_once=several)


def of_limits(device: Any) -> Card:
    """The card of a device of which only its limits are known, such as a CPU under OpenCL.

    A compute unit is taken to run one block at a time, its threads in groups of 8.
    """
    block, warp = (device.block_limit, device.shared_limit), min(8, device.block_limit)
    several, registers = device.multiprocessors, 256 * device.block_limit
    holds = 1, block[0], registers, block[1]
    return Card(device.name, several, *holds, *block, warp, warp, 64, several)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class Metrics(NamedTuple):
    """White's execution metrics of a launch on a card.

    ``registers`` of a thread and bytes of ``shared`` memory of a block are what its kernel needs;
    ``grid`` and ``block`` are blocks and threads along x and y.
    """

    card: Card
    registers: int
    shared: int
    grid: tuple[int, int]
    block: tuple[int, int]

    @property
    def size(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1]

    @property
    def resident_blocks(self) -> int:
        """Blocks that one multiprocessor can hold at a time (3.7); 0 if not even one."""
        card, size = self.card, self.size
        if size > card.block_threads or self.shared > card.block_shared:
            return 0
        by_warps = card.register_unit > 1
        limits = [card.blocks, card.threads // _up(size, card.warp if by_warps else 1)]
        if self.registers and not by_warps:  # a block gets what it asks for
            limits.append(card.registers // (self.registers * size))
        elif self.registers:  # whole warps get whole units, as many warps of each scheduler
            warps = card.registers // _up(self.registers * card.warp, card.register_unit)
            limits.append(warps // card.warp_unit * card.warp_unit // -(-size // card.warp))
        if shared := _up(self.shared, card.shared_unit) + card.shared_reserved:
            limits.append(card.shared // shared)
        return min(limits)

    @property
    def active_blocks(self) -> int:
        """Blocks that run on the device at a time (3.8)."""
        return min(self.card.multiprocessors * self.resident_blocks, self.grid[0] * self.grid[1])

    @property
    def active_threads(self) -> int:
        """Threads that run on the device at a time (3.9)."""
        return self.active_blocks * self.size

    @property
    def fragmented_blocks(self) -> int:
        """Blocks of the last wave, where it is not full (3.10), of a block that fits."""
        return self.grid[0] * self.grid[1] % self.active_blocks

    @property
    def occupancy(self) -> float:
        """Share of a full multiprocessor's threads that it can hold of this kernel."""
        return self.resident_blocks * self.size / self.card.threads

    def partitions(self, itemsize: int = 4) -> float:
        """Partitions of memory that the running blocks read from at a time (3.12, 3.13)."""
        if self.card.partitions == 1:
            return 1.0
        together = min(self.active_blocks, self.grid[0]) * self.block[0] * itemsize
        return min(together / self.card.partition_bytes, self.card.partitions)


# -- The fifth step --------------------------------------------------------------------------------
#
# Of all legal blocks those that are best by the first of five criteria, of these those that are
# best by the second, and so on (section 4.5). A launch comes with a number, or several: the smaller
# they are, the more of what is in shared memory is used again.

_Placed = tuple[Metrics, Any]


def matvec_block(card: Card, item: int, blocks: Sequence[Any], m: int, k: int) -> Any:
    """The block of listing 4.16 for A of m x k (equation 4.24)."""

    def of(b: Any, rows: int = m) -> _Placed:
        needs = 15, (b.x**2 + b.x) * item
        return Metrics(card, *needs, (-(-rows // b.x), 1), (b.x, b.y)), b.y / b.x

    # He saturates with what the least n of equation 4.1 can: a row in each partition.
    least = min(m, card.partitions * card.partition_bytes // item or m)
    reached = max(of(b, least)[0].active_threads for b in blocks)
    return _five_steps(card, item, blocks, of, min(card.saturating, reached))


def matmul_block(card: Card, item: int, blocks: Sequence[Any], m: int, n: int, k: int) -> Any:
    """The block of listing 4.17 for C of m x n, and a thread's elements (equation 4.41)."""

    def of(b: Any) -> _Placed:
        grid = -(-n // (b.x * b.y)), -(-m // b.each)
        # With 16 elements 32 with x = 8, else up to 38 (section 4.5.2). He names the two wider
        # blocks that still saturate memory; these have as many as that allows.
        registers = {(16, 32): 32, (32, 2): 36}.get((b.x, b.y), 32 if b.x == 8 else 38)
        return Metrics(card, registers, b.each * b.x * item, grid, (b.x, b.y)), -b.each

    return _five_steps(card, item, blocks, of, card.saturating)


def convolution_block(
    card: Card, item: int, blocks: Sequence[Any], rows: int, columns: int, taps_y: int, taps_x: int
) -> Any:
    """The block of listing 5.5 for results of rows x columns (equation 5.19)."""

    def of(b: Any) -> _Placed:
        needs, grid = (10, (2 * b.x * b.y + b.x) * item), (-(-columns // b.x), -(-rows // b.y))
        image = -(-taps_x // b.x) / min(b.x, card.group)  # its reads, but for a factor (5.8, 5.9)
        return Metrics(card, *needs, grid, (b.x, b.y)), (image, b.x)

    return _five_steps(card, item, blocks, of, card.saturating)


def _five_steps(
    card: Card, item: int, blocks: Sequence[Any], of: Callable[[Any], _Placed], saturating: int
) -> Any:
    """The best of the blocks with rows that fill the smallest transaction (4.12)."""
    wide = [b for b in blocks if b.x * item >= card.sector] or blocks
    placed = [(b, *of(b)) for b in wide]

    def order(one: tuple[Any, Metrics, Any]) -> tuple[Any, ...]:
        _, launch, reuse = one
        return (
            max(saturating - launch.active_threads, 0),
            reuse,
            launch.shared,
            -launch.partitions(item),
            launch.fragmented_blocks,
            -launch.size,  # he takes the larger block then
        )

    fitting = [one for one in placed if one[1].active_blocks]
    if not fitting:
        raise ValueError(f"no block of the kernel fits on a multiprocessor of {card.name}")
    return min(fitting, key=order)[0]
