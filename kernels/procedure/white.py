"""White's fifth step: the launch parameters of his last kernels, derived from a card and the sizes.

Of all legal blocks those that are best by the first of five criteria, of these those that are best
by the second, and so on (2013, section 4.5): saturate the memory bus, use what is in shared memory
most, ask for least of it, meet most partitions of memory, leave fewest blocks for the last wave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import metrics
from .card import Card
from .metrics import Launch, Resources


class _Work(NamedTuple):
    launch: Launch
    needs: Resources
    reuse: Any  # the smaller, the more of what is in shared memory is used again


def matvec_block(card: Card, item: int, blocks: Sequence[Any], m: int, k: int) -> Any:
    """The block of listing 4.16 for A of m x k (equation 4.24)."""

    def of(rows: int) -> Callable[[Any], _Work]:
        return lambda b: _Work(
            Launch(-(-rows // b.x), 1, b.x, b.y), Resources(15, (b.x**2 + b.x) * item), b.y / b.x
        )

    # He saturates with what the least n of equation 4.1 can: a row in each partition.
    least = min(m, card.partitions * card.partition_bytes // item or m)
    reached = max(_active(card, of(least)(b)) for b in blocks)
    return _five_steps(card, item, blocks, of(m), min(card.saturating, reached))


def matmul_block(card: Card, item: int, blocks: Sequence[Any], m: int, n: int, k: int) -> Any:
    """The block of listing 4.17 for C of m x n, and a thread's elements (equation 4.41)."""

    def of(b: Any) -> _Work:
        launch = Launch(-(-n // (b.x * b.y)), -(-m // b.each), b.x, b.y)
        # With 16 elements 32 with x = 8, else up to 38 (section 4.5.2). He names the two wider
        # blocks that still saturate memory; these have as many as that allows.
        registers = {(16, 32): 32, (32, 2): 36}.get((b.x, b.y), 32 if b.x == 8 else 38)
        return _Work(launch, Resources(registers, b.each * b.x * item), -b.each)

    return _five_steps(card, item, blocks, of, card.saturating)


def convolution_block(
    card: Card, item: int, blocks: Sequence[Any], rows: int, columns: int, taps_y: int, taps_x: int
) -> Any:
    """The block of listing 5.5 for results of rows x columns (equation 5.19)."""

    def of(b: Any) -> _Work:
        launch = Launch(-(-columns // b.x), -(-rows // b.y), b.x, b.y)
        image = -(-taps_x // b.x) / min(b.x, card.group)  # its reads, but for a factor (5.8, 5.9)
        return _Work(launch, Resources(10, (2 * b.x * b.y + b.x) * item), (image, b.x))

    return _five_steps(card, item, blocks, of, card.saturating)


def _active(card: Card, work: _Work) -> int:
    return metrics.active_threads(card, work.needs, work.launch)


def _five_steps(
    card: Card, item: int, blocks: Sequence[Any], of: Callable[[Any], _Work], saturating: int
) -> Any:
    """What is left of the blocks, whose rows fill the smallest transaction (4.12)."""
    steps: tuple[Callable[[_Work], Any], ...] = (
        lambda w: max(saturating - _active(card, w), 0),
        lambda w: w.reuse,
        lambda w: w.needs.shared,
        lambda w: -metrics.partitions(card, w.needs, w.launch, item),
        lambda w: metrics.fragmented_blocks(card, w.needs, w.launch),
        lambda w: -w.launch.x * w.launch.y,  # he takes the larger block then
    )
    wide = [b for b in blocks if b.x * item >= card.sector] or blocks
    left = [(b, work) for b in wide if _active(card, work := of(b))]
    if not left:
        raise ValueError(f"no block of the kernel fits on a multiprocessor of {card.name}")
    for step in steps:
        best = min(step(work) for _, work in left)
        left = [(b, work) for b, work in left if step(work) == best]
    return left[0][0]
