"""The iterations of conjugate gradients on devices, as launches.

Stencils: `Sweeps` takes one launch per iteration, `Persistent` (`cg_persistent`) many per launch.
Matrices: `MatrixLoop` takes a product, then one launch for the vectors. All three are PR-CG
(kernels/cg/cg_scalars.cu). `Preconditioned` is the recurrence of Hestenes and Stiefel, for a
preconditioner that is launches of its own.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.kernels.cg.plan_stencil import GridShare
from hetero.ops.krylov.cg_matrices import Matrix
from hetero.ops.krylov.cg_vectors import HALO, X_HALO, Vectors, new_records, read_record
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Exchange
from hetero.ops.linear_systems.partition import halo_copies
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
        if len(self.parts) > 1:  # queues of several devices take longer to fill again
            self.batch_seconds = max(self.batch_seconds, 2e-3)

    @abc.abstractmethod
    def residual(self) -> Sequence[float]:
        """Compute r = b - A x, from where an iteration starts; returns r.r and b.b."""

    @abc.abstractmethod
    def start(self, target: float) -> None:
        """Begin from the last `residual`, to stop where r.r is no more than ``target``."""

    @abc.abstractmethod
    def advance(self, to: int) -> None:
        """Start the launches after which x is iterate ``to``, unless the iteration stops before."""

    @abc.abstractmethod
    def record(self) -> tuple[int, int]:
        """(status, iterations since `start`); waits for them."""

    def finish(self) -> None:  # noqa: B027  # nothing to do where x does not lag
        """Make x the iterate of the record."""


class Sweeps(Loop):
    """Stencils; rows over one or several parts, whose halos are `HALO` deep."""

    def __init__(self, vectors: Vectors, stencil: Stencil, diagonal: bool) -> None:
        super().__init__(vectors.exchange)
        slabs, dtype = vectors.slabs, vectors.dtype
        plane = math.prod(stencil.shape[1:])
        self._next = 0
        plans, self._residual_blocks, self._residuals = [], [], []
        for part, slab in zip(self.parts, slabs, strict=True):
            target = part.device.target
            grid = GridShare.of(*stencil, slab.own, slab.above > 0, slab.below > 0)
            part.allocate(2 * plane * slab.held * dtype.itemsize, "state0", "state1")
            size = {"dtype": dtype.name, "x_halo": X_HALO}
            aligned = part.is_aligned("x", *(("inverse",) if diagonal else ()))
            pair = plan_cg_stencil.sweeps(
                grid, target, halo=HALO, aligned=aligned, diagonal=diagonal, **size
            )
            plans.append((part, pair, plan_cg_stencil.settle(grid, pair[0], HALO, X_HALO)))
            start = slab.above * 2 * plane
            where = {"r_start": start + plane, "p_start": start, "pitch": 2 * plane}
            residual, _ = plan_cg_stencil.stencil(grid, target, scaled=diagonal, **where, **size)
            part.allocate(16 * residual.grid, "residual sums")
            self._residual_blocks.append(residual.grid)
            known = {} if diagonal else {"inverse": "x"}
            self._residuals.append(
                [part.bind(residual, r="state1", p="state1", partial="residual sums", **known)]
            )
        blocks = [pair[0].grid for _, pair, _ in plans]
        gather = self.exchange.share_sums(blocks, 8 if diagonal else 4, "partial0", "partial1")
        self._bound = {
            (turn, add): [
                [part.bind(pair[turn], add=add, **_turned(turn))] for part, pair, _ in plans
            ]
            for turn in (0, 1)
            for add in (0, 1, 2)
        }
        self._settle = [
            [
                [part.bind(settle, even="state0", odd="state1", record=f"record{turn}")]
                for part, _, settle in plans
            ]
            for turn in (0, 1)
        ]
        row = plane * dtype.itemsize
        bind = self.exchange.bind
        rows = halo_copies(slabs, 2 * row, HALO)
        self._moves = [
            bind(BufferCopies(rows, state, state), BufferCopies(gather, partial, partial))
            for state, partial in (("state0", "partial0"), ("state1", "partial1"))
        ]
        self._first_rows = bind(BufferCopies(rows, "state1", "state1"))
        self._x_rows = bind(BufferCopies(halo_copies(slabs, row, X_HALO), "x", "x"))

    def residual(self) -> Sequence[float]:
        self.exchange.run([()] * len(self.parts), self._x_rows)
        self.exchange.run(self._residuals, self._first_rows)
        return self.exchange.total("residual sums", self._residual_blocks, 2)

    def start(self, target: float) -> None:
        new_records(self.parts, -1, target)
        self._next = 0

    def advance(self, to: int) -> None:
        with self.exchange.queued():
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


class _OverMatrix(Loop):
    """What iterations on a matrix have in common."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix.exchange)
        self._matrix = matrix
        self._queued: Callable[[], Any] = self.exchange.queued
        self._done = 0

    def residual(self) -> Sequence[float]:
        return self._matrix.residual()

    def start(self, target: float) -> None:
        new_records(self.parts, 0, target)
        self._done = 0

    def advance(self, to: int) -> None:
        with self._queued():
            for iteration in range(self._done, to):
                self._iterate(iteration % 2)
        self._done = max(self._done, to)

    @abc.abstractmethod
    def _iterate(self, turn: int) -> None:
        """Start the launches of an iteration, an even or an odd one."""


class MatrixLoop(_OverMatrix):
    """A matrix, alone or with a diagonal preconditioner; rows over one or several parts."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix)
        self._advance: list[list[list[Bound]]] = [[], []]
        for part, rows in zip(self.parts, matrix.sizes, strict=True):
            vectors = ("x", "b", *(("inverse",) if matrix.diagonal else ()))
            *_, advance = plan_cg.vectors(
                rows,
                part.device.target,
                dtype=matrix.vectors.dtype.name,
                aligned=part.is_aligned(*vectors),
                diagonal=matrix.diagonal,
            )
            for turn in (0, 1):
                scalars = {"before": f"record{turn}", "after": f"record{1 - turn}"}
                bound = part.bind(advance, partial_before="partial", **scalars)
                self._advance[turn].append([bound])

    def _iterate(self, turn: int) -> None:
        self._matrix.product(turn)
        self._matrix.change(self._advance[turn])

    def record(self) -> tuple[int, int]:
        return read_record(self.parts[0], f"record{self._done % 2}")


class Preconditioned(_OverMatrix):
    """A matrix on one part, and ``M.apply(r, z)`` that starts the launches of z = M r.

    Or a stencil on several, and a hierarchy of multigrid on these. It brings z to where a part
    computes p: in its own rows, and in those of its neighbours next to them.
    """

    def __init__(self, matrix: Matrix, M: Any) -> None:
        super().__init__(matrix)
        vectors, item = matrix.vectors, matrix.vectors.dtype.itemsize
        several = len(self.parts) > 1
        plans = []
        each = list(zip(self.parts, vectors.spans, vectors.beyond, strict=True))
        for part, (begin, end), (above, below) in each:
            if not several:
                part.allocate(vectors.n * item, "z")
            part.numbers |= {"start": begin, "halo": above}
            # A part's rows begin where a load does.
            aligned = part.is_aligned("x") and math.gcd(above, below) * item % 16 == 0
            how = {"dtype": vectors.dtype.name, "aligned": aligned}
            dots, _, correct = plan_cg.dots(end - begin, part.device.target, **how)
            held = above + end - begin + below
            plans.append((dots, plan_cg.dots(held, part.device.target, **how)[1], correct))
        sums = self.exchange.share_sums([dots.grid for dots, *_ in plans], 2, "dots")
        self._dots, self._direct, self._correct = [], [], []
        there = {"before": "record0", "after": "record1", "partial_before": "dots"}
        back = {"before": "record1", "after": "record0", "partial_before": "partial"}
        back["blocks_before"] = sum(matrix.blocks)
        for (part, (begin, _), (above, _)), (dots, direct, correct) in zip(
            each, plans, strict=True
        ):
            self._dots.append([part.bind(dots, a="z", b="r", partial="dots")])
            self._direct.append([part.bind(direct, **there, start=begin - above)])
            self._correct.append([part.bind(correct, **back)])
        self._gather = self.exchange.bind(BufferCopies(sums, "dots", "dots"))
        r, z = ([part.buffers[name] for part in self.parts] for name in "rz")
        self._apply, self._r_z, self._r_rows = M.apply, (r, z) if several else (*r, *z), []
        self._times, self._again = 0, None
        if several:
            self._queued = contextlib.nullcontext  # the hierarchy starts its launches at once
            self._r_rows = self.exchange.bind(BufferCopies(M.halo, "r", "r"))

    def residual(self) -> Sequence[float]:
        sums = super().residual()
        self.exchange.run([()] * len(self.parts), self._r_rows)
        return sums

    def _iterate(self, turn: int) -> None:
        """The second time as a graph of each device where these meet."""
        if self._times == 1 and self.exchange.meeting is not None:
            self._again = self.exchange.recorded(self._start)
        (self._again or self._start)()
        self._times += 1

    def _start(self) -> None:
        self._apply(*self._r_z)
        self.exchange.run(self._dots, self._gather)
        self.exchange.run(self._direct)
        self._matrix.product(0)
        self.exchange.run(self._correct, self._r_rows)

    def record(self) -> tuple[int, int]:
        return read_record(self.parts[0], "record0")


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
