"""Rows on the host that one device has no room for: they go there block by block.

As many blocks as there is room for stay; the others go up in turn in every iteration, each while
the one before it is computed with. Every second iteration takes them in the opposite order, so that
what came last need not come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from hetero.devices.base import Device
from hetero.errors import DeviceMemoryError
from hetero.moving import failures, pipeline
from hetero.moving.pipeline import Load, Slot, Step
from hetero.ops.kmeans import columns_device
from hetero.ops.kmeans.rows_numpy import PlainSeeding
from hetero.ops.kmeans.rows_part import Part, combined
from hetero.ops.kmeans.rows_parts import PartedRows
from hetero.ops.linear_systems.partition import split
from hetero.registry.problem import Problem

_SHARE = 0.75  # of a device's room, that blocks take with what is made of them
_BLOCKS = 12  # in that share, at least: what moves is not to be waited for
_MOST = 256 << 20  # bytes of a block; the host has some milliseconds to do for each
_LEAST = 1 << 16  # bytes of a block: a device without room for these has none
_TURNS = 2  # slots that blocks take turns in: one is loaded while another is computed with

T = TypeVar("T")


class BlockRows(PartedRows):
    """See `hetero.ops.kmeans.fit.Rows` and `hetero.ops.kmeans.lloyd.Steps`.

    Parameters
    ----------
    device : Device
    problem : Problem
    X, weights : arrays on the host
        C-contiguous, of one dtype; the weights may be None.
    method : str
        See `hetero.ops.kmeans.lloyd_device.DeviceRows`.
    room : int
        Bytes of the device's memory that may be used.
    rows : int, optional
        Of a block. Default: by the room.
    given : (k, d) array, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None,
        method: str,
        room: int,
        rows: int | None = None,
        given: np.ndarray | None = None,
    ) -> None:
        self._begin(X, weights)
        self._device, self._problem, self._method = device, problem, method
        self.common = None if given is None else columns_device.subtracted_for(given)
        self._room = int(_SHARE * room)
        self._known: tuple[np.ndarray, float] | None = None
        most = min(self._room // _BLOCKS, _MOST)
        self._cut(rows or max(1, most // (problem.dims[1] * X.itemsize)))

    def _cut(self, rows: int) -> None:
        """Cut X into blocks; those that stay are the first ones."""
        n = len(self._X)
        self._rows = min(rows, n)
        self._parts = [
            Part(self._device, self._problem, self._X, self._weights, cut, self._method)
            for cut in split(n, -(-n // self._rows))
        ]
        # A copy less the mean, labels and what an iteration makes beside; of those that stay only.
        each = 2 * self._parts[0].nbytes + 16 * self._rows
        self._stay = min(max(self._room // each - _TURNS - 1, 0), len(self._parts))
        if self._stay + _TURNS >= len(self._parts):  # these are as many slots
            self._stay = len(self._parts)
        self._staying: dict[int, tuple[Slot, ...]] = {}
        self._where: dict[int, tuple[Slot, ...]] = {}  # of the others, those that are there
        self._backwards = False

    @property
    def mean(self) -> np.ndarray:
        """What is subtracted of all rows."""
        if self.common is None:
            self.common = self._subtracted(None)
        return self.common

    @property
    def _column_means(self) -> np.ndarray:
        return self.moments()[1]

    @property
    def _variance(self) -> float:
        return self.moments()[2]

    def moments(self) -> tuple[int, np.ndarray, float]:
        """As `Part.moments`; found when it is asked for."""
        if self._known is None:
            self._known = combined(self._visit(Part.moments, None))
        return len(self._X), *self._known

    def _seeding(self) -> Any:
        return PlainSeeding(self._X, self._weights, self._column_means)

    def assign(self, centroids: np.ndarray) -> bool:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        self._saved, self._begun = centroids.copy(), self._begun + 1
        before, self._labels = self.labels, np.empty(len(self._X), np.int32)

        def step(part: Part) -> tuple[np.ndarray, np.ndarray]:
            part.begin(centroids)
            found = part.end()
            part.fetch(part.of(self._labels))
            return found

        self._found = self._visit(step, self.mean)
        return not np.array_equal(before, self._labels)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""

        def step(part: Part) -> np.ndarray:
            part.give(part.of(self.labels))
            return part.distances(centroids)

        return np.concatenate(self._visit(step, self.mean))

    def inertia(self, centroids: np.ndarray) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""

        def step(part: Part) -> float:
            part.give(part.of(self.labels))
            return part.inertia(centroids)

        return sum(self._visit(step, self.mean))

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
                rows = self._rows // 2
                if not self._room and rows * self._X[0].nbytes < _LEAST:
                    raise
                failures.release(error)
            with self._device.active():
                for part in self._parts:
                    part.leave()
                self._room = 0  # others use the device too: nothing stays
                self._cut(max(rows, 1))
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
