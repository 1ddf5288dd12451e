"""One device's share of a Jacobi iteration: its buffers and what is launched on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.kernels.common.launch import VECTOR_BYTES
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.linear_systems.exchange import Bound, Part
from hetero.ops.linear_systems.partition import Slab


class Slice(Part):
    """A slab of the grid on its device: f, u, and where the next u goes.

    All methods are to be called inside the device's `active`. The present u and the next one take
    turns in the buffers "u0" and "u1". A pass makes at most ``depth`` sweeps; the slab holds as
    many rows of each neighbour.

    Attributes
    ----------
    grid : plan_jacobi.GridSlab
        The slab as it lies in the buffers.
    newest : int
        Which of the two buffers holds the present u.
    """

    def __init__(
        self,
        device: Device,
        slab: Slab,
        whole: plan_jacobi.GridSlab,
        depth: int,
        alone: bool,
    ) -> None:
        super().__init__(device, alone)
        self._target = device.target
        self.grid = whole.slab(slab.first, slab.held)
        self.newest = 0
        self._slab = slab
        self._bound: dict[Any, Bound] = {}
        self._rows = slab.above, slab.above + slab.own

    def fill(self, f: Any, u: Any) -> None:
        """Allocate, and bring what the caller gives, zero for None; returns when it is there."""
        device, grid = self.device, self.grid
        self._bring("f", f)
        if u is not None:
            self._bring("u0", u)
        for name in ("u1",) if u is not None else ("u0", "u1"):
            device.fill(self.allocate(grid.nbytes, name), grid.nbytes)
        self._sums = plan_jacobi.residual_sums(grid, self._target)
        self.allocate(8 * self._sums * self._slab.own, "partial")
        if self.stream is not None:
            device.synchronize()  # this far the default queue did the work

    def _bring(self, name: str, values: Any) -> None:
        """The rows of an array, or of a buffer of the caller, as the kernels need them."""
        grid = self.grid
        if not isinstance(values, np.ndarray):
            if self._usable(values):
                self.buffers[name] = values
                return
            self.device.fill(self.allocate(grid.nbytes, name), grid.nbytes)
            self._change_pitch(values, self.buffers[name], grid.columns, grid.pitch)
            return
        rows = values[self._slab.first : self._slab.first + grid.held]
        if grid.packed:
            padded = np.ascontiguousarray(rows, grid.dtype)
        else:
            padded = np.zeros((*rows.shape[:-1], grid.pitch), grid.dtype)
            padded[..., : grid.columns] = rows
        self.upload(padded, name)

    def _usable(self, buffer: Any) -> bool:
        """Whether the kernels can work in a buffer of the caller as it is."""
        aligned = not isinstance(buffer, int) or buffer % VECTOR_BYTES == 0
        return aligned and self.grid.packed

    def _change_pitch(self, source: Any, target: Any, source_pitch: int, target_pitch: int) -> None:
        launch = plan_jacobi.change_pitch(self.grid, source_pitch, target_pitch, self._target)
        self.start(self.bind(launch, source=source, target=target))

    def store(self, u: Any) -> None:
        """Write the present u to the caller's array, or buffer."""
        device, grid, slab = self.device, self.grid, self._slab
        now = self.buffers[f"u{self.newest}"]
        if not isinstance(u, np.ndarray):
            if not self._usable(u):
                self._change_pitch(now, u, grid.pitch, grid.columns)
            elif now is not u:
                device.copy(u, now, grid.nbytes)
            return
        if self.stream is not None:
            device.synchronize(self.stream)
        rows = u[slab.begin : slab.end]
        direct = grid.packed and rows.flags.c_contiguous
        values = rows if direct else np.empty((*rows.shape[:-1], grid.pitch), grid.dtype)
        device.download(now, values, slab.above * grid.plane_bytes)
        if not direct:
            rows[...] = values[..., : grid.columns]

    def zero(self) -> None:
        """Set u to zero."""
        u = self.buffers[f"u{self.newest}"]
        self.device.fill(u, self.grid.nbytes, stream=self.stream)

    def swap(self) -> None:
        """What was written is the present u now."""
        self.newest = 1 - self.newest

    def sweep(self, depth: int) -> list[Bound]:
        """One pass of ``depth`` sweeps, to be started."""
        key = depth, self.newest
        bound = self._bound.get(key)
        if bound is None:
            names = {"u": f"u{self.newest}", "u_new": f"u{1 - self.newest}"}
            launch = plan_jacobi.blocked(self.grid, (self._rows,), depth, self._target)
            bound = self._bound[key] = self.bind(launch, **names)
        return [bound]

    def start_residual(self, other: bool) -> None:
        """Start the sums of (f - A u)^2, for the present u or for what the other buffer holds."""
        which = 1 - self.newest if other else self.newest
        key = "residual", which
        if key not in self._bound:
            launch = plan_jacobi.residual(self.grid, self._rows, self._target)
            self._bound[key] = self.bind(launch, u=f"u{which}")
        self.start(self._bound[key])

    def residual_sums(self) -> np.ndarray:
        """What `start_residual` started: sums in the order of the rows."""
        return self.download("partial", np.empty(self._sums * self._slab.own))
