"""Launch parameters that follow from a card and a problem: what the `tuned` rungs launch with.

Each function looks at every legal shape of a block, reckons by the execution metrics what the
launch would take (`reckon.seconds`), and returns the shape that takes least. Nothing is measured or
looked up: another card, size or dtype is another answer of the same few lines.

A `tuned` rung's launch plan takes an optional `Shape`, for a sweep: one of `shapes_matvec` and so
on. Without one it asks here, with `Device.card()`.

The kernels that the shapes are for, all in White's manner (2013, listings 4.16, 4.17 and 5.5), for
row-major operands, with ``x`` threads along the contiguous axis and ``y`` across:

matvec
    A block takes x rows. It brings x columns of them at a time to a tile of x by x + 1 elements in
    shared memory, x / y rows a thread, and each thread adds up x / y products of one row; the y
    sums of a row are added at the end.
matmul
    A block takes x * y columns and `elements` rows of C, a thread one column of them, with its sums
    in registers. `elements` rows by x columns of A are in shared memory; B comes from memory.
convolve2d
    A block takes x by y results, a thread one. For each row of the filter it brings y rows by 2 x
    columns of the image and x taps to shared memory, x taps at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES, check_dtype
from . import reckon
from .card import Card

__all__ = [
    "Shape",
    "convolve2d",
    "matmul",
    "matvec",
    "shapes_convolve2d",
    "shapes_matmul",
    "shapes_matvec",
]

_MOST_ELEMENTS = 16  # sums of a thread, in registers


class Shape(NamedTuple):
    """Threads of a block along x and y, and the results of a thread."""

    x: int
    y: int
    elements: int = 1


@lru_cache(maxsize=4096)
def matvec(card: Card, dtype: str, m: int, k: int) -> Shape:
    """The block for y = A x with A of m by k, row-major."""
    return _least(shapes_matvec(card, dtype), reckon.matvec, card, dtype, m, k)


@lru_cache(maxsize=4096)
def matmul(card: Card, dtype: str, m: int, n: int, k: int) -> Shape:
    """The block for C = A B with A of m by k and B of k by n, both row-major."""
    return _least(shapes_matmul(card, dtype), reckon.matmul, card, dtype, m, n, k)


@lru_cache(maxsize=4096)
def convolve2d(card: Card, dtype: str, rows: int, columns: int, taps: tuple[int, int]) -> Shape:
    """The block for results of rows by columns, by a filter of `taps` rows and columns."""
    shapes = shapes_convolve2d(card, dtype)
    return _least(shapes, reckon.convolve2d, card, dtype, rows, columns, *taps)


def shapes_matvec(card: Card, dtype: str) -> tuple[Shape, ...]:
    """Every legal block: a row fills a sector, y <= x, the tile fits in shared memory."""
    item = check_dtype(dtype)
    return _nonempty(
        card,
        [
            Shape(x, y)
            for x, y in _blocks(card, item)
            if y <= x and (x * x + x) * item <= card.block_shared
        ],
    )


def shapes_matmul(card: Card, dtype: str) -> tuple[Shape, ...]:
    """Every legal block, with 1 to 16 results of a thread, for which the registers suffice."""
    item = check_dtype(dtype)
    return _nonempty(
        card,
        [
            Shape(x, y, elements)
            for x, y in _blocks(card, item)
            for elements in _powers(1, _MOST_ELEMENTS)
            if elements * x * item <= card.block_shared
            and x * y * reckon.least_registers(item, elements) <= card.registers
        ],
    )


def shapes_convolve2d(card: Card, dtype: str) -> tuple[Shape, ...]:
    """Every legal block."""
    item = check_dtype(dtype)
    return _nonempty(
        card,
        [
            Shape(x, y)
            for x, y in _blocks(card, item)
            if (2 * x * y + x) * item <= card.block_shared
        ],
    )


def _nonempty(card: Card, shapes: list[Shape]) -> tuple[Shape, ...]:
    """The shapes; ValueError if there are none."""
    if not shapes:
        raise ValueError(
            f"{card.name} takes no block of the kernel: {card.block_threads} threads and "
            f"{card.block_shared} bytes of shared memory are its most, {card.warp} threads go "
            f"together and {card.transactions[0]} bytes are read at least"
        )
    return tuple(shapes)


def _blocks(card: Card, item: int) -> list[tuple[int, int]]:
    """Powers of two x and y: at least a sector along x and a warp in all, at most a block."""
    most = card.block_threads
    return [
        (x, y)
        for x in _powers(max(card.transactions[0] // item, 1), most)
        for y in _powers(1, most // x)
        if x * y >= card.warp
    ]


def _powers(least: int, most: int) -> list[int]:
    """The powers of two from the power `least` to `most`."""
    return [1 << i for i in range(least.bit_length() - 1, most.bit_length())]


def _least(shapes, seconds, card, dtype, *problem):  # type: ignore[no-untyped-def]
    """The shape that takes least; of equals, the first: the smallest blocks."""
    item = ELEMENT_BYTES[dtype]
    return min(shapes, key=lambda shape: seconds(card, item, shape, *problem))
