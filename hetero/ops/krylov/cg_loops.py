"""The three iterations of conjugate gradients on devices, as launches.

`Sweeps` is for stencils: one launch per iteration. `MatrixLoop` is for matrices: a product, then
one launch for the vectors. Both are PR-CG (kernels/cg/cg_scalars.cu). `Preconditioned` is the
recurrence of Hestenes and Stiefel, for a preconditioner that is launches of its own.

All have the same methods: `residual` (r = b - A x, and where an iteration starts from), `start`,
`advance` (start the launches after which x is the iterate of that number, unless the iteration
stopped before), `record` (how far it came; waits), `finish` (makes x whole).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.ops.krylov.cg_matrices import Matrix, grid_of
from hetero.ops.krylov.cg_vectors import HALO, X_HALO, Vectors, new_records, read_record
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Exchange
from hetero.ops.linear_systems.partition import gather_copies, halo_copies
from hetero.ops.linear_systems.types import Stencil


class Loop(abc.ABC):
    """What the iterations have in common.

    Attributes
    ----------
    every : bool
        Whether x must be whole after each iteration; to be set before `start`.
    first_batch : int
        Iterations to start before the record is looked at for the first time.
    batch_seconds : float
        How long the device should run between two looks, which cost 15 us.
    """

    first_batch = 8
    batch_seconds = 300e-6

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.parts = exchange.parts
        self.every = False

    @abc.abstractmethod
    def residual(self) -> tuple[float, float]:
        """Compute r = b - A x; returns r.r and b.b."""

    @abc.abstractmethod
    def start(self, target: float) -> None:
        """Begin from the last `residual`, to stop where r.r is no more than ``target``."""

    @abc.abstractmethod
    def advance(self, to: int) -> None:
        """Start the launches up to iterate ``to``."""

    @abc.abstractmethod
    def record(self) -> tuple[int, int]:
        """(status, iterations since `start`)."""

    def finish(self) -> None:  # noqa: B027  # nothing to do where x does not lag
        """Make x the iterate of the record."""


class Sweeps(Loop):
    """Stencils; rows over one or several parts, whose halos are `HALO` deep."""

    def __init__(self, vectors: Vectors, stencil: Stencil, diagonal: bool) -> None:
        super().__init__(vectors.exchange)
        parts, slabs, dtype = self.parts, vectors.slabs, vectors.dtype
        plane = math.prod(stencil.shape[1:])
        self._sums = 8 if diagonal else 4
        self._next = 0
        plans, self._residual_blocks, self._residuals = [], [], []
        for part, slab in zip(parts, slabs, strict=True):
            device = part.device
            grid = grid_of(stencil, slab.own, slab.above > 0, slab.below > 0)
            part.allocate(2 * plane * slab.held * dtype.itemsize, "state0", "state1")
            size = {
                "dtype": dtype.name,
                "x_halo": X_HALO,
                "multiprocessors": device.multiprocessors,
                "block_limit": device.block_limit,
                "tuning": vectors.tuning,
            }
            aligned = part.is_aligned("x", *(("inverse",) if diagonal else ()))
            pair = plan_cg_stencil.sweeps(
                grid, halo=HALO, aligned=aligned, diagonal=diagonal, **size
            )
            plans.append((pair, plan_cg_stencil.settle(grid, pair[0], HALO, X_HALO)))
            start = slab.above * 2 * plane
            residual, _ = plan_cg_stencil.stencil(
                grid,
                r_start=start + plane,
                p_start=start,
                pitch=2 * plane,
                scaled=diagonal,
                **size,
            )
            part.allocate(16 * residual.grid, "residual sums")
            self._residual_blocks.append(residual.grid)
            known = {} if diagonal else {"inverse": "x"}
            self._residuals.append(
                [part.bind(residual, r="state1", p="state1", partial="residual sums", **known)]
            )
        self._blocks = [pair[0].grid for pair, _ in plans]
        for number, part in enumerate(parts):
            part.allocate(8 * self._sums * sum(self._blocks), "partial0", "partial1")
            part.numbers["blocks_before"] = sum(self._blocks)
            part.numbers["first_block"] = sum(self._blocks[:number])
        self._bound: dict[tuple[int, int], list[list[Bound]]] = {}
        for turn in (0, 1):
            for add in (0, 1, 2):
                self._bound[turn, add] = [
                    [part.bind(pair[turn], add=add, **_turned(turn))]
                    for part, (pair, _) in zip(parts, plans, strict=True)
                ]
        self._settle = [
            [
                [part.bind(settle, even="state0", odd="state1", record=f"record{turn}")]
                for part, (_, settle) in zip(parts, plans, strict=True)
            ]
            for turn in (0, 1)
        ]
        row = plane * dtype.itemsize
        bind = self.exchange.bind
        rows = halo_copies(slabs, 2 * row, HALO)
        gather = gather_copies([8 * self._sums * blocks for blocks in self._blocks])
        self._moves = [
            bind(BufferCopies(rows, state, state), BufferCopies(gather, partial, partial))
            for state, partial in (("state0", "partial0"), ("state1", "partial1"))
        ]
        self._first_rows = bind(BufferCopies(rows, "state1", "state1"))
        self._x_rows = bind(BufferCopies(halo_copies(slabs, row, X_HALO), "x", "x"))

    def residual(self) -> tuple[float, float]:
        self.exchange.run([()] * len(self.parts), self._x_rows)
        self.exchange.run(self._residuals, self._first_rows)
        r_r, b_b = self.exchange.total("residual sums", self._residual_blocks, 2)
        return float(r_r), float(b_b)

    def start(self, target: float) -> None:
        new_records(self.parts, -1, target)
        self._next = 0

    def advance(self, to: int) -> None:
        for sweep in range(self._next, to + 1):
            turn = sweep % 2
            if self.every:
                add = 1 if sweep else 0
            else:
                add = 2 if sweep and not turn else 0
            self.exchange.run(self._bound[turn, add], self._moves[turn])
        self._next = max(self._next, to + 1)

    def record(self) -> tuple[int, int]:
        return read_record(self.parts[0], f"record{(self._next - 1) % 2}")

    def finish(self) -> None:
        self.exchange.run(self._settle[(self._next - 1) % 2])


class MatrixLoop(Loop):
    """A matrix, alone or with a diagonal preconditioner; rows over one or several parts."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix.exchange)
        self._matrix = matrix
        self._done = 0
        self._advance: list[list[list[Bound]]] = [[], []]
        for part, rows in zip(self.parts, matrix.sizes, strict=True):
            vectors = ("x", "b", *(("inverse",) if matrix.diagonal else ()))
            *_, advance = plan_cg.vectors(
                rows,
                dtype=matrix.vectors.dtype.name,
                aligned=part.is_aligned(*vectors),
                diagonal=matrix.diagonal,
                multiprocessors=part.device.multiprocessors,
                block_limit=part.device.block_limit,
                tuning=matrix.vectors.tuning,
            )
            for turn in (0, 1):
                scalars = {"before": f"record{turn}", "after": f"record{1 - turn}"}
                bound = part.bind(advance, partial_before="partial", **scalars)
                self._advance[turn].append([bound])

    def residual(self) -> tuple[float, float]:
        return self._matrix.residual()

    def start(self, target: float) -> None:
        new_records(self.parts, 0, target)
        self._done = 0

    def advance(self, to: int) -> None:
        for iteration in range(self._done, to):
            turn = iteration % 2
            self._matrix.product(turn)
            self._matrix.change(self._advance[turn])
        self._done = max(self._done, to)

    def record(self) -> tuple[int, int]:
        return read_record(self.parts[0], f"record{self._done % 2}")


class Preconditioned(Loop):
    """A matrix on one part, and ``apply(r, z)`` that starts the launches of z = M r."""

    def __init__(self, matrix: Matrix, apply: Callable[[Any, Any], None]) -> None:
        super().__init__(matrix.exchange)
        n, dtype = matrix.vectors.n, matrix.vectors.dtype
        (part,) = self.parts
        self._matrix = matrix
        self._part = part
        self._apply = apply
        self._done = 0
        part.allocate(n * dtype.itemsize, "z")
        dots, direct, correct = plan_cg.dots(
            n,
            dtype=dtype.name,
            aligned=part.is_aligned("x"),
            multiprocessors=part.device.multiprocessors,
            block_limit=part.device.block_limit,
            tuning=matrix.vectors.tuning,
        )
        part.allocate(16 * dots.grid, "dots")
        self._dots = part.bind(dots, a="z", b="r", partial="dots")
        self._direct = part.bind(
            direct,
            partial_before="dots",
            before="record0",
            after="record1",
            blocks_before=dots.grid,
        )
        self._correct = part.bind(
            correct, partial_before="partial", before="record1", after="record0"
        )

    def residual(self) -> tuple[float, float]:
        return self._matrix.residual()

    def start(self, target: float) -> None:
        new_records(self.parts, 0, target)
        self._done = 0

    def advance(self, to: int) -> None:
        part = self._part
        for _ in range(self._done, to):
            self._apply(part.buffers["r"], part.buffers["z"])
            part.start(self._dots, self._direct)
            self._matrix.product(0)
            part.start(self._correct)
        self._done = max(self._done, to)

    def record(self) -> tuple[int, int]:
        return read_record(self._part, "record0")


def _turned(turn: int) -> dict[str, str]:
    """Names of what a sweep reads and writes, which change places every time."""
    pairs = {
        "state": ("now", "next"),
        "partial": ("partial_before", "partial"),
        "record": ("before", "after"),
    }
    return {
        ours: f"{name}{number}"
        for name, (read, written) in pairs.items()
        for ours, number in ((read, 1 - turn), (written, turn))
    }
