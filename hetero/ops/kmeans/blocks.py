"""Rows on the host that a device has no room for: they go there block by block.

As many blocks as there is room for stay; the others go up in turn in every iteration, each while
the one before it is computed with. Every second iteration takes them in the opposite order, so that
what came last need not come again. Of several devices each goes through its part of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceMemoryError
from hetero.moving import failures, pipeline
from hetero.moving.pipeline import Load, Slot, Step
from hetero.ops.kmeans.partition import HostRows, Part, PartitionBackend, SplitBackend
from hetero.ops.linear_systems.partition import split
from hetero.pricing import memory_limit

_SHARE = 0.75  # of a device's room, that blocks take with what is made of them
_BLOCKS = 12  # in that share, at least: what moves is not to be waited for
_MOST = 256 << 20  # bytes of a block; the host has some milliseconds to do for each
_LEAST = 1 << 16  # bytes of a block: a device without room for these has none
_TURNS = 2  # slots that blocks take turns in: one is loaded while another is computed with

T = TypeVar("T")


def partitioned(devices: Sequence[Device], rows: HostRows) -> SplitBackend:
    """The rows in parts that stay, in blocks where one of the devices has no room for its part."""
    for again in (False, True):
        try:
            return PartitionBackend(devices, rows)
        except DeviceMemoryError as error:
            failures.release(error)
        if again or not any([device.trim() for device in devices]):  # noqa: C419  # each of them
            break
    return PartitionedBlocks(devices, rows)


class BlockBackend(SplitBackend):
    """Rows that go through one device in blocks.

    Parameters
    ----------
    device : Device
    rows : HostRows
    room : int, optional
        Bytes of the device's memory that may be used. Default: what is free.
    size : int, optional
        Rows of a block. Default: by the room.
    """

    def __init__(
        self, device: Device, rows: HostRows, room: int | None = None, size: int | None = None
    ) -> None:
        super().__init__(rows._replace(counted=False))  # the host has all labels
        self._device = device
        if room is None:
            room = memory_limit.room(memory_limit.of(device))
        self._room = int(_SHARE * room)
        most = min(self._room // _BLOCKS, _MOST)
        self._cut(size or max(1, most // self._X[0].nbytes))

    def _cut(self, size: int) -> None:
        """Cut X into blocks of that many rows; those that stay are the first ones."""
        self._size = min(size, self.n)
        cuts = split(self.n, -(-self.n // self._size))
        self._parts = [Part(self._device, self._host.cut(*cut), cut[0]) for cut in cuts]
        # A copy less the mean, labels and what an iteration makes beside; of those that stay only.
        each = 2 * self._parts[0].nbytes + 16 * self._size
        self._stay = min(max(self._room // each - _TURNS - 1, 0), len(self._parts))
        if self._stay + _TURNS >= len(self._parts):  # these are as many slots
            self._stay = len(self._parts)
        self._staying: dict[int, tuple[Slot, ...]] = {}
        self._where: dict[int, tuple[Slot, ...]] = {}  # of the others, those that are there
        self._backwards = False

    def _part_moments(self) -> list[tuple[int, np.ndarray, float]]:
        return self._visit(Part.moments, None)

    def assign(self, centroids: np.ndarray) -> int:
        self._save(centroids)
        before, self._labels = self.labels, np.empty(self.n, np.int32)

        def step(part: Part) -> tuple[np.ndarray, np.ndarray]:
            part.begin(centroids)
            found = part.end()
            part.fetch(part.of(self._labels))
            return found

        self._found = self._visit(step, self.mean)
        return int(np.count_nonzero(before != self._labels))

    def _each(self, step: Callable[[Part], T]) -> list[T]:
        def labelled(part: Part) -> T:
            part.give(part.of(self.labels))
            return step(part)

        return self._visit(labelled, self.mean)

    def _visit(self, step: Callable[[Part], T], mean: np.ndarray | None) -> list[T]:
        """``step(part)`` for each block while it is on the device, in the order of the rows, less
        a mean, or as it is.

        Where the device has less room than it should, blocks halve.
        """
        while True:
            try:
                with self._device.active():
                    found: dict[int, T] = {}
                    pipeline.run(self._device, self._steps(step, mean, found))
                    return [found[number] for number in range(len(self._parts))]
            except DeviceMemoryError as error:
                size = self._size // 2
                if not self._room and size * self._X[0].nbytes < _LEAST:
                    raise
                failures.release(error)
            with self._device.active():
                for part in self._parts:
                    part.leave()
                self._room = 0  # others use the device too: nothing stays
                self._cut(max(size, 1))
                self._device.trim()

    def _steps(
        self, step: Callable[[Part], T], mean: np.ndarray | None, found: dict[int, T]
    ) -> Iterator[Step]:
        """One for each block: first the last ones of the time before, which are there yet."""
        turns = [*range(self._stay, len(self._parts))]
        if self._backwards:
            turns.reverse()
        self._backwards = not self._backwards
        last = turns[-_TURNS:]
        before, slots = self._where, {}
        for at, number in enumerate(turns):
            if at >= _TURNS:
                slots[number] = slots[turns[at - _TURNS]]
            else:
                slots[number] = before.get(number) or self._slots()
        self._where = {}
        present = turns[:_TURNS] if before else []
        for number in (*present, *range(self._stay), *turns[len(present) :]):
            part = self._parts[number]
            stays = number < self._stay
            if stays and number not in self._staying:
                self._staying[number] = self._slots()
            where = self._staying[number] if stays else slots[number]
            there = part.loaded

            def compute(number: int = number, part: Part = part, where: Any = where) -> None:
                if not part.loaded:
                    part.take([slot.buffer for slot in where])
                if mean is not None:
                    part.lay_out(mean)
                found[number] = step(part)
                if number in last:
                    self._where[number] = where
                elif number >= self._stay:
                    part.leave()

            loads = () if there else tuple(map(Load, part.arrays, where))
            yield Step(compute, loads, (), where)

    def _slots(self) -> tuple[Slot, ...]:
        """Slots for a block's rows and weights."""
        largest = self._parts[0].arrays
        return tuple(pipeline.slots(self._device, array.nbytes, 1)[0] for array in largest)


class PartitionedBlocks(SplitBackend):
    """Each device goes through its part of the rows in blocks, all of them at the same time."""

    def __init__(self, devices: Sequence[Device], rows: HostRows, size: int | None = None) -> None:
        super().__init__(rows)
        cuts = split(self.n, len(devices))
        self._devices = devices[: len(cuts)]
        self._parts: list[BlockBackend] = [
            BlockBackend(device, rows.cut(*cut), size=size)
            for device, cut in zip(self._devices, cuts, strict=True)
        ]

    def restart(self, k: int) -> None:
        super().restart(k)
        for part in self._parts:
            part.common = self.mean
            part.restart(k)

    def assign(self, centroids: np.ndarray) -> int:
        self._save(centroids)
        tasks, before = [partial(part.assign, centroids) for part in self._parts], self.labels
        at_once.run(self._devices, tasks, self._X.nbytes // len(tasks))
        self._found = [part.sums(centroids) for part in self._parts]
        self._labels = np.concatenate([part.labels for part in self._parts])
        return int(np.count_nonzero(before != self._labels))
