"""A device as the kernels' launch parameters are derived for it (`hetero.kernels.procedure`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero.kernels.procedure.card import Card, card

# Multiply-adds of float32 and float64 that a multiprocessor begins in a cycle, by compute
# capability (CUDA C++ Programming Guide, arithmetic instructions), newest first. One that is not
# listed has those of the next older.
_LANES = (
    ((12, 0), 128, 2),
    ((10, 0), 128, 64),
    ((9, 0), 128, 64),
    ((8, 6), 128, 2),
    ((8, 0), 64, 32),
    ((7, 5), 64, 2),
    ((7, 0), 64, 32),
    ((6, 1), 128, 4),
    ((6, 0), 64, 32),
    ((0, 0), 128, 4),
)


def of_attributes(device: Any, get: Callable[[str], Any]) -> Card:
    """The card of a CUDA device; ``get`` asks the driver for an attribute by its name."""
    lanes = next(row for row in _LANES if (device.capability or (0, 0)) >= row[0])
    threads, warp = get("MAX_THREADS_PER_MULTIPROCESSOR"), get("WARP_SIZE")
    # Twice a cycle. Drivers may tell no memory clock: then what cards of its size have.
    told = 2e3 * get("MEMORY_CLOCK_RATE") * get("GLOBAL_MEMORY_BUS_WIDTH") / 8
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
            "bandwidth": told or 25e9 * device.multiprocessors,
            "clock": 1e3 * get("CLOCK_RATE"),
            "lanes": lanes[1],
            "lanes_double": lanes[2],
            "cache": get("L2_CACHE_SIZE"),
            "register_unit": 256,
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
            "lanes": 8,
            "lanes_double": 4,
        }
    )
