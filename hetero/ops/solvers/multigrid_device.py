"""-div grad u = f on devices by geometric multigrid: the passes of a cycle as launches.

A grid costs two launches, one on the way down and one on the way up; the coarsest one.

Several devices divide the fine grids along their first axis. After each pass over one, they give
each other the rows that the next pass reads beyond their own. A vector lies at the same place on
all devices, which have room for the whole of it. Of the coarser grids each device makes the whole:
that takes no longer than on one, and nothing has to be sent back. Every point gets the same bits as
on one device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.kernels.common.launch import Launch, launch
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.ops.solvers import multigrid as grids
from hetero.ops.solvers.exchange import Bound, Exchange, Moved, Part, range_copies
from hetero.ops.solvers.systems import Outcome, Solve, Stencil

Vector = Sequence[Any]  # a buffer of each device
Share = tuple[int, int]  # number, of how many
Step = tuple[int, bool]  # of a cycle: the level, and whether it is on the way down
_PURPOSE = "multigrid"
_KEPT = 2  # hierarchies in each context
_COARSEST = 1024  # points below the finest grid, at most, that one block solves for
_SUM_BLOCKS = 1024


class Level:
    """One grid on one device: its tables, and the range of it that passes go over.

    Of several devices each has a ``share`` of the tiles along z. A pass reads ``reads`` and writes
    ``writes`` of the grid's z; of the coarser grid's, the way up reads ``coarse_reads`` and the way
    down writes ``coarse_writes``.
    """

    def __init__(
        self, part: Memory, number: int, grid: grids.Grid, coarse: grids.Grid, share: Share
    ) -> None:
        self.grid, self.coarse, (mine, shares) = grid, coarse, share
        target = part.device.target
        target = target._replace(multiprocessors=shares * target.multiprocessors)
        given = grid.shape, coarse.shape, grid.weights, part.dtype.name, target
        tile, self.launch = plan_multigrid.plan_sweep(*given)
        axes = dict(zip("zyx", grid.transfers or (), strict=True))
        most = dict(zip("zyx", tile, strict=True))
        most["z"] = min(most["z"], max(1, coarse.shape[0] // shares))  # a tile for each
        tiles = {axis: plan_multigrid.tiles(t, most[axis]) for axis, t in axes.items()}
        z, count = axes["z"], len(tiles["z"])
        own = tiles["z"] = tiles["z"][count * mine // shares : count * (mine + 1) // shares]
        self.writes = begin, end = int(own[0, 0]), int(own[-1, 1])
        self.coarse_writes = int(own[0, 3]), int(own[-1, 4])
        halo, last = plan_multigrid.HALO, max(end, int(own[:, 2].max()))
        self.reads = max(begin - halo, 0), min(last + halo, grid.shape[0])
        lefts = z.left[slice(*self.reads)]
        self.coarse_reads = max(int(lefts[0]), 0), min(int(lefts[-1]) + 2, len(z.first))
        self.tiles = tuple(map(len, tiles.values()))
        self.blocks = math.prod(self.tiles)
        self.tables = {axis: part.constant(t) for axis, t in tiles.items()}
        for name in plan_multigrid.TABLES:
            axis, field = name.split()
            self.tables[name] = part.constant(getattr(axes[axis], field))
        self.tables["sums"] = part.allocate(8 * self.blocks, f"sums{number}")
        part.vector(grid.points, f"work{number}", *([f"u{number}", f"f{number}"] if number else []))


class Memory(Part):
    """One device's grids, with their vectors by name, such as "u1": of a grid, or its share.

    The finest grid's "u0" and "f0" are there on several devices alone, else the caller's.
    """

    def __init__(
        self, device: Device, all_grids: list[grids.Grid], dtype: np.dtype, share: Share
    ) -> None:
        super().__init__(device, alone=share[1] == 1)
        self.purpose, self.dtype = _PURPOSE, dtype
        self._bound: dict[tuple[Step, bool], Bound] = {}
        self.levels = [
            Level(self, i, *pair, share if grids.is_shared(pair[0].shape) else (0, 1))
            for i, pair in enumerate(itertools.pairwise(all_grids))
        ]
        self._solved = self._coarsest(len(self.levels), all_grids[-1])
        finest = all_grids[0]
        if share[1] > 1:
            self.vector(finest.points, "u0", "f0")
        self.sum_blocks = min(_SUM_BLOCKS, finest.shape[0] * finest.shape[1])
        self.allocate(16 * self.sum_blocks, "squares")
        rows = self.levels[0].writes if self.levels else (0, finest.shape[0])
        where = finest.shape, finest.weights, dtype.name, device.target, rows, self.sum_blocks
        self.squares = plan_multigrid.squares(*where)

    def vector(self, points: int, *names: str) -> None:
        """Room for vectors."""
        self.allocate(points * self.dtype.itemsize, *names)

    def constant(self, array: Any) -> Any:
        """A buffer with a table of integers, or of numbers in the vectors' dtype."""
        is_real = np.asarray(array).dtype.kind == "f"
        return self.upload(np.ascontiguousarray(array, self.dtype if is_real else np.int32))

    def _coarsest(self, number: int, grid: grids.Grid) -> Launch:
        """The launch that solves on the coarsest grid, by one block."""
        stencil = Stencil(*grid[:2])
        sines = [along.ravel() for along in stencil.eigenvectors()[::-1]]
        values = functools.reduce(np.add.outer, stencil.eigenvalues())
        tables = self.constant(np.concatenate(sines)), self.constant(1.0 / values)
        if number:
            self.vector(grid.points, f"u{number}", f"f{number}")
        threads = min(_COARSEST, self.device.block_limit)
        where = "multigrid_coarse.cu", "solve_coarsest", self.dtype.name, 1, threads
        return launch(*where, ("f", "u", *tables, *grid.shape), THREADS=threads, POOL=_COARSEST)

    def bind_pass(self, f: Any, u: Any, symmetric: bool, step: Step) -> Bound:
        """A pass of a cycle; multigrid.cu explains it. Those below the finest grid stay bound."""
        if (bound := self._bound.get((step, symmetric))) is not None:
            return bound
        number, is_down = step
        here = {"f": f, "u": u} if number == 0 else {"f": f"f{number}", "u": f"u{number}"}
        if number == len(self.levels):
            bound = self.bind(self._solved, **here)
        else:
            level, work = self.levels[number], self.buffers[f"work{number}"]
            vectors = here | {"u": work, "out": here["u"], "coarse": f"u{number + 1}"}
            if is_down:
                vectors = here | {"out": work, "coarse": f"f{number + 1}"}
            # A caller's buffer may begin anywhere; an OpenCL buffer has no address to read, and is
            # ours or whole.
            read = [self.buffers[v] if type(v) is str else v for v in (vectors["u"], vectors["f"])]
            pair = 2 * self.dtype.itemsize
            whole = all(buffer % pair == 0 for buffer in read if type(buffer) is int)
            aligned = level.grid.shape[2] % 2 == 0 and whole
            down, up = grids.modes(number, symmetric)
            how = grids.OMEGA[symmetric], aligned, *((0, down) if is_down else (int(symmetric), up))
            bound = self.bind(level.launch(level.tiles, *how), **level.tables, **vectors)
        if number:
            self._bound[step, symmetric] = bound
        return bound


class DeviceHierarchy(grids.Hierarchy):
    """The grids of one stencil on one device, active here and in all methods, or on several.

    A vector is a sequence of buffers, one of each device. On several devices what a cycle improves
    is "u0" of the ``memories``, which is exchanged by this name, for "f0".
    """

    def __init__(self, devices: Sequence[Device], stencil: Stencil, dtype: Any) -> None:
        self._dtype, several = np.dtype(dtype), len(devices) > 1
        self.grids = grids.hierarchy(stencil, grids.coarsest(devices[0].kind), _COARSEST)
        self.memories: list[Memory] = []
        for number, device in enumerate(devices):
            with device.active():
                memory = Memory(device, self.grids, self._dtype, (number, len(devices)))
            self.memories.append(memory)
        self.exchange = Exchange(self.memories)
        # The levels that are divided, and what goes to who reads it after a pass down, or up.
        divided = [grids.is_shared(grid.shape) for grid in self.grids].count(True) if several else 0
        levels = list(zip(*(memory.levels for memory in self.memories), strict=True))[:divided]
        self._moves = [self._bind_moves(number, levels) for number in range(len(levels))]

    def _row_bytes(self, grid: grids.Grid) -> int:
        return math.prod(grid.shape[1:]) * self._dtype.itemsize

    def _bind_moves(self, number: int, levels: list[tuple[Level, ...]]) -> tuple[list, list]:
        """Copies after a pass over a divided level, on the way down and on the way up."""
        each, fine, coarse = levels[number], levels[number][0].grid, levels[number][0].coarse
        own, read = [one.writes for one in each], [one.reads for one in each]
        written_below = [one.coarse_writes for one in each]
        read_below = [(0, coarse.shape[0])] * len(each)
        if number + 1 < len(levels):
            read_below = [one.reads for one in levels[number + 1]]
        read_above = [one.coarse_reads for one in levels[number - 1]] if number else read

        def moved(name: str, grid: grids.Grid, written: Any, needed: Any) -> Moved:
            return name, range_copies(written, needed, self._row_bytes(grid))

        down = self.exchange.bind(
            moved(f"work{number}", fine, own, read),
            moved(f"f{number + 1}", coarse, written_below, read_below),
        )
        return down, self.exchange.bind(moved(f"u{number}", fine, own, read_above))

    def bound(self, f: Vector, u: Vector, symmetric: bool = False) -> Callable[[], object]:
        divided, last = len(self._moves), len(self.memories[0].levels)
        steps = [(number, True) for number in range(last + 1)]
        steps += [(number, False) for number in reversed(range(last))]
        # Of the grids that are not divided, each device makes all passes before the next one does.
        turns = [[step] for step in steps]
        turns[divided : len(turns) - divided] = [steps[divided : len(steps) - divided]]
        runs, exchange = [], self.exchange  # not self, which keeps what is bound
        for turn in turns:
            launches = [
                [memory.bind_pass(f[k], u[k], symmetric, step) for step in turn]
                for k, memory in enumerate(self.memories)
            ]
            number, is_down = turn[0]
            down, up = self._moves[number] if number < divided else ((), ())
            runs.append((launches, down if is_down else up))

        def run() -> None:
            for launches, moves in runs:
                exchange.run(launches, moves)

        return run

    def norms(self, f: Vector, u: Vector) -> tuple[float, float]:
        self.exchange.check()
        each = zip(self.memories, f, u, strict=True)
        self.exchange.run([[m.bind(m.squares, f=own, u=other)] for m, own, other in each])
        residual, whole = self.exchange.total("squares", [m.sum_blocks for m in self.memories], 2)
        return math.sqrt(residual), math.sqrt(whole)

    def residual(self) -> float:
        if not self.memories[0].levels:
            return math.nan
        # Of devices that did not meet it is the one before: the solve stalls, and `norms` looks.
        blocks = [memory.levels[0].blocks for memory in self.memories]
        return math.sqrt(*self.exchange.total("sums0", blocks))

    def solve_shared(self, asked: Solve, f: np.ndarray, u: np.ndarray) -> Outcome:
        """`solve` on several devices, of arrays of the stencil's shape."""
        right, start = ([m.buffers[name] for m in self.memories] for name in ("f0", "u0"))
        row_bytes, given = self._row_bytes(self.grids[0]), {"f0": f}
        if not asked.from_zero:
            given["u0"] = u

        def load(number: int) -> None:
            memory = self.memories[number]
            begin, end = memory.levels[0].reads
            with memory.active():
                memory.device.fill(start[number], self.grids[0].points * self._dtype.itemsize)
                for name, values in given.items():
                    rows = np.ascontiguousarray(values[begin:end], self._dtype)
                    memory.upload(rows, name, begin * row_bytes)

        def fetch(number: int) -> None:
            begin, end = self.memories[number].levels[0].writes
            self.memories[number].download("u0", u[begin:end], begin * row_bytes)

        self.exchange.at_once(load, len(given) * f.nbytes)
        outcome = self.solve(right, start, asked.rtol, asked.maxiter)
        self.exchange.at_once(fetch, u.nbytes)
        return outcome


def solve(devices: Sequence[Device], asked: Solve, f: Any, u: Any, dtype: Any) -> Outcome:
    """Solve A u = f by cycles; see `grids.Hierarchy.solve`.

    Several devices are of one kind, and one may come several times; then the grid is one that
    `grids.is_shared`. ``f`` and ``u``, which is the start unless that is zero and gets the result,
    are contiguous buffers of ``dtype``, or of several devices arrays of the stencil's shape. The
    first one keeps the hierarchy for the next solve, until it lets go or one fails.
    """
    several, devices = len(devices) > 1, devices[: grids.LEAST_PLANES // 2]
    key = asked.system, np.dtype(dtype), tuple(device.name for device in devices)
    make = functools.partial(DeviceHierarchy, devices, *key[:2])
    with peers.turn(devices):
        with devices[0].active():
            storage = devices[0].storage()
        with storage.borrowed(_PURPOSE, key, _KEPT, make) as hierarchy:
            if several:
                return hierarchy.solve_shared(asked, f, u)
            return hierarchy.solve([f], [u], asked.rtol, asked.maxiter)
