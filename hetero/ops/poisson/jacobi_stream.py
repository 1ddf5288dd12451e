"""Jacobi's method on grids that one device has no room for: they stay on the host.

Slabs of rows (planes in 3-D) go up in turn, with as many rows of their neighbours on each side as
sweeps are made before they come down again: what is computed of those rows is wrong from the edge
inwards, a row further with each sweep, and never reaches the slab's own. Slabs move while others
are computed. A point's operations are those of `hetero.ops.poisson.jacobi_device`, and so are the
results, to the last bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.kernels import Launch
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.moving import pipeline
from hetero.moving.pipeline import Load, Slot, Step, Store
from hetero.ops.linear_systems.partition import Slab
from hetero.ops.linear_systems.types import DeviceFailed, Outcome, Stencil
from hetero.ops.poisson.jacobi_schedule import iterate

_TURNS = 2  # slabs on the device: one moves while another is computed
_SHARE = 0.75  # of the room that may be used: a pool rounds sizes up
# Sweeps after which a GPU has computed as long as its bus takes for a slab: 50 GB/s beside some
# 3 TB/s, of which a pass of several sweeps has the use four or five times.
_REACH = 256


class Turn(NamedTuple):
    """Slots of a slab: of f, of u as it comes, and of what is computed; sums of the residual."""

    f: Slot
    u: Slot
    other: Slot
    sums: Slot


def solve(
    device: Device,
    stencil: Stencil,
    f: np.ndarray,
    u: np.ndarray,
    *,
    room: float,
    reach: int = _REACH,
    **limits: Any,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    device : Device
        Active.
    f, u : ndarray of ``stencil.shape``
        C-contiguous, float32 or float64. ``u`` is the start and gets the result.
    room : float
        Bytes of the device's memory that may be used.
    reach : int
        Most sweeps of a slab before it comes down.
    **limits
        Sweeps or tolerances; see `iterate`.

    Raises
    ------
    DeviceFailed
        With the u of the last time that all slabs had come down; where not even three rows have
        room, because of a DeviceMemoryError.
    """
    run = _Streamed(device, stencil, f, u, reach)
    try:
        run.take_room(_SHARE * room)
        outcome = iterate(run, **limits)
    except DeviceError as error:
        raise DeviceFailed(error, run.now, run.sweeps) from error
    if run.now is not u:
        u[...] = run.now
    return outcome


class _Streamed:
    """A solve; see `Run`.

    Attributes
    ----------
    now : ndarray
        The present u. The next one is written to another array, and they change places.
    """

    def __init__(
        self, device: Device, stencil: Stencil, f: np.ndarray, u: np.ndarray, reach: int
    ) -> None:
        self.sweeps = 0
        self.now = u
        self._next: np.ndarray | None = None
        self._device, self._f, self._reach = device, f, reach
        self._grid = plan_jacobi.GridSlab.of(*stencil, f.dtype.name)
        self._target = device.target
        self._depth = plan_jacobi.default_depth(self._grid)
        self._row = f[0].nbytes
        self._packed = self._grid.packed
        self._planned = functools.cache(plan_jacobi.sweeps)
        self._chunks = plan_jacobi.residual_sums(self._grid, self._target)

    def take_room(self, room: float) -> None:
        """Allocate; where there is less room than there should be, half of it, and so on."""
        plane, sums = self._grid.plane_bytes, 8 * self._chunks
        each = _TURNS * (3 * plane + sums) + (0 if self._packed else 3 * plane)
        while True:
            held = min(int(room // each), len(self._f))
            if held < min(3, len(self._f)):
                raise DeviceMemoryError(f"{self._device.name} has no room for three rows")
            try:
                self._turns = [
                    Turn(
                        *pipeline.slots(self._device, held * plane, 3),
                        *pipeline.slots(self._device, held * sums, 1),
                    )
                    for _ in range(_TURNS)
                ]
                self._space = Workspace(self._device, "solves")
                if not self._packed:
                    self._space.allocate(held * plane, "f", "u", "other")
                break
            except DeviceMemoryError:
                room = held * each / 2
        whole = held == len(self._f)
        self._reach = min(self._reach, 10**9 if whole else max((held - 1) // 4, 1))
        self._own = held if whole else held - 2 * self._reach

    def _slabs(self, reach: int) -> Iterator[Slab]:
        """The slabs, each with that many rows of its neighbours."""
        rows = len(self._f)
        for begin in range(0, rows, self._own):
            end = min(begin + self._own, rows)
            yield Slab(begin, end, min(reach, begin), min(reach, rows - end))

    def advance(self, sweeps: int) -> None:
        """Make sweeps."""
        if sweeps and self._next is None:
            self._next = np.empty_like(self.now)
        while sweeps:
            some = min(sweeps, self._reach)
            pipeline.run(
                self._device, map(functools.partial(self._visit, some), *self._numbered(some))
            )
            self.now, self._next = self._next, self.now
            self.sweeps += some
            sweeps -= some

    def residual(self) -> float:
        return self._norm(self.now)

    def right_side(self) -> float:
        return self._norm(None)

    def zero(self) -> None:
        self.now[...] = 0.0

    def _norm(self, u: np.ndarray | None) -> float:
        """Norm of f - A u, None being zero."""
        sums = np.empty((len(self._f), self._chunks))
        pipeline.run(self._device, map(functools.partial(self._look, u, sums), *self._numbered(1)))
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(sums.reshape(-1).sum())

    def _numbered(self, reach: int) -> tuple[list[Slab], list[Turn]]:
        """The slabs, and the slots of each."""
        slabs = list(self._slabs(reach))
        return slabs, [self._turns[number % _TURNS] for number in range(len(slabs))]

    def _visit(self, sweeps: int, slab: Slab, turn: Turn) -> Step:
        """A slab goes up, sees sweeps and comes down."""
        passes = list(plan_jacobi.passes(sweeps, self._depth))
        grid = self._grid.slab(slab.first, slab.held)
        result = turn.other if self._packed and len(passes) % 2 else turn.u

        def compute() -> None:
            names = self._unpacked(grid, turn)
            for depth in passes:
                # But for the grid's own ends, rows are right whose neighbours are.
                begin = depth if grid.first < 0 else 0
                end = grid.held - (depth if grid.last > grid.held else 0)
                self._start(self._planned(grid, ((begin, end),), depth, self._target), names)
                names["u"], names["u_new"] = names["u_new"], names["u"]
            if not self._packed:
                self._pitch(grid, names["u"], result.buffer, grid.pitch, grid.columns)

        store = Store(result, self._next[slab.begin : slab.end], slab.above * self._row)
        return Step(compute, self._loads(slab, turn, self.now), (store,), (turn.other,))

    def _look(self, u: np.ndarray | None, sums: np.ndarray, slab: Slab, turn: Turn) -> Step:
        """A slab goes up, and the sums of the squares of its residual come down."""
        grid = self._grid.slab(slab.first, slab.held)

        def compute() -> None:
            if u is None:
                self._device.fill(turn.u.buffer, slab.held * self._row)
            names = self._unpacked(grid, turn)
            names["partial"] = turn.sums.buffer
            rows = slab.above, slab.above + slab.own
            self._start(plan_jacobi.residual(grid, rows, self._target), names)

        store = Store(turn.sums, sums[slab.begin : slab.end])
        return Step(compute, self._loads(slab, turn, u), (store,), (turn.u, turn.other))

    def _loads(self, slab: Slab, turn: Turn, u: np.ndarray | None) -> tuple[Load, ...]:
        rows = slice(slab.first, slab.end + slab.below)
        loads = (Load(self._f[rows], turn.f),)
        return loads if u is None else (*loads, Load(u[rows], turn.u))

    def _unpacked(self, grid: plan_jacobi.GridSlab, turn: Turn) -> dict[str, Any]:
        """The buffers of a launch by name, lines of f and u being as far apart as it wants them."""
        if self._packed:
            return {"f": turn.f.buffer, "u": turn.u.buffer, "u_new": turn.other.buffer}
        buffers = self._space.buffers
        for name, slot in (("f", turn.f), ("u", turn.u)):
            self._device.fill(buffers[name], grid.nbytes)
            self._pitch(grid, slot.buffer, buffers[name], grid.columns, grid.pitch)
        self._device.fill(buffers["other"], grid.nbytes)
        return {"f": buffers["f"], "u": buffers["u"], "u_new": buffers["other"]}

    def _pitch(
        self, grid: plan_jacobi.GridSlab, source: Any, target: Any, before: int, after: int
    ) -> None:
        launch = plan_jacobi.change_pitch(grid, before, after, self._target)
        self._start(launch, {"source": source, "target": target})

    def _start(self, launch: Launch, buffers: dict[str, Any]) -> None:
        kernel = self._device.build(launch.source, launch.kernel, launch.defines)
        arguments = [buffers[a] if type(a) is str else a for a in launch.arguments]
        self._device.launch(kernel, launch.grid, launch.block, arguments)
