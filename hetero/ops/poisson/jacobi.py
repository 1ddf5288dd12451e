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
from hetero.kernels.common.launch import VECTOR_BYTES
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Exchange, Part
from hetero.ops.linear_systems.partition import Slab, halo_copies, slabs
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    LIMIT,
    NOT_FINITE,
    ROUNDING,
    Outcome,
    Stencil,
)

_FEWEST, _MOST = 64, 8192  # sweeps between two looks at the residual
_QUEUED = 1024  # passes that are queued before the host waits, and an interrupt gets through


def solve(
    devices: Sequence[Device],
    stencil: Stencil,
    f: Any,
    u: Any,
    *,
    dtype: Any = None,
    from_zero: bool = False,
    **limits: Any,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    devices : sequence of Device
        None: the CPU. Several are of one kind, and one may come several times; grids with too few
        rows use fewer.
    stencil : Stencil
        The grid; u is zero outside of it.
    f, u : ndarray of ``stencil.shape``, or device buffers
        C-contiguous, float32 or float64. ``u`` is the start and gets the result. Device buffers,
        with one device only, must lie on it, in the order of its default stream.
    dtype : dtype, optional
        Of device buffers.
    from_zero : bool
        Start from zero, whatever ``u`` holds.
    **limits
        Sweeps or tolerances; see `_iterate`.
    """
    if not devices:
        return _on_cpu(stencil, f, u, limits)
    whole = plan_jacobi.GridSlab.of(*stencil, np.dtype(dtype or f.dtype).name)
    depth = plan_jacobi.default_depth(whole)  # sweeps of a pass
    cuts = slabs(stencil.shape[0], len(devices), depth)
    devices = devices[: len(cuts)]
    with contextlib.ExitStack() as stack:
        # One device is active for all that follows, not for each launch.
        stack.enter_context(devices[0].active() if len(cuts) == 1 else meetings.turn(devices))
        run = _Devices(devices, cuts, whole, depth)
        stack.callback(run.exchange.synchronize)  # before memory is free, whatever happens
        run.load(f, None if from_zero else u)
        outcome = _iterate(run, **limits)
        run.store(u)
        return outcome


def _on_cpu(stencil: Stencil, f: np.ndarray, u: np.ndarray, limits: dict[str, Any]) -> Outcome:
    run = _Cpu(stencil, f, u)
    outcome = _iterate(run, **limits)
    u[...] = run.u.reshape(u.shape)
    return outcome


def _iterate(
    run: _Cpu | _Devices, *, sweeps: int | None = None, rtol: float = 0.0, maxiter: int = 10**9
) -> Outcome:
    """Sweep until norm(f - A u) <= rtol norm(f), ``maxiter`` times at most, or exactly ``sweeps``.

    The residual is computed only now and then. Its norm falls ever more slowly, towards a factor of
    cos(pi / (n + 1)) a sweep: the sweeps that are left, reckoned with the last factor seen, are
    rather too few, and the next look comes after as many. Equal runs end after equally many sweeps.
    Without rounding the norm would never rise: where it did not fall twice in a row, rounding keeps
    it up.
    """
    norm = run.right_side()  # the host would take longer to see f's range
    if sweeps is None and norm == 0.0:
        run.zero()
        return Outcome(CONVERGED, 0, 0.0, 0.0)
    target, limit = (rtol * norm, maxiter) if sweeps is None else (-1.0, sweeps)
    more, before, residual, stalled = (sweeps or 0), 0, math.inf, 0
    while True:
        run.advance(more)
        last, residual = residual, run.residual()
        done, stalled = run.sweeps, stalled + 1 if residual >= last else 0
        status = None
        if not math.isfinite(residual):
            status = NOT_FINITE
        elif residual <= target:
            status = CONVERGED
        elif done >= limit:
            status = LIMIT
        elif stalled == 2:
            status = ROUNDING
        if status is not None:
            return Outcome(status, done, residual, norm)
        more = _FEWEST
        if residual < last < math.inf:
            per_e = (done - before) / math.log(last / residual)  # sweeps for an e-th part
            left = per_e * math.log(residual / target) if target else math.inf
            more = int(min(max(left, _FEWEST), _MOST))
        more, before = min(more, limit - done), done


class _Cpu:
    """u, where the next u goes, and how many sweeps were made, on the CPU."""

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
        return self._norm(self.u, self._weights)

    def right_side(self) -> float:
        """Norm of f; called before the first sweep."""
        return self._norm(self._f, (0.0, 0.0, 0.0))  # with which any finite u will do

    def _norm(self, u: np.ndarray, weights: tuple[float, float, float]) -> float:
        sums = np.empty(len(u))
        self._loops.residual_rows(self._team, u, self._f, weights, sums)
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(sums.sum())

    def zero(self) -> None:
        """Make u zero."""
        self.u[...] = 0.0


class _Devices:
    """A solve on devices, with what `_Cpu` can do; the present u lies in each slab's "u0" or "u1"
    (``now``)."""

    def __init__(
        self,
        devices: Sequence[Device],
        cuts: Sequence[Slab],
        whole: plan_jacobi.GridSlab,
        depth: int,
    ) -> None:
        self.sweeps = self.now = 0
        self._depth, self._nbytes = depth, whole.nbytes
        self._slabs = [
            _Slab(device, slab, whole, alone=len(cuts) == 1)
            for device, slab in zip(devices, cuts, strict=True)
        ]
        self._rows = halo_copies(cuts, whole.row_bytes)
        self.exchange = Exchange(self._slabs)

    def load(self, f: Any, u: Any) -> None:
        """Bring what the caller gives, zero for None; returns when it is there."""
        self.exchange.at_once(lambda number: self._slabs[number].load(f, u), 2 * self._nbytes)
        self._halos = [
            self.exchange.bind(BufferCopies(self._rows, name, name)) for name in ("u0", "u1")
        ]

    def store(self, u: Any) -> None:
        """Write the present u to an array or a buffer of the caller."""
        self.exchange.check()
        name = f"u{self.now}"
        self.exchange.at_once(lambda number: self._slabs[number].store(name, u), self._nbytes)

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

    def _norm(self, which: int) -> float:
        self.exchange.check()
        for each in self._slabs:
            with each.active():
                each.start(each.residual(which))
        sums = [each.download("partial", np.empty(each.sums)) for each in self._slabs]
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(np.concatenate(sums).sum())

    def zero(self) -> None:
        self.now = 1 - self.now  # before any sweep


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
        """Make the buffers and bring f and u."""
        device, nbytes = self.device, self.grid.nbytes
        with device.active():
            self._bring("f", f)
            if u is not None:
                self._bring("u0", u)
            for name in ("u0", "u1") if u is None else ("u1",):
                device.fill(self.allocate(nbytes, name), nbytes)
            self.allocate(8 * self.sums, "partial")
            if self.stream is not None:
                device.synchronize()  # this far the default queue did the work

    def _bring(self, name: str, values: Any) -> None:
        """The rows of an array, or of a buffer of the caller, as the kernels need them."""
        grid = self.grid
        if isinstance(values, np.ndarray):
            padded = rows = values[self._slab.first : self._slab.first + grid.held]
            if not grid.packed:
                padded = np.zeros((grid.held, grid.pitch), grid.dtype)
                padded[:, : grid.columns] = rows
            self.upload(np.ascontiguousarray(padded, grid.dtype), name)
        elif self._is_usable(values):
            self.buffers[name] = values
        else:
            self.device.fill(self.allocate(grid.nbytes, name), grid.nbytes)
            self._change_pitch(values, self.buffers[name], grid.columns, grid.pitch)

    def _is_usable(self, buffer: Any) -> bool:
        """Whether the kernels can work in a buffer of the caller as it is."""
        aligned = not isinstance(buffer, int) or buffer % VECTOR_BYTES == 0
        return aligned and self.grid.packed

    def _change_pitch(self, source: Any, target: Any, *pitches: int) -> None:
        launch = plan_jacobi.change_pitch(self.grid, *pitches, self.device.target)
        self.start(self.bind(launch, source=source, target=target))

    def store(self, name: str, u: Any) -> None:
        """Write the own rows to the caller's array, or all to the caller's buffer."""
        grid, slab = self.grid, self._slab
        with self.device.active():
            if not isinstance(u, np.ndarray):
                now = self.buffers[name]
                if not self._is_usable(u):
                    self._change_pitch(now, u, grid.pitch, grid.columns)
                elif now is not u:
                    self.device.copy(u, now, grid.nbytes)
                return
            rows = u[slab.begin : slab.end]
            direct = grid.packed and rows.flags.c_contiguous
            values = rows if direct else np.empty((len(rows), grid.pitch), grid.dtype)
            self.download(name, values, slab.above * grid.row_bytes)
            if not direct:
                rows[...] = values[:, : grid.columns]

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
