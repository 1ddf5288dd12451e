"""-div grad u = f by geometric multigrid on several devices.

Fine grids are divided along their first axis. After each pass over one, the devices give each
other the rows that the next pass reads beyond their own. A vector lies at the same place on all
devices, which have room for the whole of it. Of the coarser grids each device makes the whole: that
takes no longer than on one, and nothing has to be sent back. Every point gets the same bits as on
one device.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.kernels.multigrid.plan import DOWN, DOWN_FROM_ZERO
from hetero.ops.linear_systems.exchange import BufferCopies, Exchange
from hetero.ops.linear_systems.partition import Range, range_copies
from hetero.ops.linear_systems.types import DeviceFailed, Outcome, Stencil
from hetero.ops.multigrid import grids, multigrid_device
from hetero.ops.multigrid.multigrid_device import DeviceHierarchy, Level, Memory

Vector = Sequence[Any]  # a buffer of each device
_PURPOSE = "shared multigrid"


class _Vectors:
    """u and f of one grid on all devices."""

    def __init__(self, each: Sequence[Any]) -> None:
        self.u, self.f = [one.u for one in each], [one.f for one in each]


class _Shared(_Vectors):
    """A grid that is divided; after a pass, what was written goes to who reads it next."""

    def __init__(
        self,
        number: int,
        each: Sequence[Level],
        coarser: Sequence[Level] | None,
        finer: Sequence[Level] | None,
        exchange: Exchange,
        itemsize: int,
    ) -> None:
        super().__init__(each)
        self.work = [one.work for one in each]
        self._each = each
        self._exchange = exchange
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
        def start(number: int) -> None:
            self._each[number].sweep(*(vector[number] for vector in vectors), mode=mode, **how)

        self._exchange.step(start, self._down if mode in (DOWN, DOWN_FROM_ZERO) else self._up)

    def residual(self) -> float:
        # Of devices that did not meet it is the one before: the solve stalls, and `norms` looks.
        return math.hypot(*(one.residual() for one in self._each))


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
                memory = Memory(
                    device, dtype
                )  # small uploads wait for nothing in the default queue
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
            _Shared(
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
        self.coarsest = _Vectors(below)
        self.cuts = [one.writes for one in levels[0]]
        row_bytes = math.prod(levels[0][0].grid.shape[1:]) * dtype.itemsize
        self.halo = range_copies(self.cuts, [one.reads for one in levels[0]], row_bytes)
        self._cycles, self._again = 0, None
        exchange.build()

    def cycle(self, f: Vector, u: Vector) -> None:
        """The second time as a graph of each device: the host would be slower than the devices."""
        if self._cycles == 1:
            self._again = self.exchange.recorded(lambda: super(SharedHierarchy, self).cycle(f, u))
        (self._again or functools.partial(super().cycle, f, u))()
        self._cycles += 1

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
        itemsize = self.memories[0].dtype.itemsize
        if values is None:
            self.zero([memory.buffers[name] for memory in self.memories])
            return

        def load(number: int) -> None:
            begin, end = self._each[number].levels[0].reads
            rows = values[begin:end]
            row_bytes = math.prod(values.shape[1:]) * itemsize
            self.memories[number].upload(
                np.ascontiguousarray(rows, self.memories[number].dtype), name, begin * row_bytes
            )

        self.exchange.at_once(load, values.nbytes)

    def fetch(self, name: str, out: np.ndarray) -> None:
        """Bring a grid to the host, each device's own part."""
        row_bytes = math.prod(out.shape[1:]) * out.itemsize

        def fetch(number: int) -> None:
            begin, end = self._each[number].levels[0].writes
            self.memories[number].download(name, out[begin:end], begin * row_bytes)

        self.exchange.at_once(fetch, out.nbytes)

    def synchronize(self) -> None:
        """Wait for all devices."""
        self.exchange.synchronize()


def solve(
    devices: Sequence[Device],
    stencil: Stencil,
    f: np.ndarray,
    u: np.ndarray,
    *,
    rtol: float,
    atol: float = 0.0,
    maxiter: int,
    from_zero: bool = False,
) -> Outcome:
    """Solve A u = f by cycles, of C-contiguous arrays of one dtype.

    Parameters
    ----------
    devices : sequence of Device
        Of one kind; a device may come several times.
    stencil : Stencil
        Where its finest grid is not divided (`grids.Grid.shared`), the first device makes all.
    f, u : ndarray of ``stencil.shape``
        ``u`` is the start and gets the result. ``from_zero``: the start is zero, whatever it holds.
    rtol, atol, maxiter
        As for `grids.Hierarchy.solve`.

    Raises
    ------
    DeviceFailed
        Without a saved iterate: there are few cycles.
    """
    if not grids.is_shared(stencil.shape):
        return _on_one(devices[0], stencil, f, u, from_zero, rtol=rtol, atol=atol, maxiter=maxiter)
    try:
        with meetings.turn(devices), held(devices, stencil, u.dtype) as own:
            own.load("f0", f)
            own.load("u0", None if from_zero else u)
            there = ([memory.buffers[name] for memory in own.memories] for name in ("f0", "u0"))
            outcome = own.solve(*there, rtol=rtol, atol=atol, maxiter=maxiter)
            own.fetch("u0", u)
            return outcome
    except DeviceError as error:
        raise DeviceFailed(error, None, 0) from error


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
                own.synchronize()
            raise


def _on_one(
    device: Device, stencil: Stencil, f: np.ndarray, u: np.ndarray, from_zero: bool, **limits: Any
) -> Outcome:
    """The solve on one device, from the host and back."""
    with device.active():
        (there, _f), (result, _u) = device.allocate(f.nbytes), device.allocate(u.nbytes)
        device.upload(f, there)
        if from_zero:
            device.fill(result, u.nbytes)
        else:
            device.upload(u, result)
        outcome = multigrid_device.solve(device, stencil, there, result, dtype=u.dtype, **limits)
        device.download(result, u)
    return outcome


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
        hold = devices[0].storage().find(_PURPOSE, key)
    if hold is not None:
        with contextlib.suppress(IndexError):  # another thread may clear it
            return hold.held, hold.held[0]
    kept = [hierarchy := SharedHierarchy(devices, stencil, dtype)]
    for device in dict.fromkeys(devices):
        with device.active():
            device.storage().put(_PURPOSE, key, _Hold(kept), 1)
    return kept, hierarchy
