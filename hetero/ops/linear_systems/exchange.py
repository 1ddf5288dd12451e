"""The parts of a solve on one or several devices, and what they copy from one another."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero.devices import at_once, meetings
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels import Launch
from hetero.ops.linear_systems.partition import Copy, gather_copies

Bound = list[Any]  # kernel, grid, block, arguments
_AT_ONCE = 8  # steps of one part before those of the next
_OFTEN = 2  # times that steps were started before they become a graph, which takes as long as 20
log = logging.getLogger("hetero")


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

    def is_aligned(self, *names: str) -> bool:
        """Whether 16 divides the address of each of these buffers."""
        found = (self.buffers[name] for name in names)
        return all(type(buffer) is not int or buffer % 16 == 0 for buffer in found)


class BufferCopies(NamedTuple):
    """Copies from one buffer of some parts to another of others, both by name."""

    copies: Sequence[Copy]
    into: str
    out_of: str


class Exchange:
    """Copies between parts that do not wait for the host; nothing where there is one part alone.

    `run` starts launches on all parts, then copies. Where the parts' devices meet
    (`hetero.devices.meetings`), each copies to the others' memory what they need of it, by a launch
    of its own. Elsewhere each copies from the others, once events tell that all have started
    what writes these bytes. Either way, what a part starts next finds what came, and no part is
    more than one `run` with copies ahead of another: two buffers used in turn need nothing more.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._ready: list[Any] = [None] * len(parts)
        self._queue: list[tuple[Sequence[Sequence[Bound]], Sequence[Any]]] | None = None
        self._seen: dict[Any, tuple[int, Callable[[], None] | None, Any]] = {}
        meets = len(parts) > 1 and meetings.trusted([part.device for part in parts])
        self.meeting = meetings.Meeting(parts) if meets else None

    def bind(self, *groups: BufferCopies) -> list[Any]:
        """Copies for `run`: for each part its launch to the others, or what it copies of them."""
        if len(self.parts) == 1:
            return []
        each: list[list[Any]] = [[] for _ in self.parts]
        for copies, into, out_of in groups:
            for copy in copies:
                target, source = self.parts[copy.target], self.parts[copy.source]
                here, there = target.buffers[into], source.buffers[out_of]
                if self.meeting is None:
                    moved = here, source.device, there, *copy[2:], target.stream
                    each[copy.target].append(moved)
                else:
                    ends = here + copy.target_offset, there + copy.source_offset
                    each[copy.source].append((*ends, copy.nbytes))
        if self.meeting is None:
            return each
        launches = map(self.meeting.launch, range(len(each)), each)
        return [
            part.bind(launch, **buffers)
            for part, (launch, buffers) in zip(self.parts, launches, strict=True)
        ]

    def run(self, launches: Sequence[Sequence[Bound]], moves: Sequence[Any] = ()) -> None:
        """Start each part's launches, then copy; what they start next waits for the copies."""
        if len(self.parts) == 1:
            self.parts[0].start(*launches[0])
        elif self._queue is not None:
            self._queue.append((launches, moves))
            if len(self._queue) == _AT_ONCE:
                self._flush()
        else:
            self.build()
            self._start([(launches, moves)])

    @contextlib.contextmanager
    def queued(self) -> Iterator[None]:
        """Inside, `run` may start several steps of one part before those of another.

        To go from one device to the next takes the host as long as some launches.
        """
        self._queue = [] if self.meeting is not None else None
        try:
            yield
            self._flush()
        finally:
            self._queue = None

    def _flush(self) -> None:
        """Start what is queued."""
        if not self._queue:
            return
        steps, self._queue = self._queue, []
        self.build()
        # The ids stay theirs: what has them is kept.
        key = tuple(id(bound) for launches, moves in steps for bound in (*launches, moves))
        self.repeat(key, partial(self._start, steps), steps)

    def _start(self, steps: Sequence[tuple[Sequence[Sequence[Bound]], Sequence[Any]]]) -> None:
        """Start steps, of one part after the other; only one where devices do not meet."""
        meet = self.meeting is not None
        for number, part in enumerate(self.parts):
            with part.active():
                for launches, moves in steps:
                    part.start(*launches[number], *([moves[number]] if moves and meet else ()))
                    if moves and not meet:
                        self._ready[number] = part.device.record(part.stream, self._ready[number])
        if meet:
            return
        for number, (part, copies) in enumerate(zip(self.parts, steps[0][1], strict=False)):
            with part.active():
                for other, event in enumerate(self._ready):
                    if other != number:
                        part.device.wait(event, part.stream)
                for copy in copies:
                    part.device.copy_from_peer(*copy)

    def repeat(self, key: Any, work: Callable[[], object], keep: Any = None) -> None:
        """Do ``work``, which only starts launches on the parts' streams; what comes again and again
        under a key as a graph of each device, for the host would be slower than the devices."""
        times, graph, _ = self._seen.get(key, (0, None, None))
        if graph is None and times == _OFTEN:
            graph = self.recorded(work)
        (graph or work)()
        self._seen[key] = times + 1, graph, keep

    def recorded(self, work: Callable[[], object]) -> Callable[[], None] | None:
        """``work``, which only starts launches on the parts' streams, as a graph of each device.

        The buffers must outlive it. None where there are no graphs.
        """
        graphs: list[Any] = []

        def end(part: Part, graph: Any) -> None:
            with part.active():
                graph.end()

        try:
            with contextlib.ExitStack() as ends:  # of all that began, whatever fails
                for part in self.parts:
                    with part.active():
                        graphs.append(part.device.recorded(part.stream))
                    ends.callback(end, part, graphs[-1])
                work()
        except Exception as error:  # no bindings, or older ones: the launches do as well
            log.info("launches are not recorded: %s", error)
            return None

        parts = self.parts  # not self, which keeps the result: nothing would free the memory

        def launch() -> None:
            for part, graph in zip(parts, graphs, strict=True):
                with part.active():
                    graph.launch()

        return launch

    def build(self) -> None:
        """Build what was bound so far: no device is to wait while the host compiles for another."""
        for part in self.parts:
            if part.unbuilt:
                part.build()

    def check(self) -> None:
        """Raise DeviceError if a device waited too long for another one; waits for all."""
        if self.meeting is not None:
            self.meeting.check()

    def share_sums(self, blocks: Sequence[int], sums: int, *names: str) -> list[Copy]:
        """Make room in each part for the block sums of all parts, one after the other.

        Returns the copies that bring them together. Each part has ``blocks`` of them, each with
        ``sums`` doubles; launches know the numbers "blocks_before", those of all parts, and
        "first_block", those of the parts before.
        """
        for number, part in enumerate(self.parts):
            part.allocate(8 * sums * sum(blocks), *names)
            part.numbers["blocks_before"] = sum(blocks)
            part.numbers["first_block"] = sum(blocks[:number])
        return gather_copies([8 * sums * count for count in blocks])

    def total(self, name: str, blocks: Sequence[int], sums: int = 1) -> list[float]:
        """Add up block sums: of each part ``blocks`` rows of ``sums`` doubles; waits for them."""
        each = zip(self.parts, blocks, strict=True)
        rows = [part.download(name, np.empty((count, sums))) for part, count in each]
        with np.errstate(over="ignore", invalid="ignore"):
            return np.concatenate(rows).sum(axis=0).tolist()

    def at_once(self, task: Callable[[int], object], nbytes: int) -> None:
        """``task(number)`` for all parts, which copy ``nbytes`` together; see `at_once.run`."""
        tasks = [partial(task, number) for number in range(len(self.parts))]
        at_once.run([part.device for part in self.parts], tasks, nbytes // len(tasks))

    def synchronize(self) -> None:
        """Wait for all that the parts' devices were given to do."""
        for part in self.parts:
            with part.active():
                part.device.synchronize()
