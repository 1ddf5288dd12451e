"""A device as the kernels' launch parameters are derived for it (`hetero.kernels.procedure`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero.kernels.procedure.card import Card, card


def of_attributes(device: Any, get: Callable[[str], Any]) -> Card:
    """The card of a CUDA device; ``get`` asks the driver for an attribute by its name."""
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
        }
    )
