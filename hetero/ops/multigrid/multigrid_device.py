"""-div grad u = f on devices by geometric multigrid: the passes of `grids.Hierarchy` as launches.

A grid costs two launches, one on the way down and one on the way up; all small grids together one.

Several devices divide the fine grids along their first axis. After each pass over one, they give
each other the rows that the next pass reads beyond their own. A vector lies at the same place on
all devices, which have room for the whole of it. Of the coarser grids each device makes the whole:
that takes no longer than on one, and nothing has to be sent back. Every point gets the same bits as
on one device.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero import locks
from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.kernels.common.launch import REAL, Launch
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.kernels.multigrid import transfers
from hetero.kernels.multigrid.plan import DOWN, DOWN_FROM_ZERO
from hetero.ops.linear_systems.exchange import BufferCopies, Exchange, Part
from hetero.ops.linear_systems.partition import Range, range_copies
from hetero.ops.linear_systems.types import Outcome, Stencil
from hetero.ops.multigrid import grids

Vector = Sequence[Any]  # a buffer of each device
_PURPOSE, _SHARED = "multigrid", "shared multigrid"
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
        whole = 0, finest.shape[0]
        fine = self.levels[0] if self.levels else None
        self.writes, self.reads = (fine.writes, fine.reads) if fine else (whole, whole)
        self._box = [*finest.shape, *finest.weights, *(z * finest.shape[1] for z in self.writes)]

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


class _Divided:
    """A grid of several devices; after a pass, what was written goes to who reads it next."""

    def __init__(
        self,
        number: int,
        each: Sequence[Level],
        coarser: Sequence[Level] | None,
        finer: Sequence[Level] | None,
        exchange: Exchange,
        itemsize: int,
    ) -> None:
        self.u, self.f, self.work = ([getattr(one, v) for one in each] for v in ("u", "f", "work"))
        self._each, self._exchange = each, exchange
        grid = each[0].grid
        assert grid.transfers is not None
        coarse = tuple(len(transfer.first) for transfer in grid.transfers)
        own, read = [one.writes for one in each], [one.reads for one in each]

        def moved(
            name: str, shape: tuple[int, ...], written: list[Range], needed: list[Range]
        ) -> BufferCopies:
            row_bytes = math.prod(shape[1:]) * itemsize
            return BufferCopies(range_copies(written, needed, row_bytes), name, name)

        coarse_own = [one.coarse_writes for one in each]
        coarse_read = [one.reads for one in coarser] if coarser else [(0, coarse[0])] * len(each)
        self._down = exchange.bind(
            moved(f"work{number}", grid.shape, own, read),
            moved(f"f{number + 1}", coarse, coarse_own, coarse_read),
        )
        needed = [one.coarse_reads for one in finer] if finer else read
        self._up = exchange.bind(moved(f"u{number}", grid.shape, own, needed))

    def sweep(self, *vectors: Vector, mode: int, **how: Any) -> None:
        """See `Level.sweep`."""

        def start(number: int) -> None:
            self._each[number].sweep(*(vector[number] for vector in vectors), mode=mode, **how)

        self._exchange.step(start, self._down if mode in (DOWN, DOWN_FROM_ZERO) else self._up)

    def residual(self) -> float:
        """See `Level.residual`."""
        # Of devices that did not meet it is the one before: the solve stalls, and `norms` looks.
        return math.hypot(*(one.residual() for one in self._each))


class _Whole(NamedTuple):
    """The first grid of which each device makes the whole."""

    u: Vector
    f: Vector


class SharedHierarchy(grids.Hierarchy):
    """The grids of one stencil on several devices; the finest is divided.

    A vector is a sequence of buffers, one of each device. What a cycle improves is "u0" of the
    memories, which is exchanged by this name.

    Attributes
    ----------
    memories : list of Memory
        With buffers "u0" and "f0" for the whole of the finest grid.
    exchange : Exchange
    cuts : list of (int, int)
        Each device's own rows, or planes, of the finest grid.
    halo : list of Copy
        What brings each device the rows of "f0" that it reads beyond its own.
    """

    def __init__(self, devices: Sequence[Device], stencil: Stencil, dtype: np.dtype) -> None:
        super().__init__()
        memories: list[Memory] = []
        self.memories = memories
        self._each: list[DeviceHierarchy] = []
        for number, device in enumerate(devices):
            with device.active():
                memory = Memory(device, dtype)  # whose small uploads wait for nothing
                share = number, len(devices)
                made = DeviceHierarchy(device, stencil, dtype, memory, share)
                memory.vector(made.grids[0].points, "u0", "f0")
                made.prepare()
                device.synchronize()
                memory.stream = device.new_stream()
            memories.append(memory)
            self._each.append(made)
        self.exchange = exchange = Exchange(memories)
        levels = list(zip(*(one.levels for one in self._each), strict=True))
        self._divided = sum(level[0].grid.shared for level in levels)
        self.levels = [
            _Divided(
                number,
                level,
                levels[number + 1] if number + 1 < self._divided else None,
                levels[number - 1] if number else None,
                exchange,
                dtype.itemsize,
            )
            for number, level in enumerate(levels[: self._divided])
        ]
        below = [*levels, [one.coarsest for one in self._each]][self._divided]
        self.coarsest = _Whole([one.u for one in below], [one.f for one in below])
        self.cuts = [one.writes for one in self._each]
        self._reads = [one.reads for one in self._each]
        self._row_bytes = math.prod(self._each[0].grids[0].shape[1:]) * dtype.itemsize
        self.halo = range_copies(self.cuts, self._reads, self._row_bytes)
        exchange.build()

    def cycle(self, f: Vector, u: Vector) -> None:
        self.exchange.repeat("cycle", functools.partial(super().cycle, f, u))

    def _cycle(self, number: int, f: Vector, u: Vector, **how: Any) -> None:
        if number < self._divided:
            super()._cycle(number, f, u, **how)
            return
        for memory, one, f_there, u_there in zip(self.memories, self._each, f, u, strict=True):
            with memory.active():
                one._cycle(number, f_there, u_there, **how)

    def files(self) -> list[tuple[str, Any]]:
        """What is compiled for `apply`."""
        return self._each[0].files()

    def norms(self, f: Vector, u: Vector) -> tuple[float, float]:
        self.exchange.check()
        for number, (memory, one) in enumerate(zip(self.memories, self._each, strict=True)):
            with memory.active():
                one.start_norms(f[number], u[number])
        of_u, of_f = zip(*(one.found_norms() for one in self._each), strict=True)
        return math.hypot(*of_u), math.hypot(*of_f)

    def zero(self, u: Vector) -> None:
        for number, (memory, one) in enumerate(zip(self.memories, self._each, strict=True)):
            with memory.active():
                one.zero(u[number])

    def load(self, name: str, values: np.ndarray | None) -> None:
        """Bring each device what it reads of a grid; zeros without values."""
        if values is None:
            self.zero([memory.buffers[name] for memory in self.memories])
            return

        def load(number: int) -> None:
            begin, end = self._reads[number]
            rows = np.ascontiguousarray(values[begin:end], self.memories[number].dtype)
            self.memories[number].upload(rows, name, begin * self._row_bytes)

        self.exchange.at_once(load, values.nbytes)

    def fetch(self, name: str, out: np.ndarray) -> None:
        """Bring a grid to the host, each device's own part."""

        def fetch(number: int) -> None:
            begin, end = self.cuts[number]
            self.memories[number].download(name, out[begin:end], begin * self._row_bytes)

        self.exchange.at_once(fetch, out.nbytes)


def solve(
    devices: Sequence[Device],
    stencil: Stencil,
    f: Any,
    u: Any,
    *,
    dtype: Any,
    rtol: float,
    atol: float = 0.0,
    maxiter: int,
    from_zero: bool = False,
) -> Outcome:
    """Solve A u = f by cycles; see `grids.Hierarchy.solve`.

    Parameters
    ----------
    devices : sequence of Device
        Several are of one kind, and a device may come several times; where the finest grid is not
        divided (`grids.is_shared`), the first makes all.
    f, u : contiguous buffers of ``dtype``, or of several devices ndarrays of ``stencil.shape``
        ``u`` is the start and gets the result. ``from_zero``: the start is zero, whatever an
        array holds.
    """
    limits = {"rtol": rtol, "atol": atol, "maxiter": maxiter}
    if len(devices) > 1:
        devices = devices if grids.is_shared(stencil.shape) else devices[:1]
        with meetings.turn(devices), held(devices, stencil, np.dtype(dtype)) as own:
            own.load("f0", f)
            own.load("u0", None if from_zero else u)
            there = ([memory.buffers[name] for memory in own.memories] for name in ("f0", "u0"))
            outcome = own.solve(*there, **limits)
            own.fetch("u0", u)
            return outcome
    (device,) = devices
    with device.active():
        make = functools.partial(DeviceHierarchy, device, stencil, dtype)
        hierarchy = device.storage().get(_PURPOSE, (stencil, np.dtype(dtype)), _KEPT, make)
        with locks.sole(hierarchy, make) as own:
            own.prepare()
            return own.solve(f, u, **limits)


@contextlib.contextmanager
def held(devices: Sequence[Device], stencil: Stencil, dtype: np.dtype) -> Iterator[SharedHierarchy]:
    """A hierarchy on devices that have their turn, for this thread alone; kept unless one fails."""
    devices = devices[: grids.LEAST_PLANES // 2]
    another = functools.partial(SharedHierarchy, devices, stencil, dtype)
    kept, hierarchy = _kept(devices, stencil, dtype)
    with locks.sole(hierarchy, another) as own:
        try:
            yield own
        except BaseException:
            kept.clear()  # devices may have met unequally often
            with contextlib.suppress(Exception):
                own.exchange.synchronize()
            raise


class _Hold:
    """What each device keeps of a hierarchy: where one lets go, the memory of all is free."""

    def __init__(self, held: list[SharedHierarchy]) -> None:
        self.held = held

    def __del__(self) -> None:
        self.held.clear()


def _kept(
    devices: Sequence[Device], stencil: Stencil, dtype: np.dtype
) -> tuple[list[SharedHierarchy], SharedHierarchy]:
    """A hierarchy, and a list of it alone: kept for the next solve until that is cleared."""
    key = stencil, dtype, tuple(device.name for device in devices)
    with devices[0].active():
        hold = devices[0].storage().find(_SHARED, key)
    if hold is not None:
        with contextlib.suppress(IndexError):  # another thread may clear it
            return hold.held, hold.held[0]
    kept = [hierarchy := SharedHierarchy(devices, stencil, dtype)]
    for device in dict.fromkeys(devices):
        with device.active():
            device.storage().put(_SHARED, key, _Hold(kept), 1)
    return kept, hierarchy
