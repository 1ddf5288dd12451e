"""The iterations of conjugate gradients on grids, on devices, as launches.

`Sweeps` takes one launch per iteration; `Persistent`, for small grids, many in one cooperative
launch on each device. Both are PR-CG (kernels/cg/cg_scalars.cu). `Preconditioned` is the recurrence
of Hestenes and Stiefel, for a preconditioner that is launches of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices.cuda.cooperative import CooperativeKernel
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.kernels.cg.plan_stencil import GridShare
from hetero.ops.krylov.cg_vectors import HALO, X_HALO, Loop, Vectors
from hetero.ops.linear_systems.exchange import BufferCopies
from hetero.ops.linear_systems.partition import halo_copies, range_copies
from hetero.ops.linear_systems.systems import Stencil

_STAMPED = 16  # bytes of a value (kernels/common/stamped.cu)


class _OnGrid(Loop):
    """Stencils; rows over one or several parts."""

    def __init__(self, vectors: Vectors, stencil: Stencil) -> None:
        super().__init__(vectors)
        self._slabs, self._dtype = vectors.slabs, vectors.dtype
        self._plane = math.prod(stencil.shape[1:])
        self._row_bytes = self._plane * self._dtype.itemsize
        self._each = list(zip(self.parts, self._slabs, shares(vectors, stencil), strict=True))

    def _bind_residual(
        self,
        places: Sequence[dict[str, int]],
        rows: Sequence[BufferCopies],
        scaled: bool = False,
        **names: str,
    ) -> list[Launch]:
        """``places``: where r and p of each part begin. ``rows``: what is copied of them. Returns
        the launches of products."""
        self._residual_blocks, self._residuals, products = [], [], []
        for (part, _, grid), place in zip(self._each, places, strict=True):
            size = {"dtype": self._dtype.name, "x_halo": X_HALO, "scaled": scaled}
            residual, product = plan_cg_stencil.stencil(grid, part.device.target, **size, **place)
            part.allocate(16 * residual.grid, "residual sums")
            self._residual_blocks.append(residual.grid)
            known = names if scaled else names | {"inverse": "x"}
            self._residuals.append([part.bind(residual, partial="residual sums", **known)])
            products.append(product)
        x_rows = BufferCopies(halo_copies(self._slabs, self._row_bytes, X_HALO), "x", "x")
        self._x_rows, self._first_rows = self.exchange.bind(x_rows), self.exchange.bind(*rows)
        return products

    def residual(self) -> Sequence[float]:
        self.exchange.run([()] * len(self.parts), self._x_rows)
        self.exchange.run(self._residuals, self._first_rows)
        return self.exchange.total("residual sums", self._residual_blocks, 2)


class Sweeps(_OnGrid):
    """Halos are `HALO` deep."""

    def __init__(self, vectors: Vectors, stencil: Stencil, diagonal: bool) -> None:
        super().__init__(vectors, stencil)
        pitch = 2 * self._plane
        plans, places = [], []
        for part, slab, grid in self._each:
            part.allocate(pitch * slab.held * self._dtype.itemsize, "state0", "state1")
            aligned = part.is_aligned("x", *(("inverse",) if diagonal else ()))
            how = {"dtype": self._dtype.name, "halo": HALO, "x_halo": X_HALO, "diagonal": diagonal}
            pair = plan_cg_stencil.sweeps(grid, part.device.target, aligned=aligned, **how)
            plans.append((part, pair, plan_cg_stencil.settle(grid, pair[0], HALO, X_HALO)))
            start = slab.above * pitch
            places.append({"r_start": start + self._plane, "p_start": start, "pitch": pitch})
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
        rows = halo_copies(self._slabs, 2 * self._row_bytes, HALO)
        self._moves = [
            self.exchange.bind(
                BufferCopies(rows, state, state), BufferCopies(gather, partial, partial)
            )
            for state, partial in (("state0", "partial0"), ("state1", "partial1"))
        ]
        first = [BufferCopies(rows, "state1", "state1")]
        self._bind_residual(places, first, diagonal, r="state1", p="state1")

    def advance(self, to: int) -> None:
        with self.exchange.queued():
            for sweep in range(self.done + 1, to + 1):
                turn = sweep % 2
                if self.every:
                    add = 1 if sweep else 0
                else:
                    add = 2 if sweep and not turn else 0
                self.exchange.run(self._bound[turn, add], self._moves[turn])
        self.done = max(self.done, to)
        self.turn = self.done % 2

    def finish(self) -> None:
        self.exchange.run(self._settle[self.turn])


class Persistent(_OnGrid):
    """A 2-D grid; its vectors fit in the registers of its devices.

    Use `persistent`, which knows whether they do.
    """

    # A launch takes 20 us to start, load and store; it ends by itself when the iteration does.
    first_batch = 64
    batch_seconds = 4e-3

    def __init__(
        self,
        vectors: Vectors,
        stencil: Stencil,
        plans: Sequence[Launch],
        kernels: Sequence[CooperativeKernel],
    ) -> None:
        super().__init__(vectors, stencil)
        self._stamp, self._kernels, row = 0, kernels, self._row_bytes
        points, blocks = stencil.shape[0] * self._plane, [plan.grid for plan in plans]
        for number, part in enumerate(self.parts):
            # Several parts have r and p of the whole grid: a row has the same place on all devices.
            part.allocate(points * self._dtype.itemsize, "r", "p0", "p1")
            with part.active():
                for names, words in (("edges", points), ("sums", 4 * sum(blocks))):
                    for name in (f"{names}0", f"{names}1"):
                        buffer = part.allocate(_STAMPED * words, name)
                        part.device.fill(buffer, _STAMPED * words, stream=part.stream)
            part.numbers["all_rows"] = stencil.shape[0]
            part.numbers["all_blocks"] = sum(blocks)
            part.numbers["first_block"] = sum(blocks[:number])
        own = [(slab.begin, slab.end) for slab in self._slabs]
        held = [(slab.begin - slab.above, slab.end + slab.below) for slab in self._slabs]
        rows = range_copies(own, held, row)
        copies = [BufferCopies(rows, name, name) for name in ("r", "p1")]
        starts = [slab.begin * self._plane for slab in self._slabs]
        places = [{"r_start": start, "p_start": start} for start in starts]
        self._bind_residual(places, copies, p="p1")
        self._plans = [
            (plan, self._of_several(rank, (slab.begin - X_HALO * bool(slab.above)) * row))
            for rank, (plan, slab) in enumerate(zip(plans, self._slabs, strict=True))
        ]

    def _of_several(self, rank: int, before: int) -> dict[str, Any]:
        """What a part's launch names besides where there are several; x lacks ``before`` bytes."""
        meeting, part = self.exchange.meeting, self.parts[rank]
        if meeting is None:
            return {}
        names = ("edges0", "edges1", "sums0", "sums1", "r", "p0", "p1")
        addresses = [[other.buffers[name] for name in names] for other in self.parts]
        peers = part.upload(np.array(addresses, np.int64))
        patience = round(1e9 * meeting.patience)
        x = part.buffers["x"] - before
        return {"peers": peers, "rank": rank, "patience": patience, "x": x}

    def advance(self, to: int) -> None:
        if to <= self.done:
            return
        each = zip(self.parts, self._plans, self._kernels, strict=True)
        for part, (plan, others), kernel in each:
            scalars = {
                "iterations": to - self.done,
                "stamp": self._stamp,
                "before": f"record{self.turn}",
                "after": f"record{1 - self.turn}",
            }
            values = part.values(plan, **scalars, **others)
            with part.active():
                kernel.launch(plan.grid, values, part.stream)
        if len(self.parts) > 1:  # the next launch takes what this one leaves on all devices
            self.exchange.synchronize()
        self._stamp += to - self.done
        self.done = to
        self.turn = 1 - self.turn


class Preconditioned(_OnGrid):
    """A stencil, and a hierarchy of multigrid: its symmetric cycle is z = M r.

    On several parts r and z are of the whole grid, and the cycle brings z to where a part computes
    p: in its own rows, and in those of its neighbours next to them.
    """

    begins = 0

    def __init__(self, vectors: Vectors, stencil: Stencil, M: Any) -> None:
        super().__init__(vectors, stencil)
        plane, item = self._plane, self._dtype.itemsize
        several = len(self.parts) > 1
        places, plans = [], []
        for part, slab, _ in self._each:
            own, before = plane * slab.own, plane * slab.above
            part.allocate(own * item, "q", *(() if several else ("r", "z")))
            part.allocate(plane * slab.held * item, "p")
            part.numbers |= {"start": plane * slab.begin, "halo": before}
            places.append({"r_start": plane * slab.begin, "p_start": before})
            # A part's rows begin where a load does.
            whole = math.gcd(before, plane * slab.below) * item % 16 == 0
            how = {"dtype": self._dtype.name, "aligned": part.is_aligned("x") and whole}
            dots, _, correct = plan_cg.dots(own, part.device.target, **how)
            _, direct, _ = plan_cg.dots(plane * slab.held, part.device.target, **how)
            plans.append((part, dots, direct, correct))
        rows = BufferCopies(halo_copies(self._slabs, self._row_bytes), "p", "p")
        products = self._bind_residual(places, [rows], inverse="r")
        share, bind = self.exchange.share_sums, self.exchange.bind
        blocks = [product.grid for product in products]
        gathered = bind(BufferCopies(share(blocks, 2, "partial"), "partial", "partial"))
        back = {"before": "record1", "after": "record0", "partial_before": "partial"}
        back |= {"blocks_before": sum(blocks)}
        each = zip(self.parts, products, strict=True)
        products = [[part.bind(product)] for part, product in each]
        corrections = [[part.bind(correct, **back)] for part, *_, correct in plans]
        sums = share([dots.grid for _, dots, *_ in plans], 2, "dots")
        there = {"before": "record0", "after": "record1", "partial_before": "dots"}
        scalars = [[part.bind(dots, a="z", b="r", partial="dots")] for part, dots, *_ in plans]
        directions = [
            [part.bind(direct, **there, start=plane * slab.first)]
            for (part, _, direct, _), slab in zip(plans, self._slabs, strict=True)
        ]
        self._r_rows = bind(BufferCopies(M.halo, "r", "r")) if several else []
        self._steps = (
            (scalars, bind(BufferCopies(sums, "dots", "dots"))),  # r.z
            (directions, ()),  # p = z + beta p
            (products, gathered),  # A p, p.Ap
            (corrections, self._r_rows),  # x += alpha p, r -= alpha A p
        )
        r, z = ([part.buffers[name] for part in self.parts] for name in "rz")
        self._apply = M.bound(r, z, symmetric=True)

    def residual(self) -> Sequence[float]:
        sums = super().residual()
        self.exchange.run([()] * len(self.parts), self._r_rows)
        return sums

    def advance(self, to: int) -> None:
        for _ in range(self.done, to):
            if self.exchange.meeting is not None:
                self.exchange.repeat("iteration", self._iterate)
            else:
                self._iterate()
        self.done = max(self.done, to)

    def _iterate(self) -> None:
        self._apply()
        for launches, moves in self._steps:
            self.exchange.run(launches, moves)


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


def shares(vectors: Vectors, stencil: Stencil) -> list[GridShare]:
    """Each part's rows of the grid."""
    return [
        GridShare.of(*stencil, slab.own, slab.above > 0, slab.below > 0) for slab in vectors.slabs
    ]


def persistent(vectors: Vectors, stencil: Stencil) -> Persistent | None:
    """The iteration in cooperative launches; None if grid, devices or software do not allow it."""
    if len(vectors.parts) > 1 and vectors.exchange.meeting is None:
        return None
    plans, kernels = [], []
    each = zip(vectors.parts, vectors.slabs, shares(vectors, stencil), strict=True)
    for part, slab, grid in each:
        device, target = part.device, part.device.target
        sharers = sum(other.device is device for other in vectors.parts)
        plan = plan_cg_stencil.cooperative(
            grid,
            target._replace(multiprocessors=max(1, target.multiprocessors // sharers)),
            dtype=vectors.dtype.name,
            shared_limit=device.shared_limit,
            above=slab.begin,
            devices=len(vectors.parts),
        )
        if plan is None:
            return None
        with part.active():
            kernel = device.cooperative(
                plan.source, plan.kernel, plan.defines, plan.block, plan.shared_bytes
            )
        if kernel is None or kernel.most_blocks < plan.grid:
            return None
        plans.append(plan)
        kernels.append(kernel)
    return Persistent(vectors, stencil, plans, kernels)


class GridProduct:
    """-div grad on one part; it reads that part's p."""

    def __init__(self, vectors: Vectors, stencil: Stencil) -> None:
        (part,) = self.parts = vectors.parts
        part.allocate(vectors.n * vectors.dtype.itemsize, "p", "q")
        (grid,), size = shares(vectors, stencil), {"dtype": vectors.dtype.name, "x_halo": X_HALO}
        _, product = plan_cg_stencil.stencil(grid, part.device.target, **size)
        part.allocate(16 * product.grid, "partial")
        part.numbers["first_block"] = 0
        self._product = part.bind(product)

    def times(self) -> None:
        """q = A p."""
        self.parts[0].start(self._product)
