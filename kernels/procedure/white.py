"""White's kernels as he describes them, and the launch parameters that he derives for them.

Each kernel is a `Work`: its launch, the shared memory of a block and its reads. `metrics` and
`reads` make his equations of it. The parameters follow by his five steps (2013, section 4.5): of
all legal launches those that are best by the first step, of these those that are best by the
second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import metrics
from .card import T10, Card
from .metrics import Launch, Resources
from .reads import APART, Access, reads

__all__ = [
    "Work",
    "convolution_column",
    "convolution_global",
    "convolution_parameters",
    "convolution_row",
    "matmul_column",
    "matmul_global",
    "matmul_parameters",
    "matmul_shared",
    "matvec_constant",
    "matvec_global",
    "matvec_padded",
    "matvec_parameters",
    "matvec_shared",
]

_FLOAT = 4  # bytes
_MOST_ELEMENTS = 16  # sums of a thread of his product of matrices


class Work(NamedTuple):
    """A kernel for one problem: its launch, bytes of shared memory of a block, its reads."""

    launch: Launch
    shared: int
    reads: tuple[Access, ...]


def matvec_global(n: int, x: int) -> Work:
    """Listing 4.2, equation 3.2: a thread for each row; A and b from global memory."""
    return Work(_lines(n, x, 1), 0, (Access(APART, APART, n), Access(0, 0, n)))


def matvec_constant(n: int, x: int) -> Work:
    """Listing 4.4: b in constant memory."""
    return Work(_lines(n, x, 1), 0, (Access(APART, APART, n),))


def matvec_shared(n: int, x: int, y: int = 1) -> Work:
    """Listings 4.6 (y = 1) and 4.9, equations 4.2, 4.6 and 4.7: A by tiles in shared memory."""
    return Work(_lines(n, x, y), x * x * _FLOAT, (Access(1, APART, n / y),))


def matvec_padded(n: int, x: int, y: int) -> Work:
    """Listings 4.11 and 4.16, equation 4.11: a column more in the tile, against bank conflicts."""
    return matvec_shared(n, x, y)._replace(shared=(x * x + x) * _FLOAT)


def matmul_global(n: int, x: int, y: int) -> Work:
    """Listing 4.7, equations 3.3 and 3.4: a thread for each element of C."""
    return Work(_grid(n, n, x, y), 0, (Access(0, APART, n), Access(1, 0, n)))


def matmul_shared(n: int, x: int, y: int) -> Work:
    """Listing 4.8, equations 4.3 to 4.5: tiles of A and B in shared memory."""
    shared = (x * y + x * x) * _FLOAT
    return Work(
        _grid(n, n, x, y), shared, (Access(1, APART, n / x), Access(1, APART, n / x * x / y))
    )


def matmul_column(n: int, x: int, y: int, elements: int) -> Work:
    """Listings 4.10, 4.12 and 4.17, equations 4.8 to 4.10: several elements of a column a thread.

    As his equations do, threads with another y are taken to read elsewhere in B.
    """
    launch = Launch(-(-n // (x * y)), -(-n // elements), x, y)
    tile = Access(1, APART, n / x * elements / y)
    return Work(launch, elements * x * _FLOAT, (tile, Access(1, APART, n)))


def convolution_global(n: int, taps: int, x: int, y: int) -> Work:
    """Listing 5.1, equations 3.5, 3.6 and 5.1: a thread for each result."""
    each = taps * taps
    return Work(_grid(n, n, x, y), 0, (Access(1, APART, each), Access(0, 0, each)))


def convolution_column(n: int, taps: int, x: int, y: int) -> Work:
    """Listing 5.2, equations 5.2 to 5.6: columns of the filter through shared memory."""
    times = taps * -(-taps // y)
    # A half warp has threads of 16 / x rows, if x < 16. (5.5) counts each row's tap 16 / x times.
    again = max(1.0, 16 / x)
    return Work(
        _grid(n, n, x, y),
        (2 * y * x + y) * _FLOAT,
        (Access(1, APART, 2 * times), Access(0, APART, times * again, only="x")),
    )


def convolution_row(n: int, taps: int, x: int, y: int) -> Work:
    """Listings 5.3 to 5.5, equations 5.7 to 5.11: rows of the filter through shared memory."""
    times = taps * -(-taps // x)
    return Work(
        _grid(n, n, x, y),
        (2 * x * y + x) * _FLOAT,
        (Access(1, APART, 2 * times), Access(1, 0, times, only="y")),
    )


def _lines(n: int, x: int, y: int) -> Launch:
    return Launch(-(-n // x), 1, x, y)


def _grid(rows: int, columns: int, x: int, y: int) -> Launch:
    return Launch(-(-columns // x), -(-rows // y), x, y)


class _Candidate(NamedTuple):
    work: Work
    registers: int  # of a thread
    reuse: Any  # the smaller, the more of what is in shared memory is used again


def matvec_parameters(n: int, card: Card = T10) -> Launch:
    """The launch of `matvec_padded` (equation 4.24).

    Raises
    ------
    ValueError
        For n < 1, or a card that holds no block of the kernel; so of the other two.
    """
    _check(n=n)

    def candidates(rows: int) -> list[_Candidate]:
        return [
            _Candidate(matvec_padded(rows, x, y), 15, y / x) for x, y in _blocks(card) if y <= x
        ]

    # He saturates with what the least n of equation 4.1 can: a row in each partition.
    least = min(n, card.partitions * card.partition_bytes // _FLOAT or n)
    reached = max(_active(card, candidate) for candidate in _fitting(card, candidates(least)))
    return _five_steps(card, candidates(n), min(card.saturating, reached)).launch


def matmul_parameters(n: int, card: Card = T10) -> tuple[Launch, int]:
    """The launch of `matmul_column`, and the elements of a thread (equation 4.41)."""
    _check(n=n)
    powers = [1 << i for i in range(_MOST_ELEMENTS.bit_length())]
    made = {
        matmul_column(n, x, y, elements): elements for x, y in _blocks(card) for elements in powers
    }
    candidates = [
        _Candidate(work, _matmul_registers(work.launch.x, work.launch.y), -elements)
        for work, elements in made.items()
    ]
    chosen = _five_steps(card, candidates, card.saturating)
    return chosen.launch, made[chosen]


def _matmul_registers(x: int, y: int) -> int:
    """Of a thread with 16 elements: 32 with x = 8, else up to 38 (section 4.5.2).

    He names the two wider blocks that still saturate memory; these have as many as that allows.
    """
    return {(16, 32): 32, (32, 2): 36}.get((x, y), 32 if x == 8 else 38)


def convolution_parameters(n: int, taps: int, card: Card = T10) -> Launch:
    """The launch of `convolution_row` (equation 5.19)."""
    _check(n=n, taps=taps)
    candidates = []
    for x, y in _blocks(card):
        work = convolution_row(n, taps, x, y)
        image = sum(reads(card, work.launch, work.reads[:1]).values())
        candidates.append(_Candidate(work, 10, (image, x)))
    return _five_steps(card, candidates, card.saturating).launch


def _blocks(card: Card) -> list[tuple[int, int]]:
    """Powers of two x and y (equations 4.12 and 4.13)."""
    widths = [1 << i for i in range(card.block_threads.bit_length())]
    least = card.transactions[0] // _FLOAT
    return [(x, y) for x in widths for y in widths if x >= least and x * y <= card.block_threads]


def _active(card: Card, candidate: _Candidate) -> int:
    resources = Resources(candidate.registers, candidate.work.shared)
    return metrics.active_threads(card, resources, candidate.work.launch)


def _fitting(card: Card, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The candidates of which a multiprocessor holds at least one block; there must be some."""
    fitting = [candidate for candidate in candidates if _active(card, candidate)]
    if not fitting:
        raise ValueError(
            f"no block of the kernel fits on {card.name}: a multiprocessor holds {card.blocks} "
            f"blocks, {card.threads} threads, {card.registers} registers and {card.shared} bytes "
            f"of shared memory, a block at most {card.block_threads} threads and "
            f"{card.block_shared} bytes, and reads {card.transactions[0]} bytes at least"
        )
    return fitting


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def _five_steps(card: Card, candidates: Sequence[_Candidate], saturating: int) -> Work:
    """What is left of the candidates after the five steps of section 4.5."""

    def resources(candidate: _Candidate) -> Resources:
        return Resources(candidate.registers, candidate.work.shared)

    steps: tuple[Callable[[_Candidate], Any], ...] = (
        lambda c: max(saturating - _active(card, c), 0),  # saturate the memory bus
        lambda c: c.reuse,  # use what is in shared memory most
        lambda c: c.work.shared,  # ask for least of it
        lambda c: -metrics.partitions(card, resources(c), c.work.launch),
        lambda c: metrics.fragmented_blocks(card, resources(c), c.work.launch),
        lambda c: -c.work.launch.x * c.work.launch.y,  # he takes the larger block then
    )
    left = _fitting(card, candidates)
    for step in steps:
        best = min(map(step, left))
        left = [candidate for candidate in left if step(candidate) == best]
    return left[0].work
