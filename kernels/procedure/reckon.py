"""What a launch takes, by its execution metrics: the seconds that block shapes are compared by.

The kernels here go in steps: a tile is loaded, the block waits, computes on it, waits. Two times
bound what the blocks take that a multiprocessor holds at once (a *round*): `alone`, what one of
them takes by itself, latencies included, and `together`, what all of them ask of the
multiprocessor: its shared memory, its schedulers, its way to the cache. Where the one is long the
other hides behind it; how well is the power of the norm that joins them. The metrics say how many
blocks a round has, how many rounds there are, and how full the last one is.

Times are in cycles of one multiprocessor, for warps of 32 threads. The constants were fitted to all
legal shapes of some 40 problems on an H100, those of matmul on an H200 too; the registers are what
NVRTC 13 gives the kernels for compute capability 9.0. Seconds serve to compare shapes,
not as predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import metrics
from .card import Card
from .metrics import Launch, Resources
from .reads import wavefronts

__all__ = ["convolve2d", "least_registers", "matmul", "matvec", "seconds"]

_ROW_BYTES = 64  # that a multiprocessor receives from the cache in a cycle
_STAGE_BYTES = 128  # that it writes to, or reads from, shared memory in a cycle


def seconds(
    card: Card, resources: Resources, launch: Launch, round_of: Callable[[int], float]
) -> float:
    """What a launch takes, when a round of r blocks on each multiprocessor takes ``round_of(r)``.

    Returns
    -------
    float
        Infinite where no block fits.
    """
    resident = metrics.resident_blocks(card, resources, launch)
    if not resident:
        return float("inf")
    full, rest = divmod(metrics.blocks(launch), card.multiprocessors * resident)
    cycles = full * round_of(resident) if full else 0.0
    if rest:
        cycles += round_of(-(-rest // card.multiprocessors))
    return cycles / card.clock


def _joined(power: float, *times: float) -> float:
    """The p-norm of several times, which is near the longest one for a high power."""
    return sum(time**power for time in times) ** (1 / power)


def matvec(card: Card, item: int, shape: Any, m: int, k: int) -> float:
    """Seconds of y = A x, A of m by k, with squares of x rows and x / y rows for a thread."""
    x, y, _ = shape
    launch = Launch(-(-m // x), 1, x, y)
    warps, share, steps = x * y / card.warp, x // y, -(-k // x)
    count = metrics.blocks(launch)
    square = x * x * item
    # Of the matrix, what does not stay in the cache between two products; a cache of two halves
    # keeps some data twice.
    far = min(max((m * k * item / card.cache - 0.4) / 0.6, 0), 1) if card.cache else 1.0
    busy = min(count / card.multiprocessors, 1)
    received = square / _ROW_BYTES
    staged = square / _STAGE_BYTES * wavefronts(item, x, x + 1) * 4 / item
    # Latency of the cache, beyond it that of memory, longer the more multiprocessors ask; a
    # thread's loads one after the other; elements of x from constant memory; waiting for the last
    # warp.
    one = 460 + far * (620 + 9 * busy * x) + received + staged
    one += 17 * share + 3.5 * x + 6 * warps
    many = max(received, staged + 12 * warps)

    def round_of(r: int) -> float:
        reading = min(count, r * card.multiprocessors) * x * k * item * card.clock
        memory = reading / (0.8 * card.bandwidth) if far else 0.0
        return _joined(2, 2400 + steps * one, r * (150 + steps * many), memory)

    registers = min(28 + int(1.1 * share * item / 4), card.registers // (x * y), 255)
    resources = Resources(registers, (x * x + x) * item)
    return seconds(card, resources, launch, round_of)


def matmul(card: Card, item: int, shape: Any, m: int, n: int, k: int) -> float:
    """Seconds of A B, A of m by k and B of k by n, with `elements` results a thread."""
    x, y, elements = shape
    launch = Launch(-(-n // (x * y)) * -(-m // elements), 1, x, y)
    steps, each = -(-k // x), elements * item / 4
    # For each column of A: loads of B, and for each element its sum and its part of a load of A
    # from shared memory; for each tile: a thread's loads of A. In a tile that is not full loads of
    # B go one after the other.
    column, alone = 0.5 + 0.5 * each, 20 + 1.2 * each
    many = x * y / card.warp * (k * column + steps * 18 * max(elements / y, 1))

    def round_of(r: int) -> float:
        return steps * 330 + k * alone + k % x * 150 + r * many

    registers = _registers(item, elements, x * y)
    registers = min(registers, card.registers // max(x * y, 256) // 8 * 8)
    return seconds(card, Resources(registers, elements * x * item), launch, round_of)


def least_registers(item: int, elements: int) -> int:
    """Fewest registers of a thread with ``elements`` results of a product, without spills."""
    return 56 + 3 * elements if item == 4 else 32 + 6 * elements


def _registers(item: int, elements: int, threads: int) -> int:
    """Registers that such a thread takes if only its block's size limits them."""
    if threads < 256:
        wanted = {4: (60, 68, 85, 112, 134), 8: (72, 84, 108, 150, 170)}[item]
    else:
        wanted = {4: (56, 60, 84, 110, 128), 8: (72, 80, 108, 144, 156)}[item]
    return wanted[elements.bit_length() - 1]


def convolve2d(
    card: Card, item: int, shape: Any, rows: int, columns: int, taps_y: int, taps_x: int
) -> float:
    """Seconds of a convolution, for each row of the filter by pieces of x taps."""
    x, y, _ = shape
    launch = Launch(-(-columns // x), -(-rows // y), x, y)
    warps, pieces = x * y / card.warp, -(-taps_x // x)
    # For each tap: reads of the image, from banks that may conflict, and of the tap, the same for a
    # warp. For each piece: loads of as many rows as a warp has, stores, two barriers; the taps are
    # loaded by one row of threads.
    tap = 0.985 * wavefronts(item, x, 2 * x) + 0.49 * item / 4
    piece = 10 + 2.2 * (max(card.warp / x, 1) - 1)
    many = warps * (piece * pieces + tap * taps_x) + 3.8 * pieces * max(x / card.warp, 1)

    def round_of(r: int) -> float:
        return _joined(4, 3840 + taps_y * many, r * (50 + taps_y * many))

    registers = 40 if item == 4 and x < 16 else 48
    return seconds(card, Resources(registers, (2 * x * y + x) * item), launch, round_of)
