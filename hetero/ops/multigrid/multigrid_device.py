"""-div grad u = f on devices by geometric multigrid: the passes of `grids.cycle` as launches.

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
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.kernels.common.launch import REAL, Launch
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.kernels.multigrid import transfers
from hetero.kernels.multigrid.plan import DOWN, DOWN_FROM_ZERO
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Exchange, Part
from hetero.ops.linear_systems.partition import range_copies
from hetero.ops.linear_systems.systems import Outcome, Stencil
from hetero.ops.multigrid import grids

Vector = Sequence[Any]  # a buffer of each device
Share = tuple[int, int]  # number, of how many
_PURPOSE, _SHARED = "multigrid", "shared multigrid"
_KEPT = 2  # hierarchies in each context
_SUM_BLOCKS = 1024
_SUM_THREADS = 128


class Level:
    """One grid on one device: how a pass over it is launched.

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
        self, part: Memory, number: int, grid: grids.Grid, coarse: grids.Grid, share: Share
    ) -> None:
        device, dtype = part.device, part.dtype
        self.grid, self.coarse = grid, coarse
        target = device.target
        target = target._replace(multiprocessors=share[1] * target.multiprocessors)
        self.plan = plan_multigrid.plan_sweep(grid.shape, coarse.shape, dtype.name, target)
        axes = dict(zip("zyx", grid.transfers or (), strict=True))
        most = dict(zip("zyx", self.plan.tile, strict=True))
        most["z"] = min(most["z"], max(1, coarse.shape[0] // share[1]))  # a tile for each
        tiles = {axis: transfers.tiles(t, most[axis]) for axis, t in axes.items()}
        tiles["z"] = self._cut(tiles["z"], axes["z"], share)
        self.tiles = tuple(map(len, tiles.values()))
        self.tables = {axis: part.constant(t, np.int32) for axis, t in tiles.items()}
        for name in plan_multigrid.TABLES:
            axis, field = name.split()
            values = getattr(axes[axis], field)
            integers = np.int32 if values.dtype == np.int32 else None
            self.tables[name] = part.constant(values, integers)
        self.blocks = math.prod(self.tiles)
        self.tables["sums"] = part.allocate(8 * self.blocks, f"sums{number}")
        part.vector(grid.points, f"work{number}")
        if number:
            part.vector(grid.points, f"u{number}", f"f{number}")

    def _cut(self, tiles: np.ndarray, transfer: transfers.Transfer, share: Share) -> np.ndarray:
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


class Memory(Part):
    """One device's grids, with their vectors by name, such as "u1": of a grid, or its share.

    The finest grid's "u0" and "f0" are there on several devices alone, else the caller's.
    """

    def __init__(
        self, device: Device, all_grids: list[grids.Grid], dtype: np.dtype, share: Share
    ) -> None:
        super().__init__(device, alone=True)
        self.purpose, self.dtype = _PURPOSE, dtype
        self._bound: dict[tuple[grids.Pass, bool], Bound] = {}
        room = plan_multigrid.coarse_points(dtype.name, device.shared_limit)
        left = [sum(g.points for g in all_grids[i:]) for i in range(len(all_grids))]
        # The finest has a pass of its own, that starts from u and gives the residual.
        small = next(i for i, points in enumerate(left) if points <= room and (i or len(left) == 1))
        self.levels = [
            Level(self, i, *pair, share if grids.is_shared(pair[0].shape) else (0, 1))
            for i, pair in enumerate(itertools.pairwise(all_grids[: small + 1]))
        ]
        self._cycled = self._coarse(small, all_grids[small:], room)
        finest = all_grids[0]
        blocks = self.sum_blocks = min(_SUM_BLOCKS, finest.shape[0] * finest.shape[1])
        self.allocate(16 * blocks, "squares")
        whole = 0, finest.shape[0]
        fine = self.levels[0] if self.levels else None
        self.writes, self.reads = (fine.writes, fine.reads) if fine else (whole, whole)
        rows = [z * finest.shape[1] for z in self.writes]
        self._squares = Launch(
            "multigrid_squares.cu",
            "squares",
            (("REAL", REAL[dtype.name]), ("THREADS", _SUM_THREADS)),
            blocks,
            _SUM_THREADS,
            ("u", "f", "squares", *finest.shape, *finest.weights, *rows, blocks),
        )

    def vector(self, points: int, *names: str) -> None:
        """Room for vectors."""
        self.allocate(points * self.dtype.itemsize, *names)

    def constant(self, array: Any, dtype: Any = None) -> Any:
        """A buffer with a table."""
        return self.upload(np.ascontiguousarray(array, dtype or self.dtype))

    def _coarse(self, number: int, levels: list[grids.Grid], pool: int) -> Launch:
        """The launch that cycles over all the small grids from zero, by one block."""
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
        self.vector(points, "scratch f", "scratch r")
        tables = [self.constant(rows, np.int32), self.constant([g.weights for g in levels])]
        for kept, others in ((lefts, weights), (firsts, taps)):
            tables += [self.constant(np.concatenate([[0], *kept])[1:], np.int32)]
            tables += [self.constant(np.concatenate([np.zeros(0), *map(np.ravel, others)]))]
        tables.append(self.constant(grids.coarsest_inverse(levels[-1])))
        if number:
            self.vector(levels[0].points, f"u{number}", f"f{number}")
        threads = min(1024, self.device.block_limit)
        defines = (("REAL", REAL[self.dtype.name]), ("THREADS", threads), ("POOL", pool))
        arguments = ("f", "u", "scratch f", "scratch r", *tables, len(levels), "omega", "symmetric")
        return Launch("multigrid_coarse.cu", "coarse_cycle", defines, 1, threads, arguments)

    def bind_pass(self, f: Any, u: Any, symmetric: bool, step: grids.Pass) -> Bound:
        """A pass of a cycle; multigrid.cu explains it. Those below the finest grid stay bound."""
        if step[0] == 0:
            return self._bind_pass(f, u, symmetric, step)
        if (step, symmetric) not in self._bound:
            self._bound[step, symmetric] = self._bind_pass(f, u, symmetric, step)
        return self._bound[step, symmetric]

    def _bind_pass(self, f: Any, u: Any, symmetric: bool, step: grids.Pass) -> Bound:
        number, first, mode = step
        omega = grids.OMEGA[symmetric]
        here = {"f": f, "u": u} if number == 0 else {"f": f"f{number}", "u": f"u{number}"}
        if mode == grids.SOLVED:
            return self.bind(self._cycled, omega=omega, symmetric=int(symmetric), **here)
        level, work = self.levels[number], self.buffers[f"work{number}"]
        if mode in (DOWN, DOWN_FROM_ZERO):
            vectors = here | {"out": work, "coarse": f"f{number + 1}"}
        else:
            vectors = here | {"u": work, "out": here["u"], "coarse": f"u{number + 1}"}
        # A caller's buffer may begin anywhere; an OpenCL buffer has no address to read, and is ours
        # or whole.
        read = [self.buffers[v] if type(v) is str else v for v in (vectors["u"], vectors["f"])]
        pair = 2 * self.dtype.itemsize
        whole = all(buffer % pair == 0 for buffer in read if type(buffer) is int)
        aligned = level.grid.shape[2] % 2 == 0 and whole
        launch = level.plan.launch(level.grid.weights, level.tiles, omega, aligned, first, mode)
        return self.bind(launch, **level.tables, **vectors)

    def bind_squares(self, f: Any, u: Any) -> Bound:
        """What gives the "squares" of f - A u and of f, by blocks."""
        return self.bind(self._squares, f=f, u=u)

    def roots(self, name: str, shape: tuple[int, int]) -> tuple[float, ...]:
        """Roots of sums over blocks, a column each; waits for them."""
        with np.errstate(all="ignore"):
            return tuple(np.sqrt(self.download(name, np.empty(shape)).sum(axis=0)).tolist())


class DeviceHierarchy(grids.Hierarchy):
    """The grids of one stencil on one device, active here and in all methods, or on several.

    A vector is a sequence of buffers, one of each device. On several devices what a cycle improves
    is "u0" of the memories, which is exchanged by this name, for "f0".

    Attributes
    ----------
    memories : list of Memory
    exchange : Exchange
    cuts : list of (int, int)
        Each device's own rows, or planes, of the finest grid.
    halo : list of Copy
        What brings each device the rows of "f0" that it reads beyond its own.
    """

    def __init__(self, devices: Sequence[Device], stencil: Stencil, dtype: Any) -> None:
        super().__init__()
        self._dtype, several = np.dtype(dtype), len(devices) > 1
        self.grids = grids.hierarchy(stencil, grids.coarsest(devices[0].kind))
        self.memories: list[Memory] = []
        for number, device in enumerate(devices):
            with device.active() if several else contextlib.nullcontext():
                memory = Memory(device, self.grids, self._dtype, (number, len(devices)))
                if several:  # small uploads waited for nothing
                    memory.vector(self.grids[0].points, "u0", "f0")
                    device.synchronize()
                    memory.stream = device.new_stream()
            self.memories.append(memory)
        self.exchange = Exchange(self.memories)
        self.cuts = [memory.writes for memory in self.memories]
        self._reads = [memory.reads for memory in self.memories]
        self._row_bytes = math.prod(self.grids[0].shape[1:]) * self._dtype.itemsize
        self.halo = range_copies(self.cuts, self._reads, self._row_bytes)
        # The levels that are divided, and what goes to who reads it after a pass down, or up.
        divided = [grids.is_shared(grid.shape) for grid in self.grids].count(True) if several else 0
        levels = list(zip(*(memory.levels for memory in self.memories), strict=True))[:divided]
        self._moves = [self._bind_moves(number, levels) for number in range(len(levels))]
        self.exchange.build()

    def _bind_moves(self, number: int, levels: list[tuple[Level, ...]]) -> tuple[list, list]:
        """Copies after a pass over a divided level, on the way down and on the way up."""
        each, item = levels[number], self._dtype.itemsize
        own, read = [one.writes for one in each], [one.reads for one in each]
        coarse = each[0].coarse.shape
        coarse_own = [one.coarse_writes for one in each]
        coarse_read = [(0, coarse[0])] * len(each)
        if number + 1 < len(levels):
            coarse_read = [one.reads for one in levels[number + 1]]
        needed = [one.coarse_reads for one in levels[number - 1]] if number else read

        def moved(name: str, shape: tuple[int, ...], written: Any, needed: Any) -> BufferCopies:
            row_bytes = math.prod(shape[1:]) * item
            return BufferCopies(range_copies(written, needed, row_bytes), name, name)

        fine = each[0].grid.shape
        down = self.exchange.bind(
            moved(f"work{number}", fine, own, read),
            moved(f"f{number + 1}", coarse, coarse_own, coarse_read),
        )
        return down, self.exchange.bind(moved(f"u{number}", fine, own, needed))

    def bound(self, f: Vector, u: Vector, symmetric: bool = False) -> Callable[[], object]:
        divided = len(self._moves)
        steps = grids.cycle(len(self.memories[0].levels), symmetric)
        # Of the grids that are not divided, each device makes all passes before the next one does.
        turns = [[step] for step in steps]
        turns[divided : len(turns) - divided] = [steps[divided : len(steps) - divided]]
        runs = []
        for turn in turns:
            launches = [
                [memory.bind_pass(f[k], u[k], symmetric, step) for step in turn]
                for k, memory in enumerate(self.memories)
            ]
            number, _, mode = turn[0]
            is_up = mode not in (DOWN, DOWN_FROM_ZERO)
            runs.append((launches, self._moves[number][is_up] if number < divided else ()))

        def run() -> None:
            for launches, moves in runs:
                self.exchange.run(launches, moves)

        if symmetric or len(self.memories) == 1:
            return run
        return functools.partial(self.exchange.repeat, "cycle", run)

    def files(self) -> list[tuple[str, Any]]:
        """What is compiled for the launches that were bound last."""
        return [(launch.source, launch.defines) for _, launch in self.memories[0].unbuilt]

    def norms(self, f: Vector, u: Vector) -> tuple[float, float]:
        self.exchange.check()
        for number, memory in enumerate(self.memories):
            with memory.active():
                memory.start(memory.bind_squares(f[number], u[number]))
        found = (memory.roots("squares", (memory.sum_blocks, 2)) for memory in self.memories)
        of_u, of_f = zip(*found, strict=True)
        return math.hypot(*of_u), math.hypot(*of_f)

    def residual(self) -> float:
        if not self.memories[0].levels:
            return math.nan
        # Of devices that did not meet it is the one before: the solve stalls, and `norms` looks.
        sums = [m.roots("sums0", (m.levels[0].blocks, 1))[0] for m in self.memories]
        return math.hypot(*sums)

    def zero(self, u: Vector) -> None:
        nbytes = self.grids[0].points * self._dtype.itemsize
        for memory, buffer in zip(self.memories, u, strict=True):
            with memory.active():
                memory.device.fill(buffer, nbytes, stream=memory.stream)

    def vector(self, name: str) -> Vector:
        """The buffers of a name."""
        return [memory.buffers[name] for memory in self.memories]

    def load(self, name: str, values: np.ndarray | None) -> None:
        """Bring each device what it reads of a grid; zeros without values."""
        if values is None:
            self.zero(self.vector(name))
            return

        def load(number: int) -> None:
            begin, end = self._reads[number]
            rows = np.ascontiguousarray(values[begin:end], self._dtype)
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
        Several are of one kind, and a device may come several times; then the finest grid is one
        that `grids.is_shared`.
    f, u : contiguous buffers of ``dtype``, or of several devices ndarrays of ``stencil.shape``
        ``u`` is the start and gets the result. ``from_zero``: the start is zero, whatever an
        array holds.
    """
    limits = {"rtol": rtol, "atol": atol, "maxiter": maxiter}
    if len(devices) > 1:
        with meetings.turn(devices), held(devices, stencil, np.dtype(dtype)) as own:
            own.load("f0", f)
            own.load("u0", None if from_zero else u)
            outcome = own.solve(own.vector("f0"), own.vector("u0"), **limits)
            own.fetch("u0", u)
            return outcome
    (device,) = devices
    with device.active():
        make = functools.partial(DeviceHierarchy, devices, stencil, dtype)
        hierarchy = device.storage().get(_PURPOSE, (stencil, np.dtype(dtype)), _KEPT, make)
        with locks.sole(hierarchy, make) as own:
            return own.solve([f], [u], **limits)


@contextlib.contextmanager
def held(devices: Sequence[Device], stencil: Stencil, dtype: np.dtype) -> Iterator[DeviceHierarchy]:
    """A hierarchy on devices that have their turn, for this thread alone; kept unless one fails."""
    devices = devices[: grids.LEAST_PLANES // 2]
    another = functools.partial(DeviceHierarchy, devices, stencil, dtype)
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

    def __init__(self, held: list[DeviceHierarchy]) -> None:
        self.held = held

    def __del__(self) -> None:
        self.held.clear()


def _kept(
    devices: Sequence[Device], stencil: Stencil, dtype: np.dtype
) -> tuple[list[DeviceHierarchy], DeviceHierarchy]:
    """A hierarchy, and a list of it alone: kept for the next solve until that is cleared."""
    key = stencil, dtype, tuple(device.name for device in devices)
    with devices[0].active():
        hold = devices[0].storage().find(_SHARED, key)
    if hold is not None:
        with contextlib.suppress(IndexError):  # another thread may clear it
            return hold.held, hold.held[0]
    kept = [hierarchy := DeviceHierarchy(devices, stencil, dtype)]
    for device in dict.fromkeys(devices):
        with device.active():
            device.storage().put(_SHARED, key, _Hold(kept), 1)
    return kept, hierarchy
