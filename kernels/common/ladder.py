"""A ladder: the steps from a family's first kernel to its best, a row of a table each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..procedure import Card
from .launch import REAL, Launch, ceil_div, check_dtype

HELD_BYTES = 1 << 16  # of constant memory
SHARED_BYTES = 48 << 10  # of arrays of a constant size in shared memory
_THREADS = 1024  # of a block: OpenCL's CPUs take more, for nothing


class Block(NamedTuple):
    """Threads of a block along x and y, and the results of a thread."""

    x: int
    y: int = 1
    each: int = 1


class Rung(NamedTuple):
    """A step of a ladder, or a branch of it: another idea, which the way does not take."""

    number: int  # of the step; a branch has that of the rung ``instead_of`` which it stands
    name: str
    idea: str
    adds: str  # what it should bring over the rung before, of a branch over its rung
    seed: str  # where in which document it comes from
    kernel: str
    block: Block = Block(1)  # the usual one
    instead_of: str = ""
    macros: tuple[tuple[str, int], ...] = ()  # besides REAL, STEP, BX, BY and EACH
    # Columns and rows of results of a block; None: one block makes all.
    tile: Callable[[Block], tuple[int, int]] | None = None
    # ``shared(block, itemsize)``: bytes of shared memory.
    shared: Callable[[Block, int], int] = lambda block, item: 0
    each: tuple[int, ...] = ()  # results of a thread that a sweep tries; by default the block's
    legal: Callable[[Block], bool] = lambda block: True
    # ``derive(card, itemsize, blocks, *sizes)`` gives the block in place of ``block``.
    derive: Callable[..., Block] | None = None
    repeats: int = 1  # results of the whole problem that a launch makes, one after the other
    # The compute capability that it is for, in float32 alone; None: any device, both dtypes.
    capability: tuple[int, int] | None = None


class Step(NamedTuple):
    """A launch; ``held`` names a buffer that goes to constant memory before, ``cleared`` one that
    is set to zero, for blocks that wait for each other."""

    launch: Launch
    held: str = ""
    cleared: str = ""


class Steps(NamedTuple):
    """The launches of a rung, those that are made once before, bytes of the buffers between."""

    launches: tuple[Step, ...]
    before: tuple[Step, ...] = ()
    scratch: dict[str, int] = {}  # noqa: RUF012


class Ladder(NamedTuple):
    """A family's rungs by name, in their order, and
    ``steps(ladder, rung, block, dtype, card, *sizes)``, which gives the `Steps` of one."""

    family: str
    rungs: dict[str, Rung]
    steps: Callable[..., Steps]

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
            if rung.shared(block, item) <= min(card.block_shared, SHARED_BYTES)
        )

    def chosen(self, name: str, dtype: str, card: Card, sizes: Sequence[int]) -> Block:
        """The block that a rung is launched with: its own, or the next smaller that is legal."""
        rung, blocks = self.rungs[name], self.blocks(name, dtype, card)
        if rung.derive is not None:
            return rung.derive(card, check_dtype(dtype), blocks, *sizes)
        return max((block for block in blocks if block <= rung.block), default=blocks[0])

    def launch(
        self, rung: Rung, block: Block, dtype: str, results: Sequence[int], arguments: Any
    ) -> Launch:
        """A launch that makes rows x columns of results."""
        wide, high = results[::-1] if rung.tile is None else rung.tile(block)
        macros = {"REAL": REAL[dtype], "STEP": rung.number, "BX": block.x, "BY": block.y}
        defines = (*macros.items(), ("EACH", block.each), *rung.macros)
        grid = ceil_div(results[0], high) * ceil_div(results[1], wide)
        source = f"{self.family}/ladder.cu"
        return Launch(source, rung.kernel, defines, grid, block.x * block.y, arguments)
