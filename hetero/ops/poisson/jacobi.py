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

from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Exchange, Part
from hetero.ops.linear_systems.partition import Slab, halo_copies, slabs
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    LIMIT,
    ROUNDING,
    Outcome,
    Solve,
    Stencil,
    judged,
)

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
        stack.enter_context(devices[0].active() if len(cuts) == 1 else meetings.turn(devices))
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
    """A solve on devices, with what `_Cpu` can do; the present u lies in each slab's "u0" or "u1"
    (``now``)."""

    def __init__(
        self, devices: Sequence[Device], cuts: Sequence[Slab], whole: plan_jacobi.GridSlab
    ) -> None:
        self.sweeps = self.now = 0
        self._nbytes, self._depth = whole.nbytes, plan_jacobi.default_depth(whole)
        each = zip(devices, cuts, strict=True)
        self._slabs = [_Slab(device, slab, whole, len(cuts) == 1) for device, slab in each]
        self._rows = halo_copies(cuts, whole.row_bytes)
        self.exchange = Exchange(self._slabs)

    def load(self, f: Any, u: Any) -> None:
        """Bring what the caller gives, zero for None; returns when it is there."""
        self.exchange.at_once(lambda number: self._slabs[number].load(f, u), 2 * self._nbytes)
        copies = [BufferCopies(self._rows, name, name) for name in ("u0", "u1")]
        self._halos = list(map(self.exchange.bind, copies))

    def store(self, u: Any) -> None:
        """Write the present u to an array or a buffer of the caller."""
        self.exchange.check()
        now = f"u{self.now}"
        self.exchange.at_once(lambda number: self._slabs[number].store(now, u), self._nbytes)

    def advance(self, sweeps: int) -> None:
        depths = plan_jacobi.passes(sweeps, self._depth)
        while batch := tuple(islice(depths, _QUEUED)):
            with self.exchange.queued():
                for depth in batch:
                    launches = [[each.sweep(depth, self.now)] for each in self._slabs]
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
        for each in self._slabs:
            with each.active():
                each.start(each.residual(which))
        (square,) = self.exchange.total("partial", [each.sums for each in self._slabs])
        return math.sqrt(square)


class _Slab(Part):
    """One device's rows and those of its neighbours that a pass needs: f, u, and the next u.

    ``grid`` tells how they lie in the buffers "f", "u0", "u1"; "partial" has ``sums`` sums.
    """

    def __init__(
        self, device: Device, slab: Slab, whole: plan_jacobi.GridSlab, alone: bool
    ) -> None:
        super().__init__(device, alone)
        self.grid = whole.slab(slab.first, slab.held)
        self.sums = slab.own * plan_jacobi.residual_sums(self.grid, device.target)
        self._slab, self._own = slab, (slab.above, slab.above + slab.own)
        self._bound: dict[Any, Bound] = {}

    def load(self, f: Any, u: Any) -> None:
        """Make the buffers and bring the rows of f and u: of arrays, or of the caller's buffers."""
        grid, device = self.grid, self.device
        with device.active():
            for name, values in (("f", f), ("u0", u), ("u1", None)):
                device.fill(self.allocate(grid.nbytes, name), grid.nbytes)
                if isinstance(values, np.ndarray):
                    rows = values[self._slab.first : self._slab.first + grid.held]
                    values = self.upload(np.ascontiguousarray(rows, grid.dtype), "rows")
                if values is not None:
                    self._copy_rows(values, self.buffers[name], grid.columns, grid.pitch)
                if self.stream is not None:  # the default queue did a part of it
                    device.synchronize()
            self.allocate(8 * self.sums, "partial")

    def store(self, name: str, u: Any) -> None:
        """Write the own rows to the caller's array, or all to the caller's buffer."""
        grid, slab = self.grid, self._slab
        is_array = isinstance(u, np.ndarray)
        with self.device.active():
            target = self.buffers["rows"] if is_array else u
            self._copy_rows(self.buffers[name], target, grid.pitch, grid.columns)
            if is_array:
                row_bytes = grid.columns * u.itemsize
                self.download("rows", u[slab.begin : slab.end], slab.above * row_bytes)

    def _copy_rows(self, source: Any, target: Any, *pitches: int) -> None:
        launch = plan_jacobi.change_pitch(self.grid, *pitches, self.device.target)
        self.start(self.bind(launch, source=source, target=target))

    def sweep(self, depth: int, now: int) -> Bound:
        """A pass of ``depth`` sweeps over the present u, to be started."""
        if (depth, now) not in self._bound:
            launch = plan_jacobi.blocked(self.grid, self._own, depth, self.device.target)
            self._bound[depth, now] = self.bind(launch, u=f"u{now}", u_new=f"u{1 - now}")
        return self._bound[depth, now]

    def residual(self, which: int) -> Bound:
        """The sums of (f - A u)^2, in the order of the rows, to be started."""
        if which not in self._bound:
            launch = plan_jacobi.residual(self.grid, self._own, self.device.target)
            self._bound[which] = self.bind(launch, u=f"u{which}")
        return self._bound[which]
