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
from hetero.kernels.common.launch import REAL, Launch
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.kernels.multigrid import transfers
from hetero.ops.linear_systems.exchange import Part
from hetero.ops.linear_systems.types import Outcome, Stencil
from hetero.ops.multigrid import grids

_PURPOSE = "multigrid"
_KEPT = 2  # hierarchies in each context
_SUM_BLOCKS = 1024
_SUM_THREADS = 128


class Memory(Part):
    """What lies on the device for one hierarchy, most of it of one dtype."""

    def __init__(self, device: Device, dtype: np.dtype) -> None:
        super().__init__(device, alone=True)
        self.purpose = _PURPOSE
        self.dtype = dtype

    def vector(self, points: int, *names: str) -> Any:
        return self.allocate(points * self.dtype.itemsize, *names)

    def constant(self, array: Any, dtype: Any = None) -> Any:
        return self.upload(np.ascontiguousarray(array, dtype or self.dtype))

    def roots(self, buffer: Any, shape: tuple[int, int]) -> tuple[float, ...]:
        """Roots of sums over blocks, a column each."""
        sums = np.empty(shape)
        with self.active():
            if self.stream is not None:
                self.device.synchronize(self.stream)
            self.device.download(buffer, sums)
        with np.errstate(all="ignore"):
            return tuple(np.sqrt(sums.sum(axis=0)).tolist())


class Level:
    """One grid: how a pass over it is launched, and room for its vectors.

    With a ``share`` (number, of how many) the passes go over a range of z alone, as long as the
    others' but for one tile; vectors are of the whole grid.

    Attributes
    ----------
    reads, writes : (int, int)
        Range of the grid's z that a pass reads, and that it writes.
    coarse_reads, coarse_writes : (int, int)
        Range of the coarser grid's z that the way up reads, and that the way down writes.
    """

    def __init__(
        self,
        memory: Memory,
        number: int,
        grid: grids.Grid,
        coarse: grids.Grid,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        device, dtype = memory.device, memory.dtype
        self._memory = memory
        self.grid = grid
        target = device.target
        target = target._replace(multiprocessors=share[1] * target.multiprocessors)
        self.plan = plan_multigrid.plan_sweep(grid.shape, coarse.shape, dtype.name, target)
        axes = dict(zip("zyx", grid.transfers or (), strict=True))
        most = dict(zip("zyx", self.plan.tile, strict=True))
        most["z"] = min(most["z"], max(1, coarse.shape[0] // share[1]))  # a tile for each
        tiles = {axis: transfers.tiles(t, most[axis]) for axis, t in axes.items()}
        tiles["z"] = self._cut(tiles["z"], axes["z"], share)
        self._tiles = tuple(map(len, tiles.values()))
        self._known = {axis: memory.constant(t, np.int32) for axis, t in tiles.items()}
        for name in plan_multigrid.TABLES:
            axis, field = name.split()
            values = getattr(axes[axis], field)
            integers = np.int32 if values.dtype == np.int32 else None
            self._known[name] = memory.constant(values, integers)
        self.blocks = math.prod(self._tiles)
        self._known["sums"] = self.sums = memory.allocate(8 * self.blocks)
        self.work = memory.vector(grid.points, f"work{number}")
        self.u, self.f = (
            memory.vector(grid.points, f"{name}{number}") if number else None for name in "uf"
        )
        self._even = grid.shape[2] % 2 == 0
        self._alignment = 2 * dtype.itemsize
        self._planned: dict[Any, tuple[Launch, list[Any]]] = {}

    def _cut(
        self, tiles: np.ndarray, transfer: transfers.Transfer, share: tuple[int, int]
    ) -> np.ndarray:
        """The share's tiles along z, after which the ranges are known."""
        number, shares = share
        mine = tiles[len(tiles) * number // shares : len(tiles) * (number + 1) // shares]
        begin, end, last = int(mine[0, 0]), int(mine[-1, 1]), int(mine[:, 2].max())
        nz = self.grid.shape[0]
        self.writes, self.coarse_writes = (begin, end), (int(mine[0, 3]), int(mine[-1, 4]))
        halo = plan_multigrid.HALO
        self.reads = max(begin - halo, 0), min(max(end, last) + halo, nz)
        lefts = transfer.left[self.reads[0] : self.reads[1]]
        self.coarse_reads = max(int(lefts[0]), 0), min(int(lefts[-1]) + 2, len(transfer.first))
        return mine

    def _plan(self, omega: float, aligned: bool, first: int, mode: int) -> tuple[Launch, list[Any]]:
        """The launch of a pass, and its arguments after the four vectors."""
        key = omega, aligned, first, mode
        if key not in self._planned:
            launch = self.plan.launch(self.grid.weights, self._tiles, *key)
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
        values, stream = [u, f, out, coarse, *rest], self._memory.stream
        device.launch(kernel, launch.grid, launch.block, values, 0, stream)

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

    def __init__(self, memory: Memory, number: int, levels: list[grids.Grid]) -> None:
        device, dtype = memory.device, memory.dtype
        self._memory = memory
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
        self.u, self.f = (memory.vector(levels[0].points, f"{name}{number}") for name in "uf")
        self._threads = min(1024, device.block_limit)
        pool = plan_multigrid.coarse_points(dtype.name, device.shared_limit)
        defines = (("REAL", REAL[dtype.name]), ("THREADS", self._threads), ("POOL", pool))
        self.file = "multigrid_coarse.cu", defines

    def cycle(self, f: Any, u: Any, *, omega: float, symmetric: bool) -> None:
        """Enqueue a cycle from zero."""
        arguments = [f, u, *self._arguments, omega, int(symmetric)]
        text, defines = self.file
        device, stream = self._memory.device, self._memory.stream
        kernel = device.build(text, "coarse_cycle", defines)
        device.launch(kernel, 1, self._threads, arguments, 0, stream)


class DeviceHierarchy(grids.Hierarchy):
    """The grids of one stencil on a device that is active in this thread, here and in all methods.

    Its vectors are buffers of float32 or float64; passes are enqueued. One of several devices has
    a ``memory`` of its own and a ``share`` of the grids that are divided.
    """

    def __init__(
        self,
        device: Device,
        stencil: Stencil,
        dtype: Any,
        memory: Memory | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        self._device = device
        dtype = np.dtype(dtype)
        self.grids = grids.hierarchy(stencil, grids.coarsest(device.kind))
        memory = self._memory = Memory(device, dtype) if memory is None else memory
        room = plan_multigrid.coarse_points(dtype.name, device.shared_limit)
        left = [sum(g.points for g in self.grids[i:]) for i in range(len(self.grids))]
        # The finest has a pass of its own, that starts from u and gives the residual.
        small = next(i for i, points in enumerate(left) if points <= room and (i or len(left) == 1))
        self.levels = [
            Level(memory, i, self.grids[i], self.grids[i + 1], share if grid.shared else (0, 1))
            for i, grid in enumerate(self.grids[:small])
        ]
        self.coarsest = _Coarse(memory, small, self.grids[small:])
        finest = self.grids[0]
        rows = finest.shape[0] * finest.shape[1]
        self._blocks = min(_SUM_BLOCKS, rows)
        self._sums = memory.allocate(16 * self._blocks)
        self._squares = (
            "multigrid_squares.cu",
            (("REAL", REAL[dtype.name]), ("THREADS", _SUM_THREADS)),
        )
        self._prepared = False
        own = self.levels[0].writes if self.levels else (0, finest.shape[0])
        self._box = [*finest.shape, *finest.weights, *(z * finest.shape[1] for z in own)]
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
        self.start_norms(f, u)
        return self.found_norms()

    def start_norms(self, f: Any, u: Any) -> None:
        """Enqueue what `found_norms` waits for."""
        text, defines = self._squares
        kernel = self._device.build(text, "squares", defines)
        arguments = [u, f, self._sums, *self._box, self._blocks]
        stream = self._memory.stream
        self._device.launch(kernel, self._blocks, _SUM_THREADS, arguments, 0, stream)

    def found_norms(self) -> tuple[float, float]:
        """See `norms`."""
        return self._memory.roots(self._sums, (self._blocks, 2))

    def zero(self, u: Any) -> None:
        nbytes = self.grids[0].points * self._memory.dtype.itemsize
        self._device.fill(u, nbytes, stream=self._memory.stream)


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
        key = stencil, np.dtype(dtype)
        hierarchy = device.storage().get(_PURPOSE, key, _KEPT, make)
        with locks.sole(hierarchy, hierarchy.again) as own:
            own.prepare()
            return own.solve(f, u, rtol=rtol, atol=atol, maxiter=maxiter)
