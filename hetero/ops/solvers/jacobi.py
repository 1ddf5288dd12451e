"""Jacobi's method for -div grad u = f: on the CPU, and on devices with a slab of rows each.

On a device a pass over the memory makes several sweeps, after which several devices exchange as
many rows. A point's operations do not depend on that, so neither do the results, to the last bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.solvers.exchange import BufferCopies, Exchange, Part, Slab, halo_copies, slabs
from hetero.ops.solvers.systems import CONVERGED, LIMIT, ROUNDING, Outcome, Solve, Stencil, judged

_FEWEST, _MOST = 64, 8192  # sweeps between two looks at the residual
_QUEUED = 1024  # passes that are queued before the host waits, and an interrupt gets through


def solve(devices: Sequence[Device], asked: Solve, f: Any, u: Any, dtype: Any = None) -> Outcome:
    """Sweep until the residual is small, or ``asked.exactly`` as often as the limit says.

    ``devices`` is empty for the CPU. Several are of one kind, and one may come several times; grids
    with too few rows use fewer. ``f`` and ``u``, which is the start and gets the result, are arrays
    of the stencil's shape, or for one device its buffers of ``dtype``: float32 or float64.
    """
    if not devices:
        run = _Cpu(asked.system, f, u)
        outcome = _iterate(run, asked)
        u[...] = run.u.reshape(u.shape)
        return outcome
    whole = plan_jacobi.GridSlab.of(*asked.system, np.dtype(dtype or f.dtype).name)
    cuts = slabs(whole.held, len(devices), plan_jacobi.default_depth(whole))
    devices = devices[: len(cuts)]
    start = None if asked.from_zero and len(devices) > 1 else u
    with contextlib.ExitStack() as stack:
        # One device is active for all that follows, not for each launch.
        stack.enter_context(devices[0].active() if len(cuts) == 1 else peers.turn(devices))
        on = _Devices(devices, cuts, whole)
        stack.callback(on.exchange.synchronize)  # before memory is free, whatever happens
        on.load(f, start)
        outcome = _iterate(on, asked)
        on.store(u)
    return outcome


def _iterate(run: _Cpu | _Devices, asked: Solve) -> Outcome:
    """Sweep until norm(f - A u) <= rtol norm(f), or to the limit.

    The residual is computed only now and then. Its norm falls ever more slowly, towards a factor of
    cos(pi / (n + 1)) a sweep: the sweeps that are left, reckoned with the last factor seen, are
    rather too few, and the next look comes after as many. Equal runs end after equally many sweeps.
    Without rounding the norm would never rise: where it did not fall twice in a row, rounding keeps
    it up.
    """
    norm, limit = run.right_side(), asked.maxiter  # the host would take longer to see f's range
    if norm == 0.0 and not asked.exactly:
        run.zero()
        return Outcome(CONVERGED, 0, 0.0, 0.0)
    target, more = (-1.0, limit) if asked.exactly else (asked.rtol * norm, 0)
    before, residual, stalled = 0, math.inf, 0
    while True:
        run.advance(more)
        last, residual = residual, run.residual()
        done, stalled = run.sweeps, stalled + 1 if residual >= last else 0
        if not target < residual < math.inf or done >= limit or stalled == 2:
            why = LIMIT if done >= limit else ROUNDING
            return judged(residual, target, why, done, norm)
        more = _FEWEST
        if residual < last < math.inf:
            per_e = (done - before) / math.log(last / residual)  # sweeps for an e-th part
            left = per_e * math.log(residual / target) if target else math.inf
            more = int(min(max(left, _FEWEST), _MOST))
        more, before = min(more, limit - done), done


class _Cpu:
    """A solve on the CPU: the present u, and how many sweeps were made."""

    def __init__(self, stencil: Stencil, f: np.ndarray, u: np.ndarray) -> None:
        shape, self._weights = stencil.box
        diagonal = 2.0 * sum(self._weights)
        self._factors = tuple(f.dtype.type(w / diagonal) for w in (*self._weights, 1.0))
        self._f = as_loops_take(np.ascontiguousarray(f)).reshape(shape)
        self.u = np.array(u, f.dtype, order="C").reshape(shape)
        self._u_new = np.empty_like(self.u)
        self._loops = load("hetero.kernels.cpu.jacobi")
        self._team = load("hetero.host.threads").team_for(f.size)
        self.sweeps = 0

    def advance(self, sweeps: int) -> None:
        """Make sweeps."""
        self.sweeps += sweeps
        for _ in range(sweeps):
            self._loops.sweep(self._team, self.u, self._f, self._u_new, self._factors)
            self.u, self._u_new = self._u_new, self.u

    def residual(self) -> float:
        """Norm of f - A u, computed in double."""
        return self._norm(self._weights)

    def right_side(self) -> float:
        """Norm of f; called before the first sweep."""
        return self._norm((0.0, 0.0, 0.0))  # with which any finite u will do

    def zero(self) -> None:
        """Make u zero."""
        self.u[...] = 0.0

    def _norm(self, weights: tuple[float, ...]) -> float:
        sums = np.empty(len(self.u))
        self._loops.residual_rows(self._team, self.u, self._f, weights, sums)
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(sums.sum())


class _Devices:
    """A solve on devices, with what `_Cpu` can do: each part has a slab's rows in "f", "u0", "u1".

    The present u is that of number ``now``.
    """

    def __init__(
        self, devices: Sequence[Device], cuts: Sequence[Slab], whole: plan_jacobi.GridSlab
    ) -> None:
        self.sweeps = self.now = 0
        self._nbytes, self._depth = whole.nbytes, plan_jacobi.default_depth(whole)
        parts = [Part(device, alone=len(cuts) == 1) for device in devices]
        grids = [whole.slab(slab.first, slab.held) for slab in cuts]
        self._each = list(zip(parts, grids, cuts, strict=True))
        self._sums = [
            slab.own * plan_jacobi.residual_sums(grid, part.device.target)
            for part, grid, slab in self._each
        ]
        self._rows = halo_copies(cuts, whole.row_bytes)
        self._bound: dict[tuple[int, int], list[Any]] = {}
        self.exchange = Exchange(parts)

    def load(self, f: Any, u: Any) -> None:
        """Bring what the caller gives, zero for None; returns when it is there."""

        def load(number: int) -> None:
            part, grid, slab = self._each[number]
            device = part.device
            with device.active():
                for name, values in (("f", f), ("u0", u), ("u1", None)):
                    device.fill(part.allocate(grid.nbytes, name), grid.nbytes)
                    if isinstance(values, np.ndarray):
                        rows = values[slab.first : slab.first + grid.held]
                        values = part.upload(np.ascontiguousarray(rows, grid.dtype), "rows")
                    if values is not None:
                        self._copy_rows(number, values, name, grid.columns, grid.pitch)
                    if part.stream is not None:  # the default queue did a part of it
                        device.synchronize()
                part.allocate(8 * self._sums[number], "partial")

        self.exchange.at_once(load, 2 * self._nbytes)
        copies = [BufferCopies(self._rows, name, name) for name in ("u0", "u1")]
        self._halos = list(map(self.exchange.bind, copies))

    def store(self, u: Any) -> None:
        """Write the present u to an array, or a buffer, of the caller."""

        def store(number: int) -> None:
            part, grid, slab = self._each[number]
            is_array = isinstance(u, np.ndarray)
            with part.device.active():
                to = "rows" if is_array else u
                self._copy_rows(number, f"u{self.now}", to, grid.pitch, grid.columns)
                if is_array:
                    before = slab.above * grid.columns * u.itemsize
                    part.download("rows", u[slab.begin : slab.end], before)

        self.exchange.check()
        self.exchange.at_once(store, self._nbytes)

    def _copy_rows(self, number: int, source: Any, target: Any, *pitches: int) -> None:
        part, grid, _ = self._each[number]
        launch = plan_jacobi.change_pitch(grid, *pitches, part.device.target)
        part.start(part.bind(launch, source=source, target=target))

    def advance(self, sweeps: int) -> None:
        depths = plan_jacobi.passes(sweeps, self._depth)
        while batch := tuple(islice(depths, _QUEUED)):
            for depth in batch:
                launches = self._launches(depth, self.now, u_new=f"u{1 - self.now}")
                self.now = 1 - self.now
                self.exchange.run(launches, self._halos[self.now])
            self.sweeps += sum(batch)
            if len(batch) == _QUEUED:
                self.exchange.synchronize()

    def residual(self) -> float:
        return self._norm(self.now)

    def right_side(self) -> float:
        return self._norm(1 - self.now)  # of zero, which this buffer holds before any sweep

    def zero(self) -> None:
        self.now = 1 - self.now  # before any sweep

    def _norm(self, which: int) -> float:
        self.exchange.check()
        self.exchange.run(self._launches(0, which))
        (square,) = self.exchange.total("partial", self._sums)
        return math.sqrt(square)

    def _launches(self, depth: int, which: int, **names: str) -> list[Any]:
        """Of each part a pass of ``depth`` sweeps over one of the u; for 0 sweeps the sums of
        (f - A u)^2, in the order of the rows."""
        if (depth, which) not in self._bound:
            plans = []
            for part, grid, slab in self._each:
                own, target = (slab.above, slab.above + slab.own), part.device.target
                plan = plan_jacobi.blocked(grid, own, depth, target) if depth else None
                plans.append(plan or plan_jacobi.residual(grid, own, target))
            self._bound[depth, which] = self.exchange.launches(plans, u=f"u{which}", **names)
        return self._bound[depth, which]


def example(dtype: np.dtype) -> None:
    """Call the compiled loops."""
    f = np.ones((40, 40), dtype)
    solve((), Solve(Stencil(f.shape, (1.0, 1.0)), 1e-3, 0.0, 20), f, np.zeros_like(f))
