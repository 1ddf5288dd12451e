"""White's execution metrics: what a launch is to a device (White 2013, section 3.3).

Pure functions of a `Card`, of what a kernel needs, and of the launch. With `card.T10` they are his
equations 3.7 to 3.13; a card of today differs in its figures, and in how registers and shared
memory are rounded when they are given out.
"""

from __future__ import annotations

from typing import NamedTuple

from .card import Card


class Launch(NamedTuple):
    """Blocks of a grid, and threads of a block, along x and y."""

    grid_x: int
    grid_y: int
    x: int
    y: int


class Resources(NamedTuple):
    """What a kernel needs: registers of a thread, bytes of shared memory of a block."""

    registers: int
    shared: int


def resident_blocks(card: Card, resources: Resources, launch: Launch) -> int:
    """Blocks that one multiprocessor can hold at a time (3.7); 0 if not even one."""
    size = launch.x * launch.y
    limits = [card.blocks, card.threads // _up(size, card.warp if card.register_unit > 1 else 1)]
    if resources.registers:
        limits.append(_by_registers(card, resources.registers, size))
    shared = _up(resources.shared, card.shared_unit) + card.shared_reserved
    if shared:
        limits.append(card.shared // shared)
    if size > card.block_threads or resources.shared > card.block_shared:
        return 0
    return min(limits)


def _by_registers(card: Card, of_thread: int, size: int) -> int:
    """Blocks for which the registers suffice: given as a block asks, or to whole warps, each in
    whole units, as many warps for each scheduler."""
    if card.register_unit == 1:
        return card.registers // (of_thread * size)
    warps = card.registers // _up(of_thread * card.warp, card.register_unit)
    return warps // card.warp_unit * card.warp_unit // -(-size // card.warp)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def active_blocks(card: Card, resources: Resources, launch: Launch) -> int:
    """Blocks that run on the device at a time (3.8)."""
    resident = resident_blocks(card, resources, launch)
    return min(card.multiprocessors * resident, launch.grid_x * launch.grid_y)


def active_threads(card: Card, resources: Resources, launch: Launch) -> int:
    """Threads that run on the device at a time (3.9)."""
    return active_blocks(card, resources, launch) * launch.x * launch.y


def fragmented_blocks(card: Card, resources: Resources, launch: Launch) -> int:
    """Blocks of the last wave, where it is not full (3.10); ValueError if no block fits."""
    active = active_blocks(card, resources, launch)
    if not active:
        raise ValueError(f"no block of {launch} with {resources} fits on {card.name}")
    return launch.grid_x * launch.grid_y % active


def occupancy(card: Card, resources: Resources, launch: Launch) -> float:
    """Share of a full multiprocessor's threads that it can hold of this kernel."""
    return resident_blocks(card, resources, launch) * launch.x * launch.y / card.threads


def partitions(card: Card, resources: Resources, launch: Launch, itemsize: int = 4) -> float:
    """Partitions of memory that the running blocks read from at a time (3.12, 3.13)."""
    if card.partitions == 1:
        return 1.0
    beside = min(active_blocks(card, resources, launch), launch.grid_x)
    return min(beside * launch.x * itemsize / card.partition_bytes, card.partitions)
