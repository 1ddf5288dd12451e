"""Conjugate gradients on small grids: many iterations in one cooperative launch on each device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices.cuda.cooperative import CooperativeKernel
from hetero.kernels import Launch
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.kernels.cg.plan_stencil import GridShare
from hetero.kernels.common.launch import Target
from hetero.ops.krylov.cg_loops import Loop
from hetero.ops.krylov.cg_vectors import X_HALO, Vectors, new_records, read_record
from hetero.ops.linear_systems.exchange import BufferCopies, Part
from hetero.ops.linear_systems.partition import Slab, halo_copies, range_copies
from hetero.ops.linear_systems.types import Stencil

_STAMPED = 16  # bytes of a value (kernels/common/stamped.cu)


class Persistent(Loop):
    """A stencil on a 2-D grid whose vectors fit in the registers of its devices.

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
        super().__init__(vectors.exchange)
        self._done = self._turn = self._stamp = 0
        self._kernels = kernels
        slabs, item = vectors.slabs, vectors.dtype.itemsize
        plane = math.prod(stencil.shape[1:])
        points, blocks = stencil.shape[0] * plane, [plan.grid for plan in plans]
        self._blocks, self._residual = [], []
        for number, (part, slab) in enumerate(zip(self.parts, slabs, strict=True)):
            # Several parts have r and p of the whole grid: a row has the same place on all devices.
            part.allocate(points * item, "r", "p0", "p1")
            with part.active():
                for names, words in (("edges", points), ("sums", 4 * sum(blocks))):
                    for name in (f"{names}0", f"{names}1"):
                        buffer = part.allocate(_STAMPED * words, name)
                        part.device.fill(buffer, _STAMPED * words, stream=part.stream)
            part.numbers["all_rows"] = stencil.shape[0]
            part.numbers["all_blocks"] = sum(blocks)
            part.numbers["first_block"] = sum(blocks[:number])
            grid, target = _share(vectors, part, stencil, slab)
            place = {"r_start": slab.begin * plane, "p_start": slab.begin * plane}
            residual, _ = plan_cg_stencil.stencil(
                grid, target, dtype=vectors.dtype.name, x_halo=X_HALO, **place
            )
            part.allocate(16 * residual.grid, "residual sums")
            self._blocks.append(residual.grid)
            bound = part.bind(residual, p="p1", inverse="x", partial="residual sums")
            self._residual.append([bound])
        bind, row = self.exchange.bind, plane * item
        self._x_rows = bind(BufferCopies(halo_copies(slabs, row, X_HALO), "x", "x"))
        own = [(slab.begin, slab.end) for slab in slabs]
        held = [(slab.begin - slab.above, slab.end + slab.below) for slab in slabs]
        rows = range_copies(own, held, row)
        self._first_rows = bind(*(BufferCopies(rows, name, name) for name in ("r", "p1")))
        self._plans = [
            (plan, self._of_several(rank, (slab.begin - X_HALO * bool(slab.above)) * row))
            for rank, (plan, slab) in enumerate(zip(plans, slabs, strict=True))
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

    def residual(self) -> Sequence[float]:
        self.exchange.run([()] * len(self.parts), self._x_rows)
        self.exchange.run(self._residual, self._first_rows)
        return self.exchange.total("residual sums", self._blocks, 2)

    def start(self, target: float) -> None:
        new_records(self.parts, -1, target)
        self._done = -1  # the first step only leads to iterate 0

    def advance(self, to: int) -> None:
        if to <= self._done:
            return
        each = zip(self.parts, self._plans, self._kernels, strict=True)
        for part, (plan, others), kernel in each:
            scalars = {
                "iterations": to - self._done,
                "stamp": self._stamp,
                "before": f"record{self._turn}",
                "after": f"record{1 - self._turn}",
            }
            values = part.values(plan, **scalars, **others)
            with part.active():
                kernel.launch(plan.grid, values, part.stream)
        if len(self.parts) > 1:  # the next launch takes what this one leaves on all devices
            self.exchange.synchronize()
        self._stamp += to - self._done
        self._done = to
        self._turn = 1 - self._turn

    def record(self) -> tuple[int, int]:
        return read_record(self.parts[0], f"record{self._turn}")


def _share(vectors: Vectors, part: Part, stencil: Stencil, slab: Slab) -> tuple[GridShare, Target]:
    """A part's share of a grid, and what it is planned for: a device may have several parts."""
    target = part.device.target
    sharers = sum(other.device is part.device for other in vectors.parts)
    grid = GridShare.of(*stencil, slab.own, slab.above > 0, slab.below > 0)
    return grid, target._replace(multiprocessors=max(1, target.multiprocessors // sharers))


def persistent(vectors: Vectors, stencil: Stencil) -> Persistent | None:
    """The iteration in cooperative launches; None if grid, devices or software do not allow it."""
    if len(vectors.parts) > 1 and vectors.exchange.meeting is None:
        return None
    plans, kernels = [], []
    for part, slab in zip(vectors.parts, vectors.slabs, strict=True):
        device = part.device
        grid, target = _share(vectors, part, stencil, slab)
        plan = plan_cg_stencil.cooperative(
            grid,
            target,
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
