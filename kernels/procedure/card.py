"""What the procedure knows of a device: its multiprocessors' limits, and how it reads memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Card(NamedTuple):
    """A device, as the execution metrics see it.

    Attributes
    ----------
    name, multiprocessors
    blocks, threads, registers, shared : int
        What one multiprocessor holds at a time: blocks, threads, registers of 32 bits, bytes of
        shared memory.
    block_threads, block_shared : int
        The most threads, and bytes of shared memory, of a block.
    warp : int
        Threads that run together.
    group : int
        Threads with combined accesses to memory: half a warp on the first cards, a warp today.
    sector : int
        Bytes that are moved at least: the smallest transaction.
    partitions, partition_bytes : int
        Of global memory, and the bytes after which the next partition begins.
        (1, 0): addresses are hashed, and no launch can meet one partition only.
    saturating : int
        Threads on the device from which on its memory is busy.
    register_unit : int
        Registers are given to warps in multiples of it; 1: to blocks, as they are.
    warp_unit : int
        A multiprocessor holds warps in multiples of it by their registers: each of as many
        schedulers has an equal part of these.
    shared_unit, shared_reserved : int
        Shared memory is given to blocks in multiples of the first, in bytes, the second for each
        block more than it asks for.
    at_once : int
        Blocks that can wait for each other.
    """

    name: str
    multiprocessors: int
    blocks: int
    threads: int
    registers: int
    shared: int
    block_threads: int
    block_shared: int
    warp: int
    group: int
    sector: int
    saturating: int
    partitions: int = 1
    partition_bytes: int = 0
    register_unit: int = 1
    warp_unit: int = 1
    shared_unit: int = 1
    shared_reserved: int = 0
    at_once: int = 1


# White 2013, sections 2.2 and 3.3: a half warp's accesses become 32, 64 or 128 bytes.
# 12800 threads keep memory busy (4.5: 400 cycles of latency / 8 x 32 threads x 8 partitions).
T10 = Card(
    name="Tesla T10",
    multiprocessors=30,
    blocks=8,
    threads=1024,
    registers=16384,
    shared=16384,
    block_threads=512,
    block_shared=16384,
    warp=32,
    group=16,
    sector=32,
    saturating=12800,
    partitions=8,
    partition_bytes=256,
)


# Compute capability 2.0 (Fermi), 3.0 and 3.5 (Kepler), by NVIDIA's CUDA C Programming Guide and
# occupancy calculator; their loads are lines of a cache. The K40c's figures are its report's own.
_FERMI = T10._replace(
    name="GTX 480",
    multiprocessors=15,
    threads=1536,
    registers=32768,
    shared=49152,
    block_threads=1024,
    block_shared=49152,
    group=32,
    sector=128,
    saturating=15 * 1536 // 4,  # as `of_attributes`
    partitions=1,
    partition_bytes=0,
    register_unit=64,
    warp_unit=2,
    shared_unit=128,
)
_KEPLER = _FERMI._replace(
    name="GTX 680",
    multiprocessors=8,
    blocks=16,
    threads=2048,
    registers=65536,
    saturating=8 * 2048 // 4,
    register_unit=256,
    warp_unit=4,
    shared_unit=256,
)
_K40C = _KEPLER._replace(name="Tesla K40c", multiprocessors=15, saturating=15 * 2048 // 4)
CARDS = {card.name: card for card in (T10, _FERMI, _KEPLER, _K40C)}


def of_attributes(device: Any, get: Callable[[str], Any]) -> Card:
    """The card of a CUDA device; ``get`` asks the driver for an attribute by its name."""
    threads, warp = get("MAX_THREADS_PER_MULTIPROCESSOR"), get("WARP_SIZE")
    return Card(
        name=device.name,
        multiprocessors=device.multiprocessors,
        blocks=get("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        threads=threads,
        registers=get("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared=get("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        block_threads=device.block_limit,
        block_shared=get("MAX_SHARED_MEMORY_PER_BLOCK"),
        warp=warp,
        group=warp,
        sector=32,
        saturating=device.multiprocessors * threads // 4,
        register_unit=256,
        warp_unit=4,
        shared_unit=128,
        shared_reserved=get("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        at_once=device.multiprocessors,
    )


def of_limits(device: Any) -> Card:
    """The card of a device of which only its limits are known, such as a CPU under OpenCL.

    A compute unit is taken to run one block at a time, its threads in groups of 8.
    """
    return Card(
        name=device.name,
        multiprocessors=device.multiprocessors,
        blocks=1,
        threads=device.block_limit,
        registers=256 * device.block_limit,
        shared=device.shared_limit,
        block_threads=device.block_limit,
        block_shared=device.shared_limit,
        warp=min(8, device.block_limit),
        group=min(8, device.block_limit),
        sector=64,
        saturating=device.multiprocessors,
    )
