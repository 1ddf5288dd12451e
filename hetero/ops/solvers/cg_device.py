"""Conjugate gradients on devices: the solve, and the launches of its steps on a grid.

`Sweeps` takes one launch per iteration, steps 3 to 8 of `cg_loop`; `Persistent`, for small grids,
many iterations in one cooperative launch on each device. Both are PR-CG (kernels/cg/cg_scalars.cu).
`Preconditioned` is the recurrence of Hestenes and Stiefel, for a preconditioner that is launches of
its own. With a matrix, or a diagonal preconditioner, it is `cg_launches.OnMatrix`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg.plan import HALO, X_HALO, GridShare
from hetero.ops.solvers.cg_launches import Call, Loop, OnMatrix
from hetero.ops.solvers.exchange import Moved, Step, range_copies, split, widened
from hetero.ops.solvers.systems import Outcome, Stencil
from hetero.registry import Arguments

_STAMPED = 16  # bytes of a value (kernels/common/stamped.cu)


def solve(
    devices: Sequence[Device],
    arguments: Arguments,
    dtype: Any,
    going_on: tuple[np.ndarray, np.ndarray] | None = None,
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A, if the squares of b are in range.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided among them, of a system on the host and
        without a `DeviceHierarchy`.
    arguments : Arguments
        b, x and a `Solve`. b and x, which is the start and gets the result, are contiguous
        (n,) numpy.ndarray, or buffers of the only device. The system is a Stencil, Csr or Dense, of
        which arrays on the host are uploaded for this call; M is None, an (n,) numpy.ndarray, the
        inverse of a diagonal matrix, or for a stencil a `DeviceHierarchy` of the first device.
    dtype : float32 or float64
        Of b and x.
    going_on : two (n,) numpy.ndarray, optional
        The recurrence's residual and next direction, of a matrix on one device, to go on from an
        iteration elsewhere. Default: b - A x, and the direction of steepest descent.

    Notes
    -----
    Work of an iteration, for n unknowns and a matrix of nnz entries; elements are those read and
    written, and what A and M take themselves comes on top.

    ============================  ====================  =========================
    iteration                     flops                 elements
    ============================  ====================  =========================
    `Sweeps`, 2-D                 28 n                  5.5 n
    `Sweeps`, 3-D                 32 n                  5.5 n
    `Persistent`                  24 n                  edges and sums
    `OnMatrix`, sparse            14 n + 2 nnz          10 n + nnz values, indices
    `OnMatrix`, dense             14 n + 2 n^2          10 n + n^2
    `Preconditioned`              10 n, with A and M    11 n, with A and M
    ============================  ====================  =========================

    References
    ----------
    T. Chen and E. Carson, "Predict-and-recompute conjugate gradient variants", SIAM J. Sci.
    Comput. 42 (2020), A3084-A3108: algorithm PR-CG. M. R. Hestenes and E. Stiefel, "Methods of
    conjugate gradients for solving linear systems", J. Res. Nat. Bur. Stand. 49 (1952).
    """
    (b,), x, asked = arguments
    system, M = asked.system(devices)
    with peers.turn(devices):
        call = Call(devices, system, b, x, np.dtype(dtype), M, asked.callback is not None)
        return loop_of(call).solve(asked, going_on)


def loop_of(call: Call) -> Loop:
    """The iteration that suits a system and its preconditioner, with its buffers."""
    if not isinstance(call.system, Stencil) or isinstance(call.M, np.ndarray):
        return OnMatrix(call)
    if call.M is not None:
        return Preconditioned(call)
    found = None if call.every else resident(call.devices, call.system, call.dtype)
    return Sweeps(call) if found is None else Persistent(call, found)


class _OnGrid(Loop):
    """Stencils; rows over one or several parts."""

    def __init__(self, call: Call) -> None:
        own = split(call.system.shape[0], len(call.devices), HALO)
        plane = self._plane = math.prod(call.system.shape[1:])
        spans = [(begin * plane, end * plane) for begin, end in own]
        super().__init__(call, spans, widened(spans, X_HALO * plane))
        self._needed = widened(spans, HALO * plane)  # of p and r
        shares = [GridShare.of(*call.system.box, *rows) for rows in own]
        self._each = list(zip(self.parts, shares, strict=True))

    def _bind_residual(
        self, places: Sequence[dict[str, int]], *rows: Moved, **names: str
    ) -> Sequence[Launch]:
        """``places``: where r and p of each part begin. ``rows``: what is copied of them. Returns
        the launches of products."""
        plans = []
        for (part, grid), place in zip(self._each, places, strict=True):
            plans.append(plan_cg.stencil(grid, part.device.target, dtype=self.dtype.name, **place))
            part.allocate(16 * plans[-1][0].grid, "residual sums")
        residuals, products = zip(*plans, strict=True)
        first = [()] * len(self.parts), self.exchange.bind(self.copies(self.held, "x"))
        launches = self.exchange.launches(residuals, partial="residual sums", **names)
        self.to_residual = first, (launches, self.exchange.bind(*rows))
        self.residual_sums = "residual sums", [plan.grid for plan in residuals], 2
        return products


class Sweeps(_OnGrid):
    """What a sweep reads and writes change places every time. x takes two steps in every second
    sweep, or with ``every`` one in each: then it is whole after all iterations."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        plane, pair, every = self._plane, 2 * call.dtype.itemsize, call.every
        plans, places, lows = [], [], [low for low, _ in self._needed]
        for (part, grid), (begin, _), (low, high) in zip(
            self._each, self.spans, self._needed, strict=True
        ):
            part.allocate((high - low) * pair, "state0", "state1")
            how = {"dtype": call.dtype.name, "aligned": part.is_aligned("x")}
            plans.append(plan_cg.sweeps(grid, part.device.target, **how))
            start = 2 * (begin - low)
            places.append({"r_start": start + plane, "p_start": start, "pitch": 2 * plane})
        *sweeps, settles = zip(*plans, strict=True)
        blocks = [plan.grid for plan in sweeps[0]]
        partial0, partial1 = self.exchange.share_sums(blocks, 4, "partial0", "partial1")
        rows = range_copies(self.spans, self._needed, pair, lows)
        state0, state1 = ((name, rows) for name in ("state0", "state1"))
        moves = [self.exchange.bind(state0, partial0), self.exchange.bind(state1, partial1)]
        self._sweeps, self._settle = {}, []
        for turn in (0, 1):
            now, new = 1 - turn, turn
            names = {"now": f"state{now}", "partial_before": f"partial{now}"}
            names |= {"next": f"state{new}", "partial": f"partial{new}"}
            names |= {"before": f"record{now}", "after": f"record{new}"}
            for first in (True, False):
                add = 0 if first or not (every or turn == 0) else 1 if every else 2
                launches = self.exchange.launches(sweeps[turn], add=add, **names)
                self._sweeps[turn, first] = [(launches, moves[turn])]
            ends = {"even": "state0", "odd": "state1", "record": f"record{turn}"}
            self._settle.append(self.exchange.launches(settles, **ends))
        self._bind_residual(places, state1, r="state1", p="state1")

    def steps(self, iteration: int) -> Sequence[Step]:
        return self._sweeps[(iteration + 1) % 2, iteration == -1]

    def finish(self) -> None:
        self.exchange.run(self._settle[self.turn])


class Persistent(_OnGrid):
    """A 2-D grid of which the vectors fit in the registers of its devices; see `resident`."""

    # A launch takes 20 us to start, load and store; it ends by itself when the iteration does.
    batch = 64
    batch_seconds = 4e-3

    def __init__(self, call: Call, resident: Sequence[tuple[Launch, Any]]) -> None:
        super().__init__(call)
        self._stamp, self._resident = 0, resident
        item, points = call.dtype.itemsize, self.spans[-1][1]
        # Four sums of a block, for even and odd iterates.
        self.exchange.share_sums([plan.grid for plan, _ in resident], _STAMPED, "sums")
        # Parts have r, p and edges of the whole grid: a row has the same place on all devices.
        for part in self.parts:
            part.allocate(points * item, "r", "p")
            part.allocate(2 * _STAMPED * points, "edges")
            part.numbers["all_rows"] = call.system.shape[0]
            sizes = {"edges": 2 * points, "sums": 8 * part.numbers["blocks_before"]}
            with part.active():
                for name, values in sizes.items():
                    nbytes = _STAMPED * values
                    part.device.fill(part.buffers[name], nbytes, stream=part.stream)
        places = [{"r_start": begin, "p_start": begin} for begin, _ in self.spans]
        rows = range_copies(self.spans, self._needed, item)
        self._bind_residual(places, ("r", rows), ("p", rows))
        # Where x of row 0 would be, and of several parts what they find each other by.
        names, meeting = ("edges", "sums", "r", "p"), self.exchange.meeting
        for rank, (part, (low, _)) in enumerate(zip(self.parts, self.held, strict=True)):
            x = part.buffers["x"]
            part.buffers["first x"] = x - low * item if low else x
            if meeting is not None:
                addresses = [[each.buffers[name] for name in names] for each in self.parts]
                part.upload(np.array(addresses, np.int64), "peers")
                part.numbers |= {"rank": rank, "patience": round(1e9 * meeting.patience)}

    def advance(self, to: int) -> None:
        others = {"x": "first x", "iterations": to - self.done, "stamp": self._stamp}
        others |= {"before": f"record{self.turn}", "after": f"record{1 - self.turn}"}
        for part, (plan, kernel) in zip(self.parts, self._resident, strict=True):
            with part.active():
                kernel.launch(plan.grid, part.values(plan, **others), part.stream)
        if len(self.parts) > 1:  # the next launch takes what this one leaves on all devices
            self.exchange.synchronize()
        self._stamp += to - self.done
        self.done = to
        self.turn = 1 - self.turn


def resident(
    devices: Sequence[Device], stencil: Stencil, dtype: np.dtype
) -> list[tuple[Launch, Any]] | None:
    """Plan and kernel of each device's cooperative launches; None if grid, devices or software do
    not allow them."""
    found, own = [], split(stencil.shape[0], len(devices), HALO)
    used = devices[: len(own)]
    if len(used) > 1 and not peers.meet(used):
        return None
    for device, rows in zip(used, own, strict=True):
        sharers = sum(other is device for other in used)
        multiprocessors = max(1, device.target.multiprocessors // sharers)
        plan = plan_cg.cooperative(
            GridShare.of(*stencil.box, *rows),
            device.target._replace(multiprocessors=multiprocessors),
            dtype=dtype.name,
            shared_limit=device.shared_limit,
            above=rows[0],
            devices=len(used),
        )
        if plan is None:
            return None
        text = plan.source, plan.kernel, plan.defines
        with device.active():
            kernel = device.cooperative(*text, plan.block, plan.shared_bytes)
        if kernel is None or kernel.most_blocks < plan.grid:
            return None
        found.append((plan, kernel))
    return found


class Preconditioned(_OnGrid):
    """A stencil on one part, and a hierarchy of multigrid: its symmetric cycle is z = M r."""

    begins, records = 0, 1

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        (part,), n = self.parts, self.spans[-1][1]
        part.allocate(n * call.dtype.itemsize, "p", "q", "r", "z")
        how = {"dtype": call.dtype.name, "aligned": part.is_aligned("x")}
        plans = plan_cg.textbook(n, part.device.target, **how)
        (product,) = self._bind_residual([{}])
        dots = plans["cg_dots"]
        for name, launch in (("dots", dots), ("partial", product)):
            part.allocate(16 * launch.grid, name)
        part.numbers["first_block"] = 0
        there = {"before": "record0", "after": "record1", "blocks_before": dots.grid}
        back = {"before": "record1", "after": "record0", "blocks_before": product.grid}
        self._launches = (
            part.bind(dots, a="z", b="r", partial="dots"),  # 7. r.z, of which beta is made
            part.bind(plans["cg_direct"], partial_before="dots", **there),  # 8. p = z + beta p
            part.bind(product),  # 3. A p, p.Ap
            # 4., 5. x = x + alpha p, r = r - alpha A p
            part.bind(plans["cg_correct"], partial_before="partial", **back),
        )
        self._apply = call.M.bound([part.buffers["r"]], [part.buffers["z"]], symmetric=True)

    def steps(self, iteration: int) -> Sequence[Step]:
        self._apply()  # 6. z = M r, by launches of its own
        return [([self._launches], ())]
