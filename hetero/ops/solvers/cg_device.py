"""Conjugate gradients on devices: the solve, and the launches of its steps.

`OnMatrix` takes a product and a launch for the vectors per iteration; `Sweeps`, for grids, one
launch; `Persistent`, for small grids, many iterations in one cooperative launch on each device. All
are PR-CG (kernels/cg/cg_scalars.cu). `Preconditioned` is the recurrence of Hestenes and Stiefel,
for a preconditioner that is launches of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero import kernels
from hetero.arrays import describe, name_of
from hetero.devices import peers
from hetero.devices.base import Device
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg.plan import HALO, X_HALO, GridShare
from hetero.ops.solvers import systems
from hetero.ops.solvers.cg_launches import Call, Loop, Step
from hetero.ops.solvers.exchange import (
    Bound,
    Moved,
    Part,
    Range,
    halo_copies,
    range_copies,
    slabs,
    split,
)
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil, unknowns

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
        One, or several of one kind: then rows are divided among them. Matrices on a device, and
        a `DeviceHierarchy`, take the first alone.
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
    dtype = np.dtype(b.dtype if dtype is None else dtype)
    is_there = isinstance(system, (Csr, Dense)) and not isinstance(system[0], np.ndarray)
    alone = is_there or not (M is None or isinstance(M, np.ndarray))
    used = list(devices[:1] if alone else devices)

    def run(b: Any, x: Any, asked: Solve, checked: bool = True) -> Any:
        """Solve; None where the squares of b are not safe to work with, unless it is scaled."""
        # One device is active from here on, not for each launch.
        with used[0].active() if len(used) == 1 else peers.turn(used):
            call = Call(used, system, b, x, dtype, M, asked.callback is not None)
            loop = loop_of(call)
            try:
                return loop.solve(asked, going_on, checked)
            except BaseException:
                with contextlib.suppress(Exception):
                    loop.exchange.synchronize()
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


def loop_of(call: Call) -> Loop:
    """The iteration that suits system and preconditioner, with its buffers."""
    if not isinstance(call.system, Stencil) or isinstance(call.M, np.ndarray):
        return OnMatrix(call)
    if call.M is not None:
        return Preconditioned(call)
    found = None if call.every else resident(call.devices, call.system, call.dtype)
    return Sweeps(call) if found is None else Persistent(call, found)


def product(device: Device, system: Any, dtype: np.dtype) -> tuple[Part, Callable[[], object]]:
    """A part on one device, which is active, and what starts q = A p by its buffers "p", "q"."""
    part, n = Part(device, alone=True), unknowns(system)
    part.allocate(n * dtype.itemsize, "p", "q")
    part.numbers["own"] = 0
    return part, partial(part.start, *_Rows(part, system, (0, n), dtype).times("p"))


# -- Matrices --------------------------------------------------------------------------------------


class _Rows:
    """A part's rows of a matrix, in its memory.

    ``needed`` is the range of the columns that they meet, ``times(vector)`` binds q = A times a
    whole vector, and ``step`` plans q = A p with the sums of a step; None if that has no sums.
    """

    step: Launch | None = None
    _product: Launch | None = None  # of a dense matrix there are several

    def __init__(
        self, part: Part, system: Any, span: Range, dtype: np.dtype, diagonal: bool = False
    ) -> None:
        self._part, self._dtype, self._rows = part, dtype, span[1] - span[0]
        self.needed, target, name = span, part.device.target, dtype.name
        if isinstance(system, Dense):
            self.needed = 0, system.n
            self._upload_dense(system, span)
            return
        if isinstance(system, Stencil):
            plane, n = math.prod(system.shape[1:]), unknowns(system)
            (begin, end), self.needed = span, (max(span[0] - plane, 0), min(span[1] + plane, n))
            grid = GridShare.of(*system, self._rows // plane, low=begin > 0, high=end < n)
            _, self._product = plan_cg.stencil(grid, target, dtype=name, before=begin // plane)
        else:
            share = self._upload_sparse(system, span)
            plans = plan_cg.csr(self._rows, *share, target, dtype=name, diagonal=diagonal)
            self.step, self._product = plans
        part.allocate(16 * self._product.grid, "sums of a product")

    def _upload_sparse(self, system: Csr, span: Range) -> tuple[int, str]:
        """Entries, and the indices' dtype."""
        if not isinstance(system.data, np.ndarray):
            of = dict(zip(("pointers", "indices", "values"), map(describe, system), strict=True))
            self._part.buffers |= {name: operand.pointer for name, operand in of.items()}
            return of["values"].size, name_of(of["indices"].dtype)
        pointers = system.indptr[span[0] : span[1] + 1]
        where = slice(int(pointers[0]), int(pointers[-1]))
        indices, values = system.indices[where], system.data[where]
        if len(indices) and self._part.stream is not None:  # of several parts
            self.needed = int(indices.min()), int(indices.max()) + 1
        index = np.promote_types(pointers.dtype, indices.dtype)
        if pointers[0]:
            pointers = pointers - pointers[0]
        self._part.upload(np.ascontiguousarray(pointers, index), "pointers")
        self._part.upload(np.ascontiguousarray(indices, index), "indices")
        self._part.upload(np.ascontiguousarray(values, self._dtype), "values")
        return len(values), index.name

    def times(self, vector: str) -> list[Bound]:
        if self._product is None:
            return self._dense_times(vector)
        others = {"p": vector, "partial": "sums of a product", "first_block": 0}
        return [self._part.bind(self._product, **others)]

    def _upload_dense(self, system: Dense, span: Range) -> None:
        array, self._strides = system.array, system.strides
        if not isinstance(array, np.ndarray):
            self._part.buffers["A"] = array
            return
        rows = array[slice(*span)].astype(self._dtype, copy=False)
        self._strides = (system.n, 1)
        if len(rows) == system.n and rows.flags.f_contiguous and not rows.flags.c_contiguous:
            rows, self._strides = rows.T, (1, system.n)
        self._part.upload(np.ascontiguousarray(rows), "A")

    def _dense_times(self, vector: str) -> list[Bound]:
        part, item = self._part, self._dtype.itemsize
        plan = kernels.plan_matvec(
            m=self._rows,
            k=self.needed[1],
            batch=1,
            dtype=self._dtype.name,
            a_strides=(0, *self._strides),
            x_strides=(0, 1),
            y_strides=(0, 1),
            target=part.device.target,
            alignment=16 if part.is_aligned("A", vector) else item,
        )
        part.allocate(plan.workspace * item, f"scratch of {vector}")
        names = {"x": vector, "y": "q", "partial": f"scratch of {vector}"}
        return [part.bind(launch, **names) for launch in plan.launches]


class OnMatrix(Loop):
    """A sparse or dense matrix, by rows over one or several parts, alone or with a diagonal M; a
    stencil with one.

    A part has all of x and p, of which it makes its own elements, and takes those of others that
    its rows meet: a range.
    """

    begins = 0

    def __init__(self, call: Call) -> None:
        system, dtype, diagonal = call.system, call.dtype, call.M is not None
        n, item = unknowns(system), dtype.itemsize
        unit = math.prod(system.shape[1:]) if isinstance(system, Stencil) else 1
        spans = [(i * unit, j * unit) for i, j in split(n // unit, len(call.devices))]
        super().__init__(call, spans, [(0, n)] * len(spans))
        rows: list[Any] = [None] * len(spans)

        def upload(number: int) -> None:
            rows[number] = _Rows(self.parts[number], system, spans[number], dtype, diagonal)

        arrays = [part for part in system if isinstance(part, np.ndarray)]
        self.exchange.at_once(upload, sum(array.nbytes for array in arrays))
        sums, plans = 8 if diagonal else 4, []
        for part, (begin, end) in zip(self.parts, spans, strict=True):
            part.allocate(n * item, "p")
            part.allocate((end - begin) * item, "r", "q")
            part.numbers["own"] = begin
            aligned = part.is_aligned("x", "b") and begin * item % 16 == 0
            how = {"dtype": dtype.name, "aligned": aligned, "diagonal": diagonal}
            plans.append(plan_cg.vectors(end - begin, part.device.target, **how))
            part.allocate(8 * sums * plans[-1][0].grid, "residual sums")
        residuals, sums_of_p, advances = zip(*plans, strict=True)
        self.residual_sums = "residual sums", [plan.grid for plan in residuals], sums
        made = [own.step or plan for own, plan in zip(rows, sums_of_p, strict=True)]
        gather = self.exchange.share_sums([plan.grid for plan in made], sums, "partial")
        # 1. r = b - A x, p = M r.
        needed = [own.needed for own in rows]
        of_x, of_p = (self.exchange.bind(self.copies(needed, name)) for name in "xp")
        residual = self.exchange.launches(residuals, partial="residual sums")
        first = [own.times("x") + then for own, then in zip(rows, residual, strict=True)]
        nothing: list[list[Bound]] = [[] for _ in self.parts]
        self.to_residual, self.from_residual = ((nothing, of_x), (first, ())), ((nothing, of_p),)
        # 3. q = A p, and sums in "partial"; then x, r and p, with one record and the other in turn.
        before = [own.times("p") if own.step is None else [] for own in rows]
        together, self._turns = self.exchange.bind(*gather), []
        for turn in (0, 1):
            scalars = {"before": f"record{turn}", "after": f"record{1 - turn}"}
            last = self.exchange.launches(made, **scalars)
            products = [own + then for own, then in zip(before, last, strict=True)]
            step = self.exchange.launches(advances, partial_before="partial", **scalars)
            self._turns.append(((products, together), (step, of_p)))

    def steps(self, iteration: int) -> Sequence[Step]:
        return self._turns[iteration % 2]


# -- Grids -----------------------------------------------------------------------------------------


class _OnGrid(Loop):
    """Stencils; rows over one or several parts."""

    def __init__(self, call: Call) -> None:
        stencil = call.system
        self._slabs = slabs(stencil.shape[0], len(call.devices), HALO)
        plane = self._plane = math.prod(stencil.shape[1:])
        spans = [(slab.begin * plane, slab.end * plane) for slab in self._slabs]
        edge, n = X_HALO * plane, spans[-1][1]
        held = [(max(begin - edge, 0), min(end + edge, n)) for begin, end in spans]
        super().__init__(call, spans, held)
        shares = [
            GridShare.of(*stencil, slab.own, low=slab.above > 0, high=slab.below > 0)
            for slab in self._slabs
        ]
        self._each = list(zip(self.parts, self._slabs, shares, strict=True))

    def _bind_residual(
        self, places: Sequence[dict[str, int]], *rows: Moved, **names: str
    ) -> Sequence[Launch]:
        """``places``: where r and p of each part begin. ``rows``: what is copied of them. Returns
        the launches of products."""
        plans = []
        for (part, _, grid), place in zip(self._each, places, strict=True):
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
        pitch, dtype, every = 2 * self._plane, call.dtype, call.every
        plans, places = [], []
        for part, slab, grid in self._each:
            part.allocate(pitch * slab.held * dtype.itemsize, "state0", "state1")
            how = {"dtype": dtype.name, "aligned": part.is_aligned("x")}
            plans.append(plan_cg.sweeps(grid, part.device.target, **how))
            start = slab.above * pitch
            places.append({"r_start": start + self._plane, "p_start": start, "pitch": pitch})
        *sweeps, settles = zip(*plans, strict=True)
        blocks = [plan.grid for plan in sweeps[0]]
        partial0, partial1 = self.exchange.share_sums(blocks, 4, "partial0", "partial1")
        rows = halo_copies(self._slabs, pitch * dtype.itemsize)
        state0, state1 = ((name, rows) for name in ("state0", "state1"))
        moves = [self.exchange.bind(state0, partial0), self.exchange.bind(state1, partial1)]
        self._sweeps, self._settle = {}, []
        for turn in (0, 1):
            now, new = 1 - turn, turn
            names = {"now": f"state{now}", "next": f"state{new}", "before": f"record{now}"}
            names |= {"after": f"record{new}", "partial_before": f"partial{now}"}
            names |= {"partial": f"partial{new}"}
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
    first_batch = 64
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
        ends = [(slab.first, slab.end + slab.below) for slab in self._slabs]
        needed = [(first * self._plane, last * self._plane) for first, last in ends]
        rows = range_copies(self.spans, needed, item)
        self._bind_residual(places, ("r", rows), ("p", rows))
        # Where x of row 0 would be, and of several parts what they find each other by.
        self._others: list[dict[str, Any]] = [{} for _ in self.parts]
        if self.exchange.meeting is not None:
            names = "edges", "sums", "r", "p"
            addresses = [[part.buffers[name] for name in names] for part in self.parts]
            patience = round(1e9 * self.exchange.meeting.patience)
            for rank, (part, (low, _)) in enumerate(zip(self.parts, self.held, strict=True)):
                self._others[rank] = {
                    "x": part.buffers["x"] - low * item,
                    "peers": part.upload(np.array(addresses, np.int64)),
                    "rank": rank,
                    "patience": patience,
                }

    def advance(self, to: int) -> None:
        if to <= self.done:
            return
        scalars = {"iterations": to - self.done, "stamp": self._stamp}
        scalars |= {"before": f"record{self.turn}", "after": f"record{1 - self.turn}"}
        each = zip(self.parts, self._resident, self._others, strict=True)
        for part, (plan, kernel), others in each:
            with part.active():
                kernel.launch(plan.grid, part.values(plan, **scalars, **others), part.stream)
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
    found, parts = [], slabs(stencil.shape[0], len(devices), HALO)
    used = devices[: len(parts)]
    if len(used) > 1 and not peers.meet(used):
        return None
    for device, slab in zip(used, parts, strict=True):
        sharers = sum(other is device for other in used)
        multiprocessors = max(1, device.target.multiprocessors // sharers)
        plan = plan_cg.cooperative(
            GridShare.of(*stencil, slab.own, low=slab.above > 0, high=slab.below > 0),
            device.target._replace(multiprocessors=multiprocessors),
            dtype=dtype.name,
            shared_limit=device.shared_limit,
            above=slab.begin,
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
            part.bind(dots, a="z", b="r", partial="dots"),  # r.z
            part.bind(plans["cg_direct"], partial_before="dots", **there),  # p = z + beta p
            part.bind(product),  # A p, p.Ap
            # x += alpha p, r -= alpha A p
            part.bind(plans["cg_correct"], partial_before="partial", **back),
        )
        self._apply = call.M.bound([part.buffers["r"]], [part.buffers["z"]], symmetric=True)

    def steps(self, iteration: int) -> Sequence[Step]:
        self._apply()  # launches of its own
        return [([self._launches], ())]
