"""Conjugate gradients on devices: the solve, and the iterations of grids, as launches.

`Sweeps` takes one launch per iteration; `Persistent`, for small grids, many in one cooperative
launch on each device. Both are PR-CG (kernels/cg/cg_scalars.cu). `Preconditioned` is the recurrence
of Hestenes and Stiefel, for a preconditioner that is launches of its own. Those of matrices are in
`cg_matrices`; how they iterate, and what lies on the devices, is in `cg_vectors`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.devices.cuda.compiler import CooperativeKernel
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg.plan import HALO, X_HALO
from hetero.ops.solvers import systems
from hetero.ops.solvers.cg_matrices import KINDS
from hetero.ops.solvers.cg_vectors import Loop, Step, Vectors
from hetero.ops.solvers.exchange import BufferCopies, Part, around, halo_copies, range_copies
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil

_STAMPED = 16  # bytes of a value (kernels/common/stamped.cu)


def solve(
    devices: Sequence[Device],
    system: Stencil | Csr | Dense,
    b: Any,
    x: Any,
    asked: Solve,
    M: Any = None,
    *,
    dtype: Any = None,
    going_on: tuple[np.ndarray, np.ndarray] | None = None,
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided among them. Dense matrices on a device,
        and preconditioners of a device's own launches, take the first alone.
    system : Stencil, Csr or Dense
        Arrays on the host are uploaded for this call.
    b, x : (n,) numpy.ndarray, or buffers of the only device
        Right-hand side; start, and place of the result: contiguous, float32 or float64.
    M : optional
        (n,) numpy.ndarray: the inverse of a diagonal matrix. Or for a stencil a `DeviceHierarchy`
        of the first device.
    dtype : optional
        Of b and x. Default: that of b, an array.
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
    `CsrMatrix`                   14 n + 2 nnz          10 n + nnz values, indices
    `DenseMatrix`                 14 n + 2 n^2          10 n + n^2
    `Preconditioned`              10 n, with A and M    11 n, with A and M
    ============================  ====================  =========================

    References
    ----------
    T. Chen and E. Carson, "Predict-and-recompute conjugate gradient variants", SIAM J. Sci.
    Comput. 42 (2020), A3084-A3108: algorithm PR-CG. M. R. Hestenes and E. Stiefel, "Methods of
    conjugate gradients for solving linear systems", J. Res. Nat. Bur. Stand. 49 (1952).
    """
    dtype = np.dtype(b.dtype if dtype is None else dtype)
    diagonal = M if isinstance(M, np.ndarray) else None
    used = list(devices)
    if isinstance(system, Stencil):
        used = used[: max(1, system.shape[0] // HALO)]
    on_device = isinstance(system, Dense) and not isinstance(system.array, np.ndarray)
    if on_device or M is not diagonal:
        used = used[:1]

    def run(b: Any, x: Any, asked: Solve, checked: bool = True) -> Any:
        """Solve; None where the squares of b are not safe to work with, unless it is scaled."""
        # One device is active from here on, not for each launch.
        with used[0].active() if len(used) == 1 else peers.turn(used):
            vectors = Vectors(used, system, b, x, dtype, diagonal)
            try:
                loop = _loop(vectors, system, M, asked.callback is not None)
                return loop.solve(asked, going_on, checked)
            except BaseException:
                with contextlib.suppress(Exception):
                    vectors.exchange.synchronize()
                raise

    if (outcome := run(b, x, asked, checked=False)) is not None:
        return outcome
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return systems.scaled(run, b, x, asked)
    with devices[0].active():
        rhs, start = (np.empty(systems.unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = systems.scaled(run, rhs, start, asked)
        devices[0].upload(start, x)
    return outcome


def product(device: Device, system: Any, b: np.ndarray, x: Any) -> tuple[Part, Any]:
    """The part of a solve on one device alone, and what starts q = A p by its buffers "p", "q"."""
    vectors = Vectors((device,), system, b, x, b.dtype)
    (part,) = vectors.parts
    if not isinstance(system, Stencil):
        return part, KINDS[type(system)](vectors, system, plain=True).times
    part.allocate(vectors.n * b.itemsize, "p", "q")
    _, launch = plan_cg.stencil(*vectors.grids, device.target, dtype=b.dtype.name)
    part.allocate(16 * launch.grid, "partial")
    part.numbers["first_block"] = 0
    return part, partial(part.start, part.bind(launch))


def _loop(vectors: Vectors, system: Any, M: Any, every: bool) -> Loop:
    """The iteration that suits system and preconditioner, with its buffers."""
    diagonal = isinstance(M, np.ndarray)
    if not isinstance(system, Stencil):
        return KINDS[type(system)](vectors, system, diagonal)
    if M is not None and not diagonal:
        return Preconditioned(vectors, system, M)
    resident = None if diagonal or every else persistent(vectors, system)
    return resident or Sweeps(vectors, system, diagonal, every)


# -- Grids ----------------------------------------------------------------------------------------


class _OnGrid(Loop):
    """Stencils; rows over one or several parts."""

    def __init__(self, vectors: Vectors, stencil: Stencil) -> None:
        super().__init__(vectors)
        self._slabs, self._dtype = vectors.slabs, vectors.dtype
        self._plane = math.prod(stencil.shape[1:])
        self._row_bytes = self._plane * self._dtype.itemsize
        self._each = list(zip(self.parts, self._slabs, vectors.grids, strict=True))

    def _bind_residual(
        self,
        places: Sequence[dict[str, int]],
        rows: Sequence[BufferCopies] = (),
        scaled: bool = False,
        **names: str,
    ) -> Sequence[Launch]:
        """``places``: where r and p of each part begin. ``rows``: what is copied of them. Returns
        the launches of products."""
        how, plans = {"dtype": self._dtype.name, "scaled": scaled}, []
        for (part, _, grid), place in zip(self._each, places, strict=True):
            plans.append(plan_cg.stencil(grid, part.device.target, **how, **place))
            part.allocate(16 * plans[-1][0].grid, "residual sums")
        residuals, products = zip(*plans, strict=True)
        known = {"partial": "residual sums"} | ({} if scaled else {"inverse": "x"}) | names
        own = around([(slab.begin, slab.end) for slab in self._slabs], X_HALO)
        x_rows = BufferCopies(halo_copies(own, self._row_bytes), "x", "x")
        first = [()] * len(self.parts), self.exchange.bind(x_rows)
        then = self.exchange.launches(residuals, **known), self.exchange.bind(*rows)
        self.to_residual = first, then
        self.residual_sums = "residual sums", [plan.grid for plan in residuals], 2
        return products


class Sweeps(_OnGrid):
    """What a sweep reads and writes change places every time. x takes two steps in every second
    sweep, or with ``every`` one in each: then it is whole after all iterations."""

    def __init__(self, vectors: Vectors, stencil: Stencil, diagonal: bool, every: bool) -> None:
        super().__init__(vectors, stencil)
        pitch = 2 * self._plane
        pairs, settles, places = [], [], []
        for part, slab, grid in self._each:
            part.allocate(pitch * slab.held * self._dtype.itemsize, "state0", "state1")
            aligned = part.is_aligned("x", *(("inverse",) if diagonal else ()))
            how = {"dtype": self._dtype.name, "diagonal": diagonal}
            pairs.append(plan_cg.sweeps(grid, part.device.target, aligned=aligned, **how))
            settles.append(plan_cg.settle(grid, pairs[-1][0]))
            start = slab.above * pitch
            places.append({"r_start": start + self._plane, "p_start": start, "pitch": pitch})
        blocks = [pair[0].grid for pair in pairs]
        gather = self.exchange.share_sums(blocks, 8 if diagonal else 4, "partial0", "partial1")
        rows = halo_copies(self._slabs, 2 * self._row_bytes)
        self._sweeps, self._settle, self._moves = {}, [], []
        for turn in (0, 1):
            now, new = 1 - turn, turn
            names = {"now": f"state{now}", "next": f"state{new}", "before": f"record{now}"}
            names |= {"after": f"record{new}", "partial_before": f"partial{now}"}
            names |= {"partial": f"partial{new}"}
            for first in (True, False):
                add = 0 if first or not (every or turn == 0) else 1 if every else 2
                plans = [pair[turn] for pair in pairs]
                self._sweeps[turn, first] = self.exchange.launches(plans, add=add, **names)
            ends = {"even": "state0", "odd": "state1", "record": f"record{turn}"}
            self._settle.append(self.exchange.launches(settles, **ends))
            written = (rows, f"state{turn}"), (gather, f"partial{turn}")
            self._moves.append(self.exchange.bind(*(BufferCopies(c, n, n) for c, n in written)))
        first = [BufferCopies(rows, "state1", "state1")]
        self._bind_residual(places, first, diagonal, r="state1", p="state1")

    def steps(self, iteration: int) -> Sequence[Step]:
        turn = (iteration + 1) % 2
        return [(self._sweeps[turn, iteration == -1], self._moves[turn])]

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
        held = [(slab.first, slab.end + slab.below) for slab in self._slabs]
        rows = range_copies(own, held, row)
        starts = [slab.begin * self._plane for slab in self._slabs]
        places = [{"r_start": start, "p_start": start} for start in starts]
        self._bind_residual(places, [BufferCopies(rows, n, n) for n in ("r", "p1")], p="p1")
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
        scalars = {"iterations": to - self.done, "stamp": self._stamp}
        scalars |= {"before": f"record{self.turn}", "after": f"record{1 - self.turn}"}
        each = zip(self.parts, self._plans, self._kernels, strict=True)
        for part, (plan, others), kernel in each:
            with part.active():
                values = part.values(plan, **scalars, **others)
                kernel.launch(plan.grid, values, part.stream)
        if len(self.parts) > 1:  # the next launch takes what this one leaves on all devices
            self.exchange.synchronize()
        self._stamp += to - self.done
        self.done = to
        self.turn = 1 - self.turn


class Preconditioned(_OnGrid):
    """A stencil on one part, and a hierarchy of multigrid: its symmetric cycle is z = M r."""

    begins, records = 0, 1

    def __init__(self, vectors: Vectors, stencil: Stencil, M: Any) -> None:
        super().__init__(vectors, stencil)
        (part,), n = self.parts, vectors.n
        part.allocate(n * self._dtype.itemsize, "p", "q", "r", "z")
        how = {"dtype": self._dtype.name, "aligned": part.is_aligned("x")}
        dots, direct, correct = plan_cg.dots(n, part.device.target, **how)
        (product,) = self._bind_residual([{}], inverse="r")
        for name, launch in (("dots", dots), ("partial", product)):
            part.allocate(16 * launch.grid, name)
        part.numbers |= {"start": 0, "halo": 0, "first_block": 0}
        there = {"before": "record0", "after": "record1", "blocks_before": dots.grid}
        back = {"before": "record1", "after": "record0", "blocks_before": product.grid}
        self._launches = (
            part.bind(dots, a="z", b="r", partial="dots"),  # r.z
            part.bind(direct, partial_before="dots", **there),  # p = z + beta p
            part.bind(product),  # A p, p.Ap
            part.bind(correct, partial_before="partial", **back),  # x += alpha p, r -= alpha A p
        )
        self._apply = M.bound([part.buffers["r"]], [part.buffers["z"]], symmetric=True)

    def steps(self, iteration: int) -> Sequence[Step]:
        self._apply()  # launches of its own
        return [([self._launches], ())]


def persistent(vectors: Vectors, stencil: Stencil) -> Persistent | None:
    """The iteration in cooperative launches; None if grid, devices or software do not allow it."""
    if len(vectors.parts) > 1 and vectors.exchange.meeting is None:
        return None
    plans, kernels = [], []
    for part, slab, grid in zip(vectors.parts, vectors.slabs, vectors.grids, strict=True):
        device, target = part.device, part.device.target
        sharers = sum(other.device is device for other in vectors.parts)
        plan = plan_cg.cooperative(
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
