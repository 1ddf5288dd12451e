"""-div grad u = f on a device by geometric multigrid: V(1,1)-cycles of red-black over-relaxation.

A grid costs two launches, one on the way down and one on the way up; all small grids together one.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001; the
over-relaxation after I. Yavneh, "On red-black SOR smoothing in multigrid", SIAM J. Sci. Comput. 17
(1996), 180-192.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.kernels.multigrid import transfers
from hetero.ops.linear_systems import grids
from hetero.ops.linear_systems.types import CONVERGED, LIMIT, NOT_FINITE, ROUNDING, Outcome, Stencil
from hetero.profile import tuning

_PURPOSE = "multigrid"
_KEPT = 2  # hierarchies in each context
_STALLED = 0.7  # a cycle that leaves more of the residual than this has met rounding
_SUM_BLOCKS = 1024
_SUM_THREADS = 128
_REAL = {"float32": "float", "float64": "double"}
_DOWN, _DOWN_FROM_ZERO, _UP, _UP_WITH_SQUARES = range(4)  # as in multigrid.cu
_SWEEP = "multigrid.cu"
_Passes = tuple[tuple[int, int], tuple[int, int]]


class _Memory(Workspace):
    """What lies on the device for one hierarchy, most of it of one dtype."""

    def __init__(self, device: Device, dtype: np.dtype) -> None:
        super().__init__(device, _PURPOSE)
        self.dtype = dtype

    def vector(self, points: int) -> Any:
        return self.allocate(points * self.dtype.itemsize)

    def constant(self, array: Any, dtype: Any = None) -> Any:
        return self.upload(np.ascontiguousarray(array, dtype or self.dtype))


class _Level:
    """One grid: how a pass over it is launched, and room for its vectors."""

    def __init__(self, memory: _Memory, grid: grids.Grid, coarse: grids.Grid, finest: bool) -> None:
        device, dtype = memory.device, memory.dtype
        self._device = device
        self.plan = plan_multigrid.plan_sweep(
            grid.shape,
            coarse.shape,
            dtype.name,
            device.multiprocessors,
            device.block_limit,
            tuning.of_device(device),
        )
        z, y, x = grid.transfers or ()
        most = self.plan.tile
        tiles = [transfers.tiles(t, n) for t, n in zip((z, y, x), most, strict=True)]
        self.blocks = math.prod(map(len, tiles))
        diagonal = 2.0 * sum(grid.weights)
        self._box = [*grid.shape, *grid.weights, diagonal, 1.0 / diagonal]
        self._tail = [*coarse.shape, *(memory.constant(t, np.int32) for t in tiles)]
        self._tail += [len(tiles[1]), len(tiles[2])]
        for t in (z, y, x):
            self._tail += [memory.constant(t.left, np.int32), memory.constant(t.weight)]
        for t in (y, x):
            self._tail += [memory.constant(t.first, np.int32), memory.constant(t.taps)]
        self.sums = memory.allocate(8 * self.blocks)
        self.work = memory.vector(grid.points)
        self.u, self.f = (None, None) if finest else (memory.vector(grid.points) for _ in "uf")
        self._real = _REAL[dtype.name]
        self._even = grid.shape[2] % 2 == 0
        self._alignment = 2 * dtype.itemsize

    def sweep(
        self, u: Any, f: Any, out: Any, coarse: Any, *, omega: float, first: int, mode: int
    ) -> None:
        """Enqueue a pass over the grid, as multigrid.cu tells."""
        # A caller's buffer may begin anywhere; an OpenCL buffer has no address to tell, and is ours
        # or whole.
        aligned = self._even and all(b % self._alignment == 0 for b in (u, f) if type(b) is int)
        kernel = self._device.build(_SWEEP, "sweep", self._defines(aligned, first, mode))
        arguments = [u, f, out, coarse, self.sums, *self._box, omega, *self._tail]
        self._device.launch(kernel, self.blocks, self.plan.pairs * self.plan.rows, arguments)

    def files(self, passes: _Passes) -> list[tuple[str, Any]]:
        """What is compiled for passes over vectors that lie as ours do."""
        return [(_SWEEP, self._defines(self._even, first, mode)) for first, mode in passes]

    def _defines(self, aligned: bool, first: int, mode: int) -> tuple[tuple[str, int | str], ...]:
        return (
            ("REAL", self._real),
            ("REAL2", f"{self._real}2"),
            *self.plan.defines(aligned),
            ("MODE", mode),
            ("FIRST", first),
        )


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
        defines = (("REAL", _REAL[dtype.name]), ("THREADS", self._threads), ("POOL", pool))
        self.file = "multigrid_coarse.cu", defines

    def cycle(self, f: Any, u: Any, *, omega: float, symmetric: bool) -> None:
        """Enqueue a cycle from zero."""
        arguments = [f, u, *self._arguments, omega, int(symmetric)]
        text, defines = self.file
        kernel = self._device.build(text, "coarse_cycle", defines)
        self._device.launch(kernel, 1, self._threads, arguments)


class DeviceHierarchy:
    """The grids of one stencil on a device, with room for a cycle.

    Parameters
    ----------
    device : Device
        Active in this thread, here and in every method.
    stencil : Stencil
    dtype : float32 or float64
    """

    def __init__(self, device: Device, stencil: Stencil, dtype: Any) -> None:
        self._device = device
        self._dtype = np.dtype(dtype)
        self.grids = grids.hierarchy(stencil, grids.coarsest(device.kind))
        memory = _Memory(device, self._dtype)
        room = plan_multigrid.coarse_points(self._dtype.name, device.shared_limit)
        left = [sum(g.points for g in self.grids[i:]) for i in range(len(self.grids))]
        # The finest has a pass of its own, that starts from u and tells the residual.
        small = next(i for i, points in enumerate(left) if points <= room and (i or len(left) == 1))
        self._levels = [
            _Level(memory, self.grids[i], self.grids[i + 1], finest=i == 0) for i in range(small)
        ]
        self._coarse = _Coarse(memory, self.grids[small:])
        finest = self.grids[0]
        self._blocks = min(_SUM_BLOCKS, finest.shape[0] * finest.shape[1])
        self._sums = memory.allocate(16 * self._blocks)
        self._squares = (
            "multigrid_squares.cu",
            (("REAL", _REAL[self._dtype.name]), ("THREADS", _SUM_THREADS)),
        )
        self._prepared = False
        self._box = [*finest.shape, *finest.weights]
        self._memory = memory
        self.lock = locks.new()  # for those who share it
        self.user: int | None = None  # the process that is at work with it
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
        files = [self._coarse.file]  # which takes the longest
        for number, level in enumerate(self._levels):
            from_zero = symmetric or number > 0
            files += level.files(_passes(number, from_zero=from_zero, symmetric=symmetric))
        return files

    def norms(self, f: Any, u: Any) -> tuple[float, float]:
        """2-norms of f - A u and of f."""
        text, defines = self._squares
        kernel = self._device.build(text, "squares", defines)
        arguments = [u, f, self._sums, *self._box, self._blocks]
        self._device.launch(kernel, self._blocks, _SUM_THREADS, arguments)
        return self._roots(self._sums, (self._blocks, 2))

    def zero(self, u: Any) -> None:
        """Enqueue u = 0."""
        self._device.fill(u, self.grids[0].points * self._dtype.itemsize)

    def residual(self) -> float:
        """2-norm of f - A u as the last `cycle` left it."""
        if not self._levels:
            return math.nan
        return self._roots(self._levels[0].sums, (self._levels[0].blocks, 1))[0]

    def _roots(self, buffer: Any, shape: tuple[int, int]) -> tuple[float, ...]:
        sums = np.empty(shape)
        self._device.download(buffer, sums)
        with np.errstate(all="ignore"):
            return tuple(np.sqrt(sums.sum(axis=0)).tolist())

    def cycle(self, f: Any, u: Any) -> None:
        """Enqueue one cycle that improves u."""
        self._cycle(0, f, u, from_zero=False, symmetric=False)

    def apply(self, r: Any, z: Any) -> None:
        """Enqueue z = M r: one cycle from zero, smoothing back in reverse, so M is symmetric."""
        self._cycle(0, r, z, from_zero=True, symmetric=True)

    def _cycle(self, number: int, f: Any, u: Any, *, from_zero: bool, symmetric: bool) -> None:
        # Over-relaxing helps cycles; the symmetric one is better without.
        omega = 1.0 if symmetric else grids.OMEGA
        if number == len(self._levels):
            self._coarse.cycle(f, u, omega=omega, symmetric=symmetric)
            return
        level = self._levels[number]
        coarser = self._levels[number + 1] if number + 1 < len(self._levels) else self._coarse
        (first, mode), last = _passes(number, from_zero=from_zero, symmetric=symmetric)
        level.sweep(u, f, level.work, coarser.f, omega=omega, first=first, mode=mode)
        self._cycle(number + 1, coarser.f, coarser.u, from_zero=True, symmetric=symmetric)
        first, mode = last
        level.sweep(level.work, f, u, coarser.u, omega=omega, first=first, mode=mode)


def _passes(number: int, *, from_zero: bool, symmetric: bool) -> _Passes:
    """Of a level's way down and up: the color that comes first, and the mode."""
    up = _UP if number or symmetric else _UP_WITH_SQUARES
    return (0, _DOWN_FROM_ZERO if from_zero else _DOWN), (int(symmetric), up)


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
    """Solve A u = f by cycles.

    Parameters
    ----------
    device : Device
    stencil : Stencil
    f, u : device buffer
        Right-hand side; start in, result out. Contiguous.
    dtype : float32 or float64
    rtol, atol : float
        Done when norm(f - A u) <= max(rtol norm(f), atol).
    maxiter : int
        Most cycles.

    Returns
    -------
    Outcome
        ROUNDING where a cycle no longer reduces the residual.
    """
    with device.active():
        make = functools.partial(DeviceHierarchy, device, stencil, dtype)
        key = stencil, np.dtype(dtype), tuning.of_device(device)
        hierarchy = device.storage().get(_PURPOSE, key, _KEPT, make)
        with locks.sole(hierarchy, hierarchy.again) as own:
            return _cycles(own, f, u, rtol, atol, maxiter)


def _cycles(
    hierarchy: DeviceHierarchy, f: Any, u: Any, rtol: float, atol: float, maxiter: int
) -> Outcome:
    hierarchy.prepare()
    residual, whole = hierarchy.norms(f, u)
    if whole == 0.0:
        hierarchy.zero(u)
        return Outcome(CONVERGED, 0, 0.0, 0.0)
    bound = max(rtol * whole, atol)
    done, stalled = 0, False
    while math.isfinite(residual) and residual > bound and done < maxiter and not stalled:
        hierarchy.cycle(f, u)
        done += 1
        before, residual = residual, hierarchy.residual()
        stalled = residual > _STALLED * before and done > 1
        # What the pass found on its way is the residual but for the rounding of its own values.
        if not residual > bound or stalled or done == maxiter:
            residual = hierarchy.norms(f, u)[0]
            stalled = stalled or (done > 1 and residual > _STALLED * before)
    if not math.isfinite(residual):
        return Outcome(NOT_FINITE, done, residual, whole)
    ended = ROUNDING if stalled else LIMIT
    return Outcome(CONVERGED if residual <= bound else ended, done, residual, whole)
