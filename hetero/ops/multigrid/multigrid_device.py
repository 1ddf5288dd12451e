"""-div grad u = f on a device by geometric multigrid: the passes of `grids.Hierarchy` as launches.

A grid costs two launches, one on the way down and one on the way up; all small grids together one.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import REAL, Launch
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.kernels.multigrid import transfers
from hetero.ops.linear_systems.types import Outcome, Stencil
from hetero.ops.multigrid import grids
from hetero.profile import tuning

_PURPOSE = "multigrid"
_KEPT = 2  # hierarchies in each context
_SUM_BLOCKS = 1024
_SUM_THREADS = 128


class _Memory(Workspace):
    """What lies on the device for one hierarchy, most of it of one dtype."""

    def __init__(self, device: Device, dtype: np.dtype) -> None:
        super().__init__(device, _PURPOSE)
        self.dtype = dtype

    def vector(self, points: int) -> Any:
        return self.allocate(points * self.dtype.itemsize)

    def constant(self, array: Any, dtype: Any = None) -> Any:
        return self.upload(np.ascontiguousarray(array, dtype or self.dtype))

    def roots(self, buffer: Any, shape: tuple[int, int]) -> tuple[float, ...]:
        """Roots of sums over blocks, a column each."""
        sums = np.empty(shape)
        self.device.download(buffer, sums)
        with np.errstate(all="ignore"):
            return tuple(np.sqrt(sums.sum(axis=0)).tolist())


class _Level:
    """One grid: how a pass over it is launched, and room for its vectors."""

    def __init__(self, memory: _Memory, grid: grids.Grid, coarse: grids.Grid, finest: bool) -> None:
        device, dtype = memory.device, memory.dtype
        self._memory = memory
        self._grid = grid
        self.plan = plan_multigrid.plan_sweep(
            grid.shape, coarse.shape, dtype.name, tuning.target(device)
        )
        axes = dict(zip("zyx", grid.transfers or (), strict=True))
        most = dict(zip("zyx", self.plan.tile, strict=True))
        tiles = {axis: transfers.tiles(t, most[axis]) for axis, t in axes.items()}
        self._tiles = tuple(map(len, tiles.values()))
        self._known = {axis: memory.constant(t, np.int32) for axis, t in tiles.items()}
        for name in plan_multigrid.TABLES:
            axis, field = name.split()
            values = getattr(axes[axis], field)
            integers = np.int32 if values.dtype == np.int32 else None
            self._known[name] = memory.constant(values, integers)
        self.blocks = math.prod(self._tiles)
        self._known["sums"] = self.sums = memory.allocate(8 * self.blocks)
        self.work = memory.vector(grid.points)
        self.u, self.f = (None, None) if finest else (memory.vector(grid.points) for _ in "uf")
        self._even = grid.shape[2] % 2 == 0
        self._alignment = 2 * dtype.itemsize
        self._planned: dict[Any, tuple[Launch, list[Any]]] = {}

    def _plan(self, omega: float, aligned: bool, first: int, mode: int) -> tuple[Launch, list[Any]]:
        """The launch of a pass, and its arguments after the four vectors."""
        key = omega, aligned, first, mode
        if key not in self._planned:
            launch = self.plan.launch(self._grid.weights, self._tiles, *key)
            rest = [self._known[a] if type(a) is str else a for a in launch.arguments[4:]]
            self._planned[key] = launch, rest
        return self._planned[key]

    def sweep(
        self, u: Any, f: Any, out: Any, coarse: Any, *, omega: float, first: int, mode: int
    ) -> None:
        """Enqueue a pass over the grid; multigrid.cu explains it."""
        # A caller's buffer may begin anywhere; an OpenCL buffer has no address to read, and is ours
        # or whole.
        aligned = self._even and all(b % self._alignment == 0 for b in (u, f) if type(b) is int)
        launch, rest = self._plan(omega, aligned, first, mode)
        device = self._memory.device
        kernel = device.build(launch.source, launch.kernel, launch.defines)
        device.launch(kernel, launch.grid, launch.block, [u, f, out, coarse, *rest])

    def files(self, passes: Any) -> list[tuple[str, Any]]:
        """What is compiled for passes over vectors that lie as ours do."""
        return [
            ("multigrid.cu", self.plan.defines(self._even, first, mode)) for first, mode in passes
        ]

    def residual(self) -> float:
        """2-norm of f - A u as the last pass with squares left it; waits for it."""
        return self._memory.roots(self.sums, (self.blocks, 1))[0]


class _Coarse:
    """All the small grids, cycled over by one block."""

    def __init__(self, memory: _Memory, levels: list[grids.Grid]) -> None:
        device, dtype = memory.device, memory.dtype
        self._device = device
        rows, lefts, weights, firsts, taps = [], [], [], [], []
        points = 0
        for grid in levels:
            row = [*grid.shape, points]
            points += grid.points
            for kept, others in ((lefts, weights), (firsts, taps)):
                for t in grid.transfers or (None,) * 3:
                    row.append(sum(map(len, kept)))
                    if t is not None:
                        kept.append(t.left if kept is lefts else t.first)
                        others.append(t.weight if kept is lefts else t.taps)
            rows.append(row)
        vectors = [memory.vector(points) for _ in "fr"]
        vectors += [memory.constant(rows, np.int32), memory.constant([g.weights for g in levels])]
        for kept, others in ((lefts, weights), (firsts, taps)):
            vectors += [memory.constant(np.concatenate([[0], *kept])[1:], np.int32)]
            vectors += [memory.constant(np.concatenate([np.zeros(0), *map(np.ravel, others)]))]
        self._arguments = [
            *vectors,
            memory.constant(grids.coarsest_inverse(levels[-1])),
            len(levels),
        ]
        self.u, self.f = memory.vector(levels[0].points), memory.vector(levels[0].points)
        self._threads = min(1024, device.block_limit)
        pool = plan_multigrid.coarse_points(dtype.name, device.shared_limit)
        defines = (("REAL", REAL[dtype.name]), ("THREADS", self._threads), ("POOL", pool))
        self.file = "multigrid_coarse.cu", defines

    def cycle(self, f: Any, u: Any, *, omega: float, symmetric: bool) -> None:
        """Enqueue a cycle from zero."""
        arguments = [f, u, *self._arguments, omega, int(symmetric)]
        text, defines = self.file
        kernel = self._device.build(text, "coarse_cycle", defines)
        self._device.launch(kernel, 1, self._threads, arguments)


class DeviceHierarchy(grids.Hierarchy):
    """The grids of one stencil on a device that is active in this thread, here and in all methods.

    Its vectors are buffers of float32 or float64; passes are enqueued.
    """

    def __init__(self, device: Device, stencil: Stencil, dtype: Any) -> None:
        super().__init__()
        self._device = device
        dtype = np.dtype(dtype)
        self.grids = grids.hierarchy(stencil, grids.coarsest(device.kind))
        memory = self._memory = _Memory(device, dtype)
        room = plan_multigrid.coarse_points(dtype.name, device.shared_limit)
        left = [sum(g.points for g in self.grids[i:]) for i in range(len(self.grids))]
        # The finest has a pass of its own, that starts from u and gives the residual.
        small = next(i for i, points in enumerate(left) if points <= room and (i or len(left) == 1))
        self.levels = [
            _Level(memory, self.grids[i], self.grids[i + 1], finest=i == 0) for i in range(small)
        ]
        self.coarsest = _Coarse(memory, self.grids[small:])
        finest = self.grids[0]
        self._blocks = min(_SUM_BLOCKS, finest.shape[0] * finest.shape[1])
        self._sums = memory.allocate(16 * self._blocks)
        self._squares = (
            "multigrid_squares.cu",
            (("REAL", REAL[dtype.name]), ("THREADS", _SUM_THREADS)),
        )
        self._prepared = False
        self._box = [*finest.shape, *finest.weights]
        self.again = functools.partial(DeviceHierarchy, device, stencil, dtype)

    def prepare(self) -> None:
        """Compile what a solve by cycles launches, once, before the first of it is needed."""
        if self._prepared:
            return
        self._prepared = True
        self._device.compile_ahead([self._squares, *self._files(symmetric=False)])

    def files(self) -> list[tuple[str, Any]]:
        """What is compiled for `apply`."""
        return self._files(symmetric=True)

    def _files(self, *, symmetric: bool) -> list[tuple[str, Any]]:
        files = [self.coarsest.file]  # which takes the longest
        for number, level in enumerate(self.levels):
            from_zero = symmetric or number > 0
            files += level.files(grids.passes(number, from_zero=from_zero, symmetric=symmetric))
        return files

    def norms(self, f: Any, u: Any) -> tuple[float, float]:
        text, defines = self._squares
        kernel = self._device.build(text, "squares", defines)
        arguments = [u, f, self._sums, *self._box, self._blocks]
        self._device.launch(kernel, self._blocks, _SUM_THREADS, arguments)
        return self._memory.roots(self._sums, (self._blocks, 2))

    def zero(self, u: Any) -> None:
        self._device.fill(u, self.grids[0].points * self._memory.dtype.itemsize)


def solve(
    device: Device,
    stencil: Stencil,
    f: Any,
    u: Any,
    *,
    dtype: Any,
    rtol: float,
    atol: float = 0.0,
    maxiter: int,
) -> Outcome:
    """Solve A u = f by cycles, of contiguous buffers; see `grids.Hierarchy.solve`."""
    with device.active():
        make = functools.partial(DeviceHierarchy, device, stencil, dtype)
        key = stencil, np.dtype(dtype), tuning.of_device(device)
        hierarchy = device.storage().get(_PURPOSE, key, _KEPT, make)
        with locks.sole(hierarchy, hierarchy.again) as own:
            own.prepare()
            return own.solve(f, u, rtol=rtol, atol=atol, maxiter=maxiter)
