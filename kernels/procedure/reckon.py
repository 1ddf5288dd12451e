"""What a launch takes, by its execution metrics: waves, occupancy, sectors, work of a step.

A kernel here goes in steps: load a tile, wait, compute on it, wait. The blocks that a
multiprocessor holds at a time share its schedulers and its part of the memory's bandwidth, and each
waits for its own loads. So a step takes the longest of three: what all of them issue, what all of
them read, and one's own latency. Waves of blocks follow each other; the last one may be smaller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import metrics
from .card import Card
from .metrics import Launch, Resources

__all__ = ["convolve2d", "matmul", "matvec", "seconds"]

_LATENCY = 6e-7  # seconds between asking memory for bytes and having them
_TURN = 30  # cycles of an instruction that waits for the one before it
_BARRIER = 40  # cycles


class Step(NamedTuple):
    """One step of a block: how many there are, instructions and bytes.

    Attributes
    ----------
    count : float
        Steps of a block.
    issued : float
        Instructions of a thread in a step.
    bytes : float
        Read from memory by a block in a step, in whole sectors.
    chain : float
        Instructions that wait for each other.
    """

    count: float
    issued: float
    bytes: float
    chain: float


def seconds(card: Card, resources: Resources, launch: Launch, step: Step) -> float:
    """What the launch takes; infinite where no block fits."""
    resident = metrics.resident_blocks(card, resources, launch)
    if not resident:
        return float("inf")
    waves, rest = divmod(metrics.blocks(launch), card.multiprocessors * resident)
    last = -(-rest // card.multiprocessors)
    full = _step(card, launch, step, resident, card.multiprocessors)
    part = _step(card, launch, step, last, min(rest, card.multiprocessors)) if rest else 0.0
    return step.count * (waves * full + part)


def _step(card: Card, launch: Launch, step: Step, blocks: int, busy: int) -> float:
    """Seconds of a step with so many blocks on each of the busy multiprocessors."""
    warps = -(-launch.x * launch.y // card.warp) * blocks
    issue = warps * step.issued * card.warp / card.lanes / card.clock
    read = blocks * busy * step.bytes / card.bandwidth
    wait = _LATENCY + (step.chain * _TURN + 2 * _BARRIER) / card.clock
    return max(issue, read, wait)


def matvec(card: Card, item: int, shape: Any, m: int, k: int) -> float:
    """Seconds of a matrix-vector product with this block."""
    x, y, _ = shape
    launch = Launch(-(-m // x), 1, x, y)
    turns = x // y
    step = Step(-(-k // x), turns * 5 + 10, x * x * item, turns)
    return seconds(card, Resources(32, (x * x + x) * item), launch, step)


def matmul(card: Card, item: int, shape: Any, m: int, n: int, k: int) -> float:
    """Seconds of a product of matrices with this block."""
    x, y, elements = shape
    launch = Launch(-(-n // (x * y)), -(-m // elements), x, y)
    registers = 24 + elements * item // 4
    loads = max(1, elements // y)
    words = item // 4
    issued = x * (3 + elements * (words + 0.25)) + 4 * loads
    step = Step(-(-k // x), issued, x * x * y * item / 8, x / 4)
    return seconds(card, Resources(registers, elements * x * item), launch, step)


def convolve2d(
    card: Card, item: int, shape: Any, rows: int, columns: int, taps_y: int, taps_x: int
) -> float:
    """Seconds of a convolution with this block."""
    x, y, _ = shape
    launch = Launch(-(-columns // x), -(-rows // y), x, y)
    turns = min(x, taps_x)
    step = Step(taps_y * -(-taps_x // x), 3 * turns + 12, (2 * x * y + x) * item / 4, turns / 4)
    return seconds(card, Resources(32, (2 * x * y + x) * item), launch, step)
