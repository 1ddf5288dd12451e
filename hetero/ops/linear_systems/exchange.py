"""The parts of a solve on one or several devices, and what they copy from one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels import Launch
from hetero.ops.linear_systems.partition import Copy, gather_copies

Bound = list[Any]  # kernel, grid, block, arguments
Moves = tuple[list[int], list[tuple[Any, ...]]]


class Part(Workspace):
    """One device's share of a solve: its buffers by name, and launches on them.

    One that is ``alone`` runs in the device's default queue and inside its `active`, which the
    caller has entered; others in a stream of their own.

    Attributes
    ----------
    numbers : dict
        Name -> number, for launches that name it.
    """

    def __init__(self, device: Device, alone: bool) -> None:
        stream = None
        if not alone:
            with device.active():
                device.synchronize()  # new memory may be in use in the default queue
                stream = device.new_stream()
        super().__init__(device, "solves", stream)
        self.numbers: dict[str, int] = {}
        self._unbuilt: list[tuple[Bound, Launch]] = []

    def bind(self, launch: Launch, **others: Any) -> Bound:
        """A launch on this part's buffers and numbers, for `start`.

        ``others`` gives some of the launch's names another meaning: that of another name, or a
        buffer or a number.
        """
        bound = [None, launch.grid, launch.block, self.values(launch, **others)]
        self._unbuilt.append((bound, launch))
        return bound

    def build(self, others: Iterable[tuple[str, Any]] = ()) -> None:
        """Build what was bound so far, and compile other kernel files at the same time.

        The first `start` does it otherwise; its device is active.
        """
        unbuilt, self._unbuilt = self._unbuilt, []
        files = [(launch.source, launch.defines) for _, launch in unbuilt]
        self.device.compile_ahead([*others, *files])
        for bound, launch in unbuilt:
            bound[0] = self.device.build(launch.source, launch.kernel, launch.defines)

    def values(self, launch: Launch, **others: Any) -> list[Any]:
        """The arguments of a launch; see `bind`."""
        known = self.buffers | self.numbers

        def value(argument: Any) -> Any:
            if type(argument) is str:
                argument = others.get(argument, argument)
            return known[argument] if type(argument) is str else argument

        return [value(argument) for argument in launch.arguments]

    def start(self, *launches: Bound) -> None:
        """Start launches in this part's stream; its device is active."""
        if self._unbuilt:
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
    """Copies between parts, ordered by events; nothing where there is one part alone.

    A step goes: `wait`; launch what writes the bytes that others need; `ready`; launch the rest.
    When all parts are so far, `copy`. What a part takes is copied after its own `ready` and that
    of those that it takes from. So what it launched before still reads what was there, and what
    it launches after the next `wait` reads what came.

    After a `copy` and a `wait`, a part may overwrite what others copied from it before: two buffers
    used in turn need nothing more, nor does one buffer with another `copy` in between. Else, with
    copies made aside, it must wait for the others too (``wait(part, all_parts=True)``).

    Copies made ``aside`` have streams of their own and overlap what the parts compute. Otherwise
    they are made in the order of each part's own stream, after the `ready` of all parts, and there
    is nothing to `wait` for.
    """

    def __init__(self, parts: Sequence[Part], aside: bool = False) -> None:
        self.parts = parts
        self._aside = aside
        self._ready: list[Any] = [None] * len(parts)
        self._arrived: list[Any] = [None] * len(parts)
        self._streams = [part.stream for part in parts]
        if aside and len(parts) > 1:
            for number, part in enumerate(parts):
                with part.active():
                    self._streams[number] = part.device.new_stream()

    def ready(self, number: int) -> None:
        """Note that what a part has started writes what others need; its device is active."""
        if len(self.parts) > 1:
            part = self.parts[number]
            self._ready[number] = part.device.record(part.stream, self._ready[number])

    def bind(self, *groups: BufferCopies) -> list[Moves]:
        """Copies for `copy`: for each part whom to wait for, and what to copy in which order."""
        moves: list[Moves] = []
        for number, part in enumerate(self.parts):
            wanted = [(c, group) for group in groups for c in group.copies if c.target == number]
            waits_for = {copy.source for copy, _ in wanted} | {number}
            if not self._aside:  # all meet; a part's own stream is in order by itself
                waits_for = set(range(len(self.parts))) - {number}
            copies = [
                (
                    part.buffers[group.into],
                    self.parts[copy.source].device,
                    self.parts[copy.source].buffers[group.out_of],
                    *copy[2:],
                    self._streams[number],
                )
                for copy, group in wanted
            ]
            moves.append((sorted(waits_for), copies))
        return moves

    def copy(self, moves: Sequence[Moves]) -> None:
        """Start what `bind` gave."""
        if len(self.parts) == 1:
            return
        for number, (part, (waits_for, copies)) in enumerate(zip(self.parts, moves, strict=True)):
            device, stream = part.device, self._streams[number]
            with part.active():
                for each in waits_for:
                    device.wait(self._ready[each], stream)
                for copy in copies:
                    device.copy_from_peer(*copy)
                if self._aside:
                    self._arrived[number] = device.record(stream, self._arrived[number])

    def wait(self, number: int, all_parts: bool = False) -> None:
        """Hold a part until what it takes has come; with ``all_parts``, what any part takes.

        Its device is active. Before the first `copy` there is nothing to wait for.
        """
        part = self.parts[number]
        for event in self._arrived if all_parts else [self._arrived[number]]:
            if event is not None:
                part.device.wait(event, part.stream)

    def run(self, launches: Sequence[Sequence[Bound]], moves: Sequence[Moves] = ()) -> None:
        """Start each part's launches, then copy; what they start next waits for the copies."""
        if len(self.parts) == 1:
            self.parts[0].start(*launches[0])
            return
        for number, (part, bounds) in enumerate(zip(self.parts, launches, strict=True)):
            with part.active():
                part.start(*bounds)
                self.ready(number)
        if moves:
            self.copy(moves)

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

    def total(self, name: str, blocks: Sequence[int], sums: int) -> list[float]:
        """Add up block sums: of each part ``blocks`` rows of ``sums`` doubles; waits for them."""
        totals = np.zeros(sums)
        for part, count in zip(self.parts, blocks, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                totals += part.download(name, np.empty((count, sums))).sum(axis=0)
        return totals.tolist()

    def at_once(self, task: Callable[[int], object], nbytes: int) -> None:
        """``task(number)`` for all parts, which copy ``nbytes`` together; see `at_once.run`."""
        tasks = [partial(task, number) for number in range(len(self.parts))]
        at_once.run([part.device for part in self.parts], tasks, nbytes // len(tasks))

    def synchronize(self) -> None:
        """Wait for all that the parts' devices were given to do."""
        for part in self.parts:
            with part.active():
                part.device.synchronize()
