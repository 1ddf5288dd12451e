"""Row partitions, the parts of a solve on devices, and what parts copy from one another.

A grid is cut into slabs of whole rows (2-D) or planes (3-D), one for each device. A device holds
its own rows and, on each side where another slab follows, ``depth`` rows of it: the halo.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.kernels import Launch

Range = tuple[int, int]
Bound = list[Any]  # kernel, grid, block, arguments
# The numbers of the part that takes something and of the one that has it, how many bytes that are,
# and where they begin in the buffers of both.
Copy = tuple[int, int, int, int, int]
Step = tuple[Sequence[Sequence[Bound]], Sequence[Any]]  # launches of each part, then copies
# Steps of which a part gets the launches before the others do, an even number. Far fewer than a
# device's queue has room for: where it is full, the host waits, and what it waits for must have
# been started.
_TOGETHER = 8
_OFTEN = 2  # times that launches were started before they become a graph, which takes long


def split(rows: int, parts: int, least: int = 1) -> list[Range]:
    """Cut rows into contiguous parts of sizes that differ by at most one, longer ones first.

    Each part is given by its first row and the row after its last. Where there are too few rows for
    ``least`` in each, there are fewer parts than wanted, at least one.

    Examples
    --------
    >>> split(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    >>> split(10, 4, least=4)
    [(0, 5), (5, 10)]
    """
    parts = max(1, min(parts, rows // least))
    size, longer = divmod(rows, parts)
    cuts = [part * size + min(part, longer) for part in range(parts + 1)]
    return list(itertools.pairwise(cuts))


def widened(ranges: Sequence[Range], depth: int) -> list[Range]:
    """Parts' own rows with ``depth`` more on each side, where the grid has them: what they hold.

    A halo comes from one neighbour alone where no part has fewer than ``depth`` rows.
    """
    rows = ranges[-1][1]
    return [(max(begin - depth, 0), min(end + depth, rows)) for begin, end in ranges]


def range_copies(
    written: Sequence[Range],
    needed: Sequence[Range],
    row_bytes: int,
    origins: Sequence[int] | None = None,
) -> list[Copy]:
    """What parts take of each other: each has written a range of rows, and needs another one.

    ``origins``: the row that a part's buffer begins with. Default: buffers have all rows.
    """
    origins = origins or [0] * len(needed)
    copies = []
    for target, (low, high) in enumerate(needed):
        for source, (begin, end) in enumerate(written):
            first, last = max(low, begin), min(high, end)
            if source != target and first < last:
                places = [(first - origins[part]) * row_bytes for part in (target, source)]
                copies.append((target, source, (last - first) * row_bytes, *places))
    return copies


Moved = tuple[str, Sequence[Copy]]  # a buffer's name, and what parts copy of each other's


class Part(Workspace):
    """One device's share of a solve: its buffers by name, and launches on them.

    One that is ``alone`` runs in the device's default queue and inside its `active`, which the
    caller has entered; others in a stream of their own. ``numbers`` are those that launches name.
    """

    def __init__(self, device: Device, alone: bool) -> None:
        stream = None
        if not alone:
            with device.active():
                device.synchronize()  # new memory may be in use in the default queue
                stream = device.new_stream()
        super().__init__(device, "solves", stream)
        self.numbers: dict[str, int] = {}
        self.unbuilt: list[tuple[Bound, Launch]] = []
        self._repeated: dict[tuple[int, ...], list[Any]] = {}

    def bind(self, launch: Launch, **others: Any) -> Bound:
        """A launch on this part's buffers and numbers, for `start`.

        ``others`` gives some of the launch's names another meaning: that of another name, or a
        buffer or a number.
        """
        bound = [None, launch.grid, launch.block, self.values(launch, **others)]
        self.unbuilt.append((bound, launch))
        return bound

    def build(self) -> None:
        """Build what was bound so far, its files at the same time."""
        unbuilt, self.unbuilt = self.unbuilt, []
        with self.active():
            self.device.compile_ahead([(launch.source, launch.defines) for _, launch in unbuilt])
            for bound, launch in unbuilt:
                bound[0] = self.device.build(launch.source, launch.kernel, launch.defines)

    def values(self, launch: Launch, **others: Any) -> list[Any]:
        """The arguments of a launch; see `bind`."""
        known = self.numbers | self.buffers
        named = [others.get(argument, argument) for argument in launch.arguments]
        return [known[name] if type(name) is str else name for name in named]

    def start(self, *launches: Bound) -> None:
        """Start launches in this part's stream; its device is active."""
        if self.unbuilt:
            self.build()
        for bound in launches:
            self.device.launch(*bound, 0, self.stream)

    def repeat(self, *launches: Bound) -> None:
        """As `start` of launches in a stream of their own, which come again and again: then the
        host starts them at once, for one by one it may be slower than several devices."""
        key = tuple(map(id, launches))
        known = self._repeated.setdefault(key, [0, launches, None])  # which keeps those ids
        if known[0] == _OFTEN:
            known[2] = self.device.graph(self.stream, partial(self.start, *launches))
        known[0] += 1
        if known[2] is None:
            self.start(*launches)
        else:
            known[2].launch()

    def is_aligned(self, *names: str) -> bool:
        """Whether 16 divides the address of each of these buffers."""
        found = (self.buffers[name] for name in names)
        return all(type(buffer) is not int or buffer % 16 == 0 for buffer in found)


class Exchange:
    """Copies between parts; nothing where there is one part alone.

    `run` starts launches on all parts, then copies. Where the parts' devices meet
    (`hetero.devices.peers`), each copies to the others' memory what they need of it, by a launch
    of its own, and the host does not wait. Elsewhere the host waits for all launches, and each
    part copies from the others. Either way, what a part starts next finds what came, and no part is
    more than one `run` with copies ahead of another: two buffers used in turn need nothing more.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        meets = len(parts) > 1 and peers.meet([part.device for part in parts])
        self.meeting = peers.Meeting(parts) if meets else None

    def launches(self, plans: Iterable[Launch], **others: Any) -> list[list[Bound]]:
        """A launch of each part, for `run`; see `Part.bind`."""
        each = zip(self.parts, plans, strict=True)
        return [[part.bind(plan, **others)] for part, plan in each]

    def bind(self, *groups: Moved) -> list[Any]:
        """Copies for `run`: for each part its launch to the others, or what it copies of them."""
        if len(self.parts) == 1:
            return []
        each: list[list[Any]] = [[] for _ in self.parts]
        for name, copies in groups:
            for to, of, nbytes, *offsets in copies:
                target, source = self.parts[to], self.parts[of]
                here, there = target.buffers[name], source.buffers[name]
                if self.meeting is None:
                    moved = here, source.device, there, nbytes, *offsets, target.stream
                    each[to].append(moved)
                else:
                    each[of].append((here + offsets[0], there + offsets[1], nbytes))
        if self.meeting is None:
            return each
        launches = map(self.meeting.launch, range(len(each)), each)
        return [
            part.bind(launch, **buffers)
            for part, (launch, buffers) in zip(self.parts, launches, strict=True)
        ]

    def run(self, launches: Sequence[Sequence[Bound]], moves: Sequence[Any] = ()) -> None:
        """Start each part's launches, then copy; what they start next waits for the copies."""
        self.run_all([(launches, moves)], often=False)

    def run_all(self, steps: Iterable[Step], often: bool = True) -> None:
        """As `run` of each step, which is asked for when those before have begun: it may begin
        something itself. Where devices meet, a part gets the launches of some steps one after the
        other: they wait for each other's anyway, and changing the device takes the host longer than
        a launch. No step of theirs begins anything itself; ``often``: see `Part.repeat`."""
        if len(self.parts) == 1:
            for launches, _ in steps:
                self.parts[0].start(*launches[0])
            return
        meet, steps = self.meeting is not None, iter(steps)
        while some := [*itertools.islice(steps, _TOGETHER if meet else 1)]:
            self.build()
            for number, part in enumerate(self.parts):
                own: list[Bound] = []
                for launches, moves in some:
                    own += launches[number]
                    own += moves[number : number + 1] if meet else ()
                with part.active():
                    (part.repeat if meet and often else part.start)(*own)
            if meet or not (moves := some[0][1]):
                continue
            self.synchronize()
            for part, copies in zip(self.parts, moves, strict=True):
                with part.active():
                    for copy in copies:
                        part.device.copy_from_peer(*copy)

    def build(self) -> None:
        """Build what was bound so far: no device is to wait while the host compiles for another."""
        for part in self.parts:
            if part.unbuilt:
                part.build()

    def check(self) -> None:
        """Raise DeviceError if a device waited too long for another one; waits for all."""
        if self.meeting is not None:
            self.meeting.check()

    def share_sums(self, blocks: Sequence[int], sums: int, *names: str) -> list[Moved]:
        """Make room in each part for the block sums of all parts, one after the other.

        Returns the copies that bring them together, for each name. Each part has ``blocks`` of
        them, each with ``sums`` doubles; launches know the numbers "blocks_before", those of all
        parts, and "first_block", those of the parts before.
        """
        begins = [0, *itertools.accumulate(blocks)]
        for part, begin in zip(self.parts, begins, strict=False):
            part.allocate(8 * sums * begins[-1], *names)
            part.numbers |= {"blocks_before": begins[-1], "first_block": begin}
        own, needed = list(itertools.pairwise(begins)), [(0, begins[-1])] * len(blocks)
        return [(name, range_copies(own, needed, 8 * sums)) for name in names]

    def total(self, name: str, blocks: Sequence[int], sums: int = 1) -> list[float]:
        """Add up block sums: of each part ``blocks`` rows of ``sums`` doubles; waits for them."""
        each = zip(self.parts, blocks, strict=True)
        rows = [part.download(name, np.empty((count, sums))) for part, count in each]
        with np.errstate(over="ignore", invalid="ignore"):
            return np.concatenate(rows).sum(axis=0).tolist()

    def at_once(self, task: Callable[[int], object], nbytes: int) -> None:
        """``task(number)`` for all parts, which copy ``nbytes`` together; see `peers.run`."""
        tasks = [partial(task, number) for number in range(len(self.parts))]
        peers.run([part.device for part in self.parts], tasks, nbytes // len(tasks))

    def synchronize(self) -> None:
        """Wait for all that the parts' devices were given to do."""
        for part in self.parts:
            with part.active():
                part.device.synchronize()
