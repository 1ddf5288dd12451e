"""Jacobi's method for -div grad u = f on devices: one, or several with a slab of rows each.

The grid's rows are shared out. A pass over the memory makes several sweeps, after which as many
rows are exchanged. A point's operations do not depend on that, so
neither do the results, to the last bit.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from hetero.devices import at_once, meetings
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.linear_systems.exchange import BufferCopies, Exchange
from hetero.ops.linear_systems.partition import halo_copies, slabs
from hetero.ops.linear_systems.types import DeviceFailed, Outcome, Stencil
from hetero.ops.poisson.jacobi_schedule import iterate
from hetero.ops.poisson.jacobi_slab import Slice

_UNINTERRUPTED = 0.25  # seconds of work that is queued at once
_CHECKPOINT = 2.0  # seconds after which u is saved on the host; more, if that takes long
_CHECKPOINT_SHARE = 20.0


def solve(
    devices: Sequence[Device],
    stencil: Stencil,
    f: Any,
    u: Any,
    *,
    blocking: int | None = None,
    dtype: Any = None,
    from_zero: bool = False,
    **limits: Any,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    devices : sequence of Device
        Of one kind; a device may come several times. Grids with too few rows use fewer.
    stencil : Stencil
        The grid; u is zero outside of it.
    f, u : ndarray of ``stencil.shape``, or device buffers
        C-contiguous, float32 or float64. ``u`` is the start and gets the result. Device buffers,
        with one device only, must lie on it, in the order of its default stream.
    blocking : int, optional
        Sweeps that a pass makes, one of `plan_jacobi.DEPTHS`. Default: by the grid.
    dtype : dtype, optional
        Of device buffers. Default: float64.
    from_zero : bool
        Start from zero, whatever ``u`` holds.
    **limits
        Sweeps or tolerances; see `iterate`.

    Raises
    ------
    DeviceFailed
        With a ``u`` saved on the host a few seconds before at most, or None.
    """
    run = None
    try:
        with contextlib.ExitStack() as stack:
            if len(devices) == 1:  # one context for all that follows, not one for each launch
                stack.enter_context(devices[0].active())
            stack.enter_context(meetings.turn(devices))
            start = None if from_zero else u
            run = _DeviceSolve(devices, stencil, f, start, blocking, np.dtype(dtype or _dtype(f)))
            stack.push(run.close)
            outcome = iterate(run, **limits)
            run.store(u)
            return outcome
    except DeviceError as error:
        saved = (run.saved, run.saved_sweeps) if run is not None else (None, 0)
        raise DeviceFailed(error, *saved) from error


def _dtype(f: Any) -> Any:
    return f.dtype if isinstance(f, np.ndarray) else np.float64


class _DeviceSolve:
    """A solve on its devices; see `Run`.

    Attributes
    ----------
    saved, saved_sweeps
        The last u on the host, or None, and its sweeps.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        stencil: Stencil,
        f: Any,
        u: Any,
        blocking: int | None,
        dtype: np.dtype,
    ) -> None:
        self.sweeps = 0
        self.saved: np.ndarray | None = None
        self.saved_sweeps = 0
        self._shape = stencil.shape
        self._dtype = dtype
        self._passes_at_once = 16
        self._save_at = time.monotonic() + _CHECKPOINT
        whole = plan_jacobi.GridSlab.of(*stencil, dtype.name)
        self._depth = blocking or plan_jacobi.default_depth(whole)
        cuts = slabs(stencil.shape[0], len(devices), self._depth)
        devices = devices[: len(cuts)]
        self._slices = [
            Slice(device, slab, whole, self._depth, alone=len(cuts) == 1)
            for device, slab in zip(devices, cuts, strict=True)
        ]
        self._at_once(lambda each: each.fill(f, u), 2)
        self._exchange = Exchange(self._slices)
        rows = halo_copies(cuts, self._slices[0].grid.plane_bytes)
        self._halos = [self._exchange.bind(BufferCopies(rows, u, u)) for u in ("u0", "u1")]

    def right_side(self) -> float:
        # The residual of zero, which the other buffer holds before any sweep.
        return self._norm(other=True)

    def residual(self) -> float:
        return self._norm(other=False)

    def _norm(self, other: bool) -> float:
        self._exchange.check()
        for each in self._slices:
            with each.device.active():
                each.start_residual(other)
        sums = []
        for each in self._slices:
            with each.device.active():
                sums.append(each.residual_sums())
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(np.concatenate(sums).sum())

    def zero(self) -> None:
        for each in self._slices:
            with each.device.active():
                each.zero()

    def advance(self, sweeps: int) -> None:
        """Make sweeps; waits at times, so that an interrupt gets through."""
        depths = plan_jacobi.passes(sweeps, self._depth)
        while batch := tuple(islice(depths, self._passes_at_once)):
            begin = time.monotonic()
            with self._alone(), self._exchange.queued():
                for depth in batch:
                    launches = [each.sweep(depth) for each in self._slices]
                    self._exchange.run(launches, self._halos[1 - self._slices[0].newest])
                    for each in self._slices:
                        each.swap()
            self.sweeps += sum(batch)
            if len(batch) == self._passes_at_once:
                self.synchronize()
                now = time.monotonic()
                if now - begin < _UNINTERRUPTED:
                    self._passes_at_once *= 2
                elif now - begin > 4 * _UNINTERRUPTED:
                    self._passes_at_once = max(1, self._passes_at_once // 2)
                self._checkpoint(now)

    def _alone(self) -> Any:
        """One device stays active for many launches."""
        only = self._slices[0].device if len(self._slices) == 1 else None
        return only.active() if only is not None else contextlib.nullcontext()

    def _checkpoint(self, now: float) -> None:
        if now < self._save_at:
            return
        saved = np.empty(self._shape, self._dtype)
        self.store(saved)  # a device that fails here leaves the last one whole
        self.saved, self.saved_sweeps = saved, self.sweeps
        end = time.monotonic()
        self._save_at = end + max(_CHECKPOINT, _CHECKPOINT_SHARE * (end - now))

    def store(self, u: Any) -> None:
        """Write the present u to an array or a buffer of the caller."""
        self._exchange.check()
        self._at_once(lambda each: each.store(u))

    def _at_once(self, copy: Callable[[Slice], None], grids: int = 1) -> None:
        """``copy(slice)`` for all of them, whose part of that many grids it copies."""

        def task(each: Slice) -> None:
            with each.device.active():
                copy(each)

        nbytes = grids * math.prod(self._shape) * self._dtype.itemsize // len(self._slices)
        tasks = [partial(task, each) for each in self._slices]
        at_once.run([each.device for each in self._slices], tasks, nbytes)

    def synchronize(self) -> None:
        """Wait for all devices."""
        for each in self._slices:
            with each.device.active():
                each.device.synchronize(each.stream)

    def close(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Wait for what still runs, so that memory may be given back, whatever happened."""
        for each in self._slices:
            try:
                with each.device.active():
                    each.device.synchronize()
            except DeviceError as late:
                error = error or late
        if kind is None and error is not None:
            raise error
