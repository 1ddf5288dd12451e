"""Conjugate gradients on devices: vectors and scalars stay there until the end.

In this file, from the outside in: `solve`; `Loop`, the method on the caller's vectors, in parts;
and `OnMatrix`, the launches of its steps with a matrix: a product (`rows`) and a launch for the
vectors. The launches on grids are in `cg_grids`, what several devices copy from each other is in
`exchange`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.imports import load
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
from hetero.ops.solvers.rows import rows_of
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil, unknowns

RECORD = 8  # doubles of the scalars; kernels/cg/cg_scalars.cu
_STATUS, _COUNT, _TARGET = 0, 1, 4  # of them
_ENDED = (systems.LIMIT, systems.CONVERGED, systems.INDEFINITE, systems.NOT_FINITE)  # by status
_LONGEST_BATCH = 1024


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

    def run(b: Any, x: Any, asked: Solve) -> Any:
        """Solve; None where the squares of b are not safe to work with, which scaled ones are."""
        # One device is active from here on, not for each launch.
        with used[0].active() if len(used) == 1 else peers.turn(used):
            call = Call(used, system, b, x, dtype, M, asked.callback is not None)
            if not isinstance(system, Stencil) or isinstance(M, np.ndarray):
                loop = OnMatrix(call)
            else:
                loop = load("hetero.ops.solvers.cg_grids").loop_of(call)
            try:
                return loop.solve(asked, going_on)
            except BaseException:
                with contextlib.suppress(Exception):
                    loop.exchange.synchronize()
                raise

    if (outcome := run(b, x, asked)) is not None:
        return outcome
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return systems.scaled(run, b, x, asked)
    with devices[0].active():
        rhs, start = (np.empty(unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = systems.scaled(run, rhs, start, asked)
        devices[0].upload(start, x)
    return outcome


class Call(NamedTuple):
    """What an iteration is made for; see `solve`."""

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
    hides what is left of it, beta is 0. Else it is not (`cg_grids.Preconditioned`).

        3. q = A p,  alpha = r.z / p.q
        7. r.z' = r.z - 2 alpha z.q + alpha^2 q.Mq,  beta = r.z' / r.z
        4. x = x + alpha p   5. r = r - alpha q   6. z = M r   8. p = z + beta p

    A part's buffers "b" and "inverse", a diagonal M, have the elements of its range of ``spans``,
    and "x" those of its range of ``held``; "record0" and "record1" have the scalars. ``result`` is
    the caller's x. ``done`` is the iterate that the launches so far lead to, ``begins`` at first;
    ``turn`` tells which of the two records is the present one. ``to_residual`` are the steps that
    compute it, ``residual_sums`` what `Exchange.total` takes then, ``from_residual`` those that
    begin anew.
    """

    to_residual: Sequence[Step]
    residual_sums: tuple[str, list[int], int]
    from_residual: Sequence[Step] = ()

    first_batch = 8  # iterations to start before the record is looked at for the first time
    batch_seconds = 300e-6  # for which the device should run between two looks, which cost 15 us
    begins = -1  # the first step only leads to iterate 0
    records = 2  # that are written in turn
    turn = 0
    seconds: float | None = None  # that an iteration took last

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

    def copy_x(self, to: str, source: str) -> None:
        """Copy x on the devices, to or from a buffer of another name."""
        for part, (low, high) in zip(self.parts, self.held, strict=True):
            nbytes = (high - low) * self.dtype.itemsize
            if to not in part.buffers:
                part.allocate(nbytes, to)
            with part.active():
                part.device.copy(part.buffers[to], part.buffers[source], nbytes, 0, 0, part.stream)

    def solve(self, asked: Solve, going_on: tuple[np.ndarray, np.ndarray] | None) -> Outcome | None:
        """Iterate, and begin anew from the true residual until that meets the tolerance.

        None where the squares of b are not safe to work with. The device decides when it stops, by
        r.r, which the host looks at once for many iterations.
        """
        # 1. r = b - A x, z = M r, p = z.
        first, norm_b = map(math.sqrt, self.residual())
        if not systems.is_safe(norm_b, self.dtype.itemsize):
            self.exchange.synchronize()  # before memory is free
            return None
        self.copy_x("start", "x")
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
        if outcome.status == systems.NOT_FINITE and not np.isfinite(self.fetch()).all():
            self.copy_x("x", "start")
            outcome = outcome._replace(residual=first)
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
            batch = self.first_batch if callback is None else 1
            if callback is None and self.seconds is not None:
                wanted = math.ceil(self.batch_seconds / max(self.seconds, 1e-9) / 2)
                batch = 2 * max(1, min(wanted, _LONGEST_BATCH // 2))
            batch = min(batch, limit - at)
            at += batch
            began = time.monotonic()
            self.advance(at)
            record = self.parts[0].download(f"record{self.turn}", np.empty(RECORD))
            status, count = int(record[_STATUS]), int(record[_COUNT])
            took = time.monotonic() - began
            self.seconds = took / batch
            if took >= peers.PATIENCE / 2:
                self.exchange.check()
            if callback is not None and not status:
                callback(self.fetch())
        return _ENDED[status], count

    def residual(self) -> Sequence[float]:
        """Compute r = b - A x, from where an iteration starts; returns r.r and b.b."""
        for step in self.to_residual:
            self.exchange.run(*step)
        self.exchange.check()
        sums = self.exchange.total(*self.residual_sums)
        for step in self.from_residual:
            self.exchange.run(*step)
        return sums[:2]

    def advance(self, to: int) -> None:
        """Start the launches after which x is iterate ``to``, unless the iteration stops before."""
        each = (self.steps(iteration) for iteration in range(self.done, to))
        self.exchange.run_all(itertools.chain.from_iterable(each))
        self.done = max(self.done, to)
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
