"""A ladder: the steps from a family's first kernel to its best, a row of a table each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..procedure.card import Card
from .launch import REAL, Launch, ceil_div, check_dtype

__all__ = ["HELD_BYTES", "Block", "Ladder", "Rung", "Step", "text"]

HELD_BYTES = 1 << 16  # of constant memory
_SHARED_BYTES = 48 << 10  # of arrays of a constant size in shared memory
_THREADS = 1024  # of a block: OpenCL's CPUs take more, for nothing


class Block(NamedTuple):
    """Threads of a block along x and y, and the results of a thread."""

    x: int
    y: int = 1
    each: int = 1


class Rung(NamedTuple):
    """A step of a ladder, or a branch of it: another idea, which the way does not take.

    Attributes
    ----------
    number : int
        Of the step; a branch has that of the rung that it stands for.
    name, idea, adds : str
        ``adds``: what the idea should bring over the rung before, of a branch over its rung.
    seed : str
        The document that it comes from, and where in it.
    kernel : str
        Entry point.
    block : Block
        What it is launched with unless another one is asked for.
    instead_of : str
        Of a branch: the rung that it is compared with.
    macros : tuple of (str, int)
        Besides REAL, STEP, BX, BY and EACH.
    tile : callable, optional
        ``tile(block)`` gives columns and rows of results of a block; None: one block makes all.
    shared : callable
        ``shared(block, itemsize)`` gives bytes of shared memory.
    each : tuple of int
        Results of a thread that a sweep tries. Default: the block's.
    legal : callable, optional
        ``legal(block)``: whether the kernel takes a block. Default: any.
    derive : callable, optional
        ``derive(card, itemsize, *sizes)`` gives the block in place of ``block``.
    repeats : int
        How many results of the whole problem one launch makes, one after the other.
    """

    number: int
    name: str
    idea: str
    adds: str
    seed: str
    kernel: str
    block: Block = Block(1)
    instead_of: str = ""
    macros: tuple[tuple[str, int], ...] = ()
    tile: Callable[[Block], tuple[int, int]] | None = None
    shared: Callable[[Block, int], int] = lambda block, item: 0
    each: tuple[int, ...] = ()
    legal: Callable[[Block], bool] = lambda block: True
    derive: Callable[..., Block] | None = None
    repeats: int = 1


class Step(NamedTuple):
    """A launch of a rung.

    Attributes
    ----------
    launch : Launch
    held : str
        The buffer that goes to constant memory before it.
    cleared : str
        The buffer that is set to zero before it; its blocks wait for each other, all at once.
    """

    launch: Launch
    held: str = ""
    cleared: str = ""


class Steps(NamedTuple):
    """The launches of a rung, those that are made once before, bytes of the buffers between."""

    launches: tuple[Step, ...]
    before: tuple[Step, ...]
    scratch: dict[str, int]


class Ladder:
    """A family's rungs, in their order.

    Parameters
    ----------
    family : str
        Folder of the kernels.
    rungs : sequence of Rung
    steps : callable
        ``steps(ladder, rung, block, dtype, card, *sizes)`` gives what `Ladder.steps` does.
    """

    def __init__(self, family: str, rungs: Sequence[Rung], steps: Callable[..., Any]) -> None:
        self.source = f"{family}/ladder.cu"
        self.rungs = {rung.name: rung for rung in rungs}
        self._steps = steps

    def blocks(self, name: str, dtype: str, card: Card) -> tuple[Block, ...]:
        """Every block that a rung can be launched with: powers of two, a warp at least."""
        rung, item = self.rungs[name], check_dtype(dtype)
        if rung.tile is None:
            return (rung.block,)
        most = min(card.block_threads, _THREADS)
        some = [1 << i for i in range(most.bit_length())]
        return tuple(
            block
            for x in some
            for y in some
            for each in rung.each or (rung.block.each,)
            if card.warp <= x * y <= most and rung.legal(block := Block(x, y, each))
            if rung.shared(block, item) <= min(card.block_shared, _SHARED_BYTES)
        )

    def chosen(self, name: str, dtype: str, card: Card, sizes: Sequence[int]) -> Block:
        """The block that a rung is launched with: its own, or the next smaller that is legal."""
        rung, blocks = self.rungs[name], self.blocks(name, dtype, card)
        if rung.derive is not None:
            return rung.derive(card, check_dtype(dtype), blocks, *sizes)
        return max((block for block in blocks if block <= rung.block), default=blocks[0])

    def steps(self, name: str, block: Block, dtype: str, card: Card, sizes: Sequence[int]) -> Steps:
        """The launches of a rung."""
        return Steps(*self._steps(self, self.rungs[name], block, dtype, card, *sizes))

    def launch(
        self,
        rung: Rung,
        block: Block,
        dtype: str,
        results: tuple[int, int],
        arguments: tuple[str | int | float, ...],
    ) -> Launch:
        """A launch that makes rows x columns of results."""
        rows, columns = results
        wide, high = (columns, rows) if rung.tile is None else rung.tile(block)
        macros = {"REAL": REAL[dtype], "STEP": rung.number, "BX": block.x, "BY": block.y}
        defines = (*macros.items(), ("EACH", block.each), *rung.macros)
        return Launch(
            source=self.source,
            kernel=rung.kernel,
            defines=defines,
            grid=ceil_div(rows, high) * ceil_div(columns, wide),
            block=block.x * block.y,
            arguments=arguments,
        )


def text(block: Sequence[int]) -> str:
    """As a block is printed; results of a thread where it has several."""
    return "x".join(map(str, block if block[2] > 1 else block[:2]))
