"""What the procedure knows of a device: its multiprocessors' limits, and how it reads memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["CARDS", "T10", "Card", "card", "of_attributes", "of_limits"]


class Card(NamedTuple):
    """A device, as the execution metrics see it.

    Attributes
    ----------
    name : str
    multiprocessors : int
    blocks, threads, registers, shared : int
        What one multiprocessor holds at a time: blocks, threads, registers of 32 bits, bytes of
        shared memory.
    block_threads, block_shared : int
        The most threads, and bytes of shared memory, of a block.
    warp : int
        Threads that run together.
    group : int
        Threads with combined accesses to memory: half a warp on the first cards, a warp today.
    transactions : tuple of int
        Sizes in bytes of one access to memory, ascending. The first is the smallest piece that is
        ever moved: a sector.
    partitions, partition_bytes : int
        Of global memory, and the bytes after which the next partition begins.
        (1, 0): addresses are hashed, and no launch can meet one partition only.
    saturating : int
        Threads on the device from which on its memory is busy.
    bandwidth : float
        Of memory, bytes a second.
    clock : float
        Of the multiprocessors, Hz.
    cache : int
        Bytes of the cache that all multiprocessors share; 0 if none.
    register_unit : int
        Registers are given to warps in multiples of it; 1: to blocks, as they are.
    warp_unit : int
        A multiprocessor holds warps in multiples of it by their registers: each of as many
        schedulers has an equal part of these.
    shared_unit, shared_reserved : int
        Shared memory is given to blocks in multiples of the first, in bytes, the second for each
        block more than it asks for.
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
    transactions: tuple[int, ...]
    saturating: int
    bandwidth: float
    clock: float
    cache: int = 0
    partitions: int = 1
    partition_bytes: int = 0
    register_unit: int = 1
    warp_unit: int = 1
    shared_unit: int = 1
    shared_reserved: int = 0


def card(description: Mapping[str, Any]) -> Card:
    """A card from its description.

    Raises
    ------
    ValueError
        If fields are missing, unknown or not positive; the message names them all.
    """
    wanted = [field for field in Card._fields if field not in Card._field_defaults]
    missing = [field for field in wanted if description.get(field) is None]
    if missing:
        raise ValueError(f"the device description lacks {', '.join(missing)}")
    unknown = [field for field in description if field not in Card._fields]
    if unknown:
        valid = ", ".join(Card._fields)
        raise ValueError(f"a device description has the fields {valid}, got {', '.join(unknown)}")
    wrong = [
        f"{field} {description[field]!r}"
        for field in wanted[1:]
        if field != "transactions" and not _positive(description[field])
    ]
    sizes = description["transactions"]
    if not (
        isinstance(sizes, list | tuple)
        and sizes
        and all(map(_positive, sizes))
        and list(sizes) == sorted(sizes)
    ):
        wrong.append(f"transactions {sizes!r}")
    # What a device may not have: 0 is right where nothing is divided by it.
    given = {**Card._field_defaults, **description}
    divides = ["partitions", "register_unit", "warp_unit", "shared_unit"]
    divides += ["partition_bytes"] if given["partitions"] != 1 else []
    wrong += [
        f"{field} {given[field]!r}"
        for field in Card._field_defaults
        if not (_positive(given[field]) or (given[field] == 0 and field not in divides))
    ]
    if wrong:
        raise ValueError(f"a device description has positive numbers, got {', '.join(wrong)}")
    return Card(**{**description, "transactions": tuple(sizes)})


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


# White 2013, sections 2.2 and 3.3: 30 multiprocessors of 8 lanes; a half warp's accesses become
# transactions of 32, 64 or 128 bytes; 8 partitions of 256 bytes; 792 MHz x 512 bits, twice a cycle.
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
    transactions=(32, 64, 128),
    saturating=12800,
    bandwidth=94 * 2**30,
    clock=1.33e9,
    partitions=8,
    partition_bytes=256,
)


def _early(
    name: str, multiprocessors: int, fermi: bool, bandwidth: float, clock: float, cache: int
) -> Card:
    """A card of compute capability 2.0 (Fermi), or of 3.0 and 3.5 (Kepler), by NVIDIA's CUDA C
    Programming Guide and occupancy calculator; its loads are lines of a cache."""
    blocks, threads, registers, schedulers = (8, 1536, 1, 2) if fermi else (16, 2048, 2, 4)
    return T10._replace(
        name=name,
        multiprocessors=multiprocessors,
        blocks=blocks,
        threads=threads,
        registers=registers << 15,
        shared=49152,
        block_threads=1024,
        block_shared=49152,
        group=32,
        transactions=(128,),
        saturating=multiprocessors * threads // 4,  # as `of_attributes`
        bandwidth=bandwidth,
        clock=clock,
        cache=cache,
        partitions=1,
        partition_bytes=0,
        register_unit=64 if fermi else 256,
        warp_unit=schedulers,
        shared_unit=128 if fermi else 256,
    )


# Cards of reports that docs/procedure.md compares with; the K40c's figures are its report's own.
CARDS = {
    one.name: one
    for one in (
        T10,
        _early("GTX 480", 15, True, 177.4e9, 1.401e9, 768 << 10),
        _early("GTX 680", 8, False, 192.3e9, 1.006e9, 512 << 10),
        _early("Tesla K40c", 15, False, 288.4e9, 0.745e9, 1536 << 10),
    )
}


def of_attributes(device: Any, get: Callable[[str], Any]) -> Card:
    """The card of a CUDA device; ``get`` asks the driver for an attribute by its name."""
    threads, warp = get("MAX_THREADS_PER_MULTIPROCESSOR"), get("WARP_SIZE")
    # Twice a cycle. Drivers may tell no memory clock: then what cards of its size have.
    reported = 2e3 * get("MEMORY_CLOCK_RATE") * get("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return card(
        {
            "name": device.name,
            "multiprocessors": device.multiprocessors,
            "blocks": get("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            "threads": threads,
            "registers": get("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            "shared": get("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            "block_threads": device.block_limit,
            "block_shared": get("MAX_SHARED_MEMORY_PER_BLOCK"),
            "warp": warp,
            "group": warp,
            "transactions": (32,),
            "saturating": device.multiprocessors * threads // 4,
            "bandwidth": reported or 25e9 * device.multiprocessors,
            "clock": 1e3 * get("CLOCK_RATE"),
            "cache": get("L2_CACHE_SIZE"),
            "register_unit": 256,  # warp_unit is 4, but `reckon` was fitted without it
            "shared_unit": 128,
            "shared_reserved": get("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        }
    )


def of_limits(device: Any) -> Card:
    """The card of a device of which only its limits are known, such as a CPU under OpenCL.

    A compute unit is taken to run one block at a time, its threads in groups of 8, with 10 GB/s of
    the memory.
    """
    return card(
        {
            "name": device.name,
            "multiprocessors": device.multiprocessors,
            "blocks": 1,
            "threads": device.block_limit,
            "registers": 256 * device.block_limit,
            "shared": device.shared_limit,
            "block_threads": device.block_limit,
            "block_shared": device.shared_limit,
            "warp": min(8, device.block_limit),
            "group": min(8, device.block_limit),
            "transactions": (64,),
            "saturating": device.multiprocessors,
            "bandwidth": 1e10 * device.multiprocessors,
            "clock": 2e9,
        }
    )
