"""Rungs, the steps of the way from a family's first kernel to its best: a row of a table for each,
with what is new, where that comes from, and how its kernel is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from ..procedure.card import Card
from ..procedure.derive import Shape
from .launch import REAL, Launch, LaunchPlan, ceil_div, check_dtype

__all__ = ["CONSTANT_BYTES", "STATIC_BYTES", "HeldPlan", "Ladder", "Piece", "Rung", "pack_vectors"]

CONSTANT_BYTES = 1 << 16
STATIC_BYTES = 48 << 10  # of arrays of a constant size in shared memory
_THREADS = 1024  # of a block: OpenCL's CPUs take more, for nothing


def powers(card: Card, dtype: str, elements: int) -> list[Shape]:
    """Blocks with sides that are powers of two, at least a warp in all."""
    some = [1 << i for i in range(min(card.block_threads, _THREADS).bit_length())]
    return [Shape(x, y, elements) for x in some for y in some if x * y >= card.warp]


class Rung(NamedTuple):
    """A step of a family's ladder, or a branch of it: another idea, which the way does not take.

    Attributes
    ----------
    idea : str
        The one thing that is new.
    gain : str
        What that should gain over the rung before; of a branch, over the one that it stands for.
    seed : str
        The document that the rung comes from, and where in it.
    instead_of : str
        Of a branch: the rung that it is compared with.
    threads : bool
        Of a loop on the CPU: several threads run it.
    number : int
        From 1 on; the ladder is climbed in this order. A branch has its rung's. `Ladder` sets it.
    source, kernel : str
        File and entry point. Default: ``<family>_rungs.cu`` and ``<family>_<name>``.
    shape, shape32 : Shape
        The block that it is launched with unless another one is asked for; in float32.
    tile : callable, optional
        ``tile(x, y, elements)`` gives columns and rows of results of a block; None: one block makes
        them all.
    names : tuple of str
        Macros that the block's x, y and elements are given by.
    macros : tuple of (str, int)
        Others of the kernel, in any shape.
    legal : callable
        ``legal(card, dtype, elements)`` gives the shapes that a block may have.
    shared : callable
        ``shared(shape, itemsize)`` gives the bytes of arrays in shared memory.
    registers : callable
        ``registers(shape, itemsize)`` gives the registers that a thread needs so that none spills.
    reckon : callable, optional
        ``reckon(card, itemsize, shape, *sizes)`` gives seconds: the shape is derived.
    """

    idea: str
    gain: str
    seed: str = ""
    instead_of: str = ""
    threads: bool = False
    number: int = 0
    source: str = ""
    kernel: str = ""
    shape: Shape = Shape(1, 1)
    shape32: Shape | None = None
    tile: Callable[[int, int, int], tuple[int, int]] | None = None
    names: tuple[str, ...] = ("BX", "BY")
    macros: tuple[tuple[str, int], ...] = ()
    legal: Callable[[Card, str, int], Iterable[Shape]] = powers
    shared: Callable[[Shape, int], int] = lambda shape, item: 0
    registers: Callable[[Shape, int], int] = lambda shape, item: 0
    reckon: Callable[..., float] | None = None


class Ladder(dict[str, Rung]):
    """A family's rungs by name, in their order."""

    def __init__(self, family: str, rungs: Mapping[str, Rung]) -> None:
        number = 0
        for name, rung in rungs.items():
            number += not rung.instead_of
            self[name] = rung._replace(
                number=self[rung.instead_of].number if rung.instead_of else number,
                source=rung.source or f"{family}_rungs.cu",
                kernel=rung.kernel or f"{family}_{name}",
            )

    def shapes(self, rung: str, dtype: str, card: Card) -> tuple[Shape, ...]:
        """Every shape of a block that a rung can be launched with; powers of two."""
        return _shapes(self[rung], dtype, card)

    def chosen(
        self,
        rung: str,
        dtype: str,
        sizes: tuple[int, ...],
        card: Card,
        shape: Shape | None = None,
    ) -> Shape:
        """The shape that is asked for; else a rung's own, or the next smaller that the card takes.

        Of one that reckons, the shape that takes least for these sizes.

        Raises
        ------
        ValueError
            For a shape that is none of `shapes`.
        """
        if shape is None:
            return _chosen(self[rung], dtype, sizes, card)
        shape = Shape(*shape)
        if shape not in (there := self.shapes(rung, dtype, card)):
            valid = ", ".join(map(text, there))
            raise ValueError(f"shape must be one of {valid}, got {text(shape)}")
        return shape

    def launch(
        self,
        rung: str,
        shape: Shape,
        dtype: str,
        results: tuple[int, int, int],
        arguments: tuple[str | int, ...],
        *defines: tuple[str, int | str],
    ) -> Launch:
        """A launch that makes a batch of rows x columns of results, by blocks of a shape."""
        row, (batch, rows, columns) = self[rung], results
        named, grid = [both for both in zip(row.names, shape, strict=False) if both[0]], 1
        if row.tile is not None:
            wide, high = row.tile(*shape)
            grid = ceil_div(rows, high) * ceil_div(columns, wide) * batch
        return Launch(
            source=row.source,
            kernel=row.kernel,
            defines=(("REAL", REAL[dtype]), *named, *row.macros, *defines),
            grid=grid,
            block=shape.x * shape.y,
            arguments=arguments,
        )


@lru_cache(maxsize=512)
def _shapes(rung: Rung, dtype: str, card: Card) -> tuple[Shape, ...]:
    if rung.tile is None:
        return (rung.shape,)
    item, most = check_dtype(dtype), min(card.block_shared, STATIC_BYTES)
    return tuple(
        shape
        for shape in rung.legal(card._replace(block_shared=most), dtype, rung.shape.elements)
        if shape.x * shape.y <= min(card.block_threads, _THREADS)
        and rung.shared(shape, item) <= most
        and shape.x * shape.y * rung.registers(shape, item) <= card.registers
    )


@lru_cache(maxsize=4096)
def _chosen(rung: Rung, dtype: str, sizes: tuple[int, ...], card: Card) -> Shape:
    there = _shapes(rung, dtype, card)
    if rung.reckon is None:
        own = rung.shape32 or rung.shape if dtype == "float32" else rung.shape
        return max((shape for shape in there if shape <= own), default=there[0])
    return min(there, key=lambda shape: rung.reckon(card, check_dtype(dtype), shape, *sizes))


def text(shape: Shape) -> str:
    """As a shape is printed; elements where a thread has several."""
    return "x".join(map(str, shape if shape.elements > 1 else shape[:2]))


# -- Constant memory -------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A piece of the vectors in constant memory, and what is launched on it.

    Attributes
    ----------
    begin, count : int
        The elements that are copied there before.
    launch : Launch
        On the operation's buffers, and the constant memory ``"held"``.
    """

    begin: int
    count: int
    launch: Launch


class HeldPlan(NamedTuple):
    """A plan of launches between which constant memory is filled, in this order.

    Attributes
    ----------
    pack : LaunchPlan or None
        Puts the vectors ``"x"`` one after the other into the buffer ``"packed"`` of ``packed``
        elements, which is then copied from instead of ``"x"``.
    packed : int
    pieces : tuple of Piece
        All of them by one kernel.
    variant : str
        Short name, for plans that are printed.
    """

    pack: LaunchPlan | None
    packed: int
    pieces: tuple[Piece, ...]
    variant: str


def pack_vectors(
    batch: int, k: int, dtype: str, strides: tuple[int, int], block_limit: int
) -> LaunchPlan | None:
    """Vectors of any strides to one place; None where they lie so."""
    if (k == 1 or strides[1] == 1) and (batch == 1 or strides[0] == k):
        return None
    threads = min(256, block_limit)
    launch = Launch(
        source="matvec_pack.cu",
        kernel="pack_vectors",
        defines=(("REAL", REAL[dtype]), ("THREADS", threads)),
        grid=ceil_div(batch * k, threads),
        block=threads,
        arguments=("x", "packed", batch, k, *strides),
    )
    return LaunchPlan((launch,), 0, "pack")
