"""Conjugate gradients on devices: the method on the caller's vectors, in parts, and its launches.

Vectors and scalars stay on the devices until the end. `Loop` is the method, `OnMatrix` its steps
with a matrix, PR-CG (kernels/cg/cg_scalars.cu): a product and a launch for the vectors per
iteration. `Rows` are a device's rows of a dense or sparse matrix, or of a stencil, and their
product with a vector. The steps on grids are in `cg_device`, what several devices copy from each
other is in `exchange`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero import kernels
from hetero.arrays import describe, name_of
from hetero.devices import peers
from hetero.devices.base import Device
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.ops.solvers import systems
from hetero.ops.solvers.cg_loop import restarted
from hetero.ops.solvers.exchange import (
    Bound,
    Exchange,
    Moved,
    Part,
    Range,
    Step,
    range_copies,
    split,
)
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil, unknowns

RECORD = 8  # doubles of the scalars; kernels/cg/cg_scalars.cu
_STATUS, _COUNT, _TARGET = 0, 1, 4  # of them
_LONGEST_BATCH = 1024


class Call(NamedTuple):
    """What an iteration is made for; see `cg_device.solve`."""

    devices: Sequence[Device]
    system: Stencil | Csr | Dense
    b: Any
    x: Any
    dtype: np.dtype
    M: Any
    every: bool  # whether x is looked at after each iteration


class Loop:
    """Iterations, of which each device computes its own rows.

    The numbers are the steps of Saad's algorithm 9.1 (see `cg_loop`). With M = 1 or a diagonal
    matrix r.z' is predicted, so that all sums of an iteration are made at once; where rounding
    hides what is left of it, beta is 0. Else it is not (`cg_device.Preconditioned`).

        3. q = A p,  alpha = r.z / p.q
        7. r.z' = r.z - 2 alpha z.q + alpha^2 q.Mq,  beta = r.z' / r.z
        4. x = x + alpha p   5. r = r - alpha q   6. z = M r   8. p = z + beta p

    A part's buffers "b" and "inverse", a diagonal M, have the elements of its range of ``spans``,
    and "x" those of its range of ``held``; "record0" and "record1" have the scalars. ``result`` is
    the caller's x. ``done`` is the iterate that the launches so far lead to, ``begins`` at first;
    ``turn`` tells which of the two records is the present one. ``to_residual`` are the steps that
    compute b - A x and begin anew from it, ``residual_sums`` what `Exchange.total` takes then.
    """

    to_residual: Sequence[Step]
    residual_sums: tuple[str, list[int], int]

    batch = 8  # iterations to start before the record is looked at, at first
    batch_seconds = 300e-6  # for which the device should run between two looks, which cost 15 us
    begins = -1  # the first step only leads to iterate 0
    records = 2  # that are written in turn
    turn = 0

    def __init__(self, call: Call, spans: Sequence[Range], held: Sequence[Range]) -> None:
        self.spans, self.held, self.dtype, self.result = spans, held, call.dtype, call.x
        alone = len(spans) == 1
        self.parts = [Part(device, alone) for device, _ in zip(call.devices, spans, strict=False)]
        self.exchange = Exchange(self.parts)
        if not alone:  # queues of several devices take longer to fill again
            self.batch_seconds = max(self.batch_seconds, 2e-3)
        given = ("b", call.b, spans), ("x", call.x, held), ("inverse", call.M, spans)

        def load(number: int) -> None:
            part = self.parts[number]
            part.allocate(8 * RECORD, "record0", "record1")
            for name, vector, ranges in given:
                if isinstance(vector, np.ndarray):
                    own = vector[slice(*ranges[number])]
                    part.upload(np.ascontiguousarray(own, call.dtype), name)
                elif name != "inverse":
                    part.buffers[name] = vector

        self.exchange.at_once(load, 2 * spans[-1][1] * call.dtype.itemsize)

    def copies(self, needed: Sequence[Range], name: str) -> Moved:
        """Of ranges of a vector that lies as x does: what parts take of others' own elements."""
        places = [low for low, _ in self.held]
        return name, range_copies(self.spans, needed, self.dtype.itemsize, places)

    def fetch(self) -> np.ndarray:
        """The present x, on the host: in the caller's where that is there, else in a new array."""
        n, result = self.spans[-1][1], self.result
        whole = result if isinstance(result, np.ndarray) else np.empty(n, self.dtype)

        def fetch(number: int) -> None:
            (begin, end), (low, _) = self.spans[number], self.held[number]
            own = whole[begin:end]
            self.parts[number].download("x", own, (begin - low) * own.itemsize)

        self.exchange.at_once(fetch, whole.nbytes)
        return whole

    def solve(self, asked: Solve, going_on: tuple[np.ndarray, np.ndarray] | None) -> Outcome:
        """Iterate, and begin anew from the true residual until that meets the tolerance.

        The device decides when it stops, by r.r, which the host looks at once for many iterations.
        """
        # 1. r = b - A x, z = M r, p = z.
        first, norm_b = map(math.sqrt, self.residual())
        if not systems.is_safe(norm_b, self.dtype.itemsize):
            self.exchange.synchronize()  # before memory is free
            return Outcome(systems.OUT_OF_RANGE, 0, first)
        for vector, name in zip(going_on or (), ("r", "p"), strict=False):
            self.parts[0].upload(vector, name)
        known = [first]

        def residual(bound: float) -> float:
            return known.pop() if known else math.sqrt(self.residual()[0])

        def steps(limit: int, lowest: float) -> tuple[str, int]:
            record = np.zeros(RECORD)
            record[[_COUNT, _TARGET]] = self.begins, lowest * lowest
            for part, name in itertools.product(self.parts, ("record0", "record1")):
                part.upload(record, name)
            self.done = self.begins
            # 2. for j = 0, 1, ..., until convergence
            ended = self._until_stopped(limit, asked.callback)
            self.finish()
            return ended

        again = going_on is not None  # the true residual may differ from the recurrence's
        outcome = restarted(residual, steps, asked, norm_b, self.dtype, once_more=again)
        if isinstance(self.result, np.ndarray):
            self.fetch()
        return outcome._replace(right_side=norm_b)

    def _until_stopped(self, limit: int, callback: Any) -> tuple[str, int]:
        """Iterate until the device says stop, or the limit; (status, iterations).

        The host looks after each iteration for a callback; else by the time that they take, so
        that looking takes no more than a twentieth of it, at an even number: x is whole then.
        """
        at = status = count = 0
        while at < limit and not status:
            batch = min(self.batch if callback is None else 1, limit - at)
            at += batch
            began = time.monotonic()
            self.advance(at)
            record = self.parts[0].download(f"record{self.turn}", np.empty(RECORD))
            status, count = int(record[_STATUS]), int(record[_COUNT])
            took = time.monotonic() - began
            wanted = math.ceil(self.batch_seconds * batch / max(took, 1e-9) / 2)
            self.batch = 2 * max(1, min(wanted, _LONGEST_BATCH // 2))
            if took >= peers.PATIENCE / 2:
                self.exchange.check()
            if callback is not None and not status:
                callback(self.fetch())
        return systems.ENDED[status], count

    def residual(self) -> Sequence[float]:
        """Compute r = b - A x, from where an iteration starts; returns r.r and b.b."""
        for step in self.to_residual:
            self.exchange.run(*step)
        self.exchange.check()
        return self.exchange.total(*self.residual_sums)[:2]

    def advance(self, to: int) -> None:
        """Start the launches after which x is iterate ``to``, unless the iteration stops before."""
        each = (self.steps(iteration) for iteration in range(self.done, to))
        self.exchange.run_all(itertools.chain.from_iterable(each))
        self.done = to
        self.turn = self.done % self.records

    steps: Callable[[int], Sequence[Step]]  # what leads from an iterate to the next

    def finish(self) -> None:
        """Make x the iterate of the record."""


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
            rows[number] = rows_of(self.parts[number], system, spans[number], dtype, diagonal)

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
        self.to_residual = ([()] * len(self.parts), of_x), (first, of_p)
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


# -- The rows of a system -------------------------------------------------------------------------


class Rows(NamedTuple):
    """A part's rows of a matrix, in its memory."""

    needed: Range  # of the columns that they meet
    times: Callable[[str], list[Bound]]  # binds q = A times the whole vector of that name
    step: Launch | None = None  # q = A p with the sums of a step, where one launch makes both


def rows_of(part: Part, system: Any, span: Range, dtype: np.dtype, diagonal: bool = False) -> Rows:
    """The rows ``span`` of a system; those on the host are uploaded."""
    if isinstance(system, Dense):
        return _dense_rows(part, system, span, dtype)
    (begin, end), target, step = span, part.device.target, None
    if isinstance(system, Stencil):
        plane, n = math.prod(system.shape[1:]), unknowns(system)
        grid = plan_cg.GridShare.of(*system.box, begin // plane, end // plane)
        _, product = plan_cg.stencil(grid, target, dtype=dtype.name, before=begin // plane)
        needed = max(begin - plane, 0), min(end + plane, n)
    else:
        needed, *share = _upload_sparse(part, system, span, dtype)
        how = {"dtype": dtype.name, "diagonal": diagonal}
        step, product = plan_cg.csr(end - begin, *share, target, **how)
    part.allocate(16 * product.grid, "sums of a product")
    names = {"partial": "sums of a product", "first_block": 0}
    return Rows(needed, lambda vector: [part.bind(product, p=vector, **names)], step)


def _upload_sparse(part: Part, system: Csr, span: Range, dtype: np.dtype) -> tuple[Range, int, str]:
    """The columns that the rows meet, their entries, and the indices' dtype."""
    if not isinstance(system.data, np.ndarray):
        of = dict(zip(("pointers", "indices", "values"), map(describe, system), strict=True))
        part.buffers |= {name: operand.pointer for name, operand in of.items()}
        return span, of["values"].size, name_of(of["indices"].dtype)
    pointers = system.indptr[span[0] : span[1] + 1]
    where = slice(int(pointers[0]), int(pointers[-1]))
    indices, values = system.indices[where], system.data[where]
    if len(indices) and part.stream is not None:  # of several parts
        span = int(indices.min()), int(indices.max()) + 1
    index = np.promote_types(pointers.dtype, indices.dtype)
    if pointers[0]:
        pointers = pointers - pointers[0]
    part.upload(np.ascontiguousarray(pointers, index), "pointers")
    part.upload(np.ascontiguousarray(indices, index), "indices")
    part.upload(np.ascontiguousarray(values, dtype), "values")
    return span, len(values), index.name


def _dense_rows(part: Part, system: Dense, span: Range, dtype: np.dtype) -> Rows:
    array, strides, n = system.array, system.strides, system.n
    if isinstance(array, np.ndarray):
        rows, strides = array[slice(*span)].astype(dtype, copy=False), (n, 1)
        if len(rows) == n and rows.flags.f_contiguous and not rows.flags.c_contiguous:
            rows, strides = rows.T, (1, n)
        part.upload(np.ascontiguousarray(rows), "A")
    else:
        part.buffers["A"] = array

    def times(vector: str) -> list[Bound]:
        scratch = f"scratch of {vector}"
        plan = kernels.plan_matvec(
            m=span[1] - span[0],
            k=n,
            batch=1,
            dtype=dtype.name,
            a_strides=(0, *strides),
            x_strides=(0, 1),
            y_strides=(0, 1),
            target=part.device.target,
            alignment=16 if part.is_aligned("A", vector) else dtype.itemsize,
        )
        part.allocate(plan.workspace * dtype.itemsize, scratch)
        names = {"x": vector, "y": "q", "partial": scratch}
        return [part.bind(launch, **names) for launch in plan.launches]

    return Rows((0, n), times)
