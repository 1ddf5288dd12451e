"""Rows on the host that devices compute with in ranges: a fit on several, or on one without room.

Each device has its share of the rows. A share that has room is one range, which stays there. Else
it is cut, and as many ranges as have room stay; the others go up in turn in every iteration, each
while the one before it is computed with. Every second iteration takes them in the opposite order,
so that what came last need not come again.

Each range is labelled and added up on its device; the host makes centroids of the sums. One mean of
all is subtracted of every range, so that rows get the labels that one device would give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.moving import failures, pipeline
from hetero.moving.pipeline import Load, Slot, Step
from hetero.ops.kmeans.backend import Run, Seeding, SteppedBackend, subtracted, subtracted_for
from hetero.ops.kmeans.cpu import NumpySeeding
from hetero.ops.kmeans.device_rows import DeviceRows, moments
from hetero.ops.kmeans.device_seeding import DeviceSeeding, PartitionSeeding
from hetero.ops.linear_systems.partition import split
from hetero.ops.linear_systems.types import DeviceFailed
from hetero.pricing import places
from hetero.registry.problem import Problem

_SHARE = 0.75  # of a device's room, that ranges take with what is made of them
_RANGES = 12  # in that share, at least: what moves is not to be waited for
_MOST = 256 << 20  # bytes of a range; the host has some milliseconds to do for each
_LEAST = 1 << 16  # bytes of a range: a device without room for these has none
_TURNS = 2  # slots that ranges take turns in: one is loaded while another is computed with

T = TypeVar("T")


class HostRows(NamedTuple):
    """Rows on the host for devices to compute with, and how.

    Attributes
    ----------
    problem : Problem
        Of these rows.
    X, weights : arrays
        C-contiguous, of one dtype; the weights may be None.
    given : (k, d) array, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    counted : bool
        See `DeviceRows`.
    """

    problem: Problem
    X: np.ndarray
    weights: np.ndarray | None
    given: np.ndarray | None = None
    counted: bool = False

    def cut(self, begin: int, end: int) -> HostRows:
        """Those from ``begin`` to ``end``."""
        weights = None if self.weights is None else self.weights[begin:end]
        problem = replace(self.problem, dims=(end - begin, *self.problem.dims[1:]))
        return self._replace(problem=problem, X=self.X[begin:end], weights=weights)


class Range:
    """Rows that are on a device while they are loaded, less the mean of all.

    The device is active when a method is called.

    Parameters
    ----------
    device : Device
    rows : HostRows
        Of the range.
    first : int
        Number of the first one among all rows.

    Attributes
    ----------
    rows : DeviceRows or None
        What iterations ask, once `lay_out` was called.
    """

    def __init__(self, device: Device, rows: HostRows, first: int) -> None:
        self.device, self.first = device, first
        self.arrays = (rows.X,) if rows.weights is None else (rows.X, rows.weights)
        self.rows: Any = None
        self._host = rows
        self._buffers: tuple[Any, ...] = ()
        self._seeding: DeviceSeeding | None = None

    @property
    def loaded(self) -> bool:
        """Whether the rows are on the device."""
        return bool(self._buffers)

    def take(self, buffers: Sequence[Any]) -> None:
        """The rows, and perhaps the weights, are in these buffers of the device."""
        self._buffers = tuple(buffers)

    def moments(self) -> tuple[int, np.ndarray, float]:
        """How many rows, their columns' means, and the mean of the columns' variances."""
        n, d, _ = self._host.problem.dims
        return n, *moments(self.device, self._buffers[0], n, d, self._host.X.dtype)

    def lay_out(self, mean: np.ndarray) -> None:
        """Be ready for iterations on the rows less a mean."""
        if self.rows is None:
            X, weights = (*self._buffers, None)[:2]
            problem, counted = self._host.problem, self._host.counted
            self.rows = DeviceRows(self.device, problem, X, weights, mean=mean, counted=counted)

    def leave(self) -> None:
        """Give back what was made of the rows."""
        self.rows = self._seeding = None
        self._buffers = ()

    def of(self, labels: np.ndarray) -> np.ndarray:
        """The range's own of the labels of all rows."""
        return labels[self.first :][: len(self._host.X)]

    def fetch(self, labels: np.ndarray) -> None:
        """Bring its labels to their place among those of all rows, on the host."""
        self.device.download(self.rows.buffers["labels"], self.of(labels))

    def seeding(self) -> DeviceSeeding:
        """Distances for k-means++."""
        if self._seeding is None:
            self._seeding = DeviceSeeding(self.rows)
        return self._seeding


class Share:
    """The rows of one device: a range that stays there, or ranges that go through it.

    Parameters
    ----------
    device : Device
    rows : HostRows
        Of the share.
    first : int
        Number of the first one among all rows.
    room : int, optional
        Bytes of the device's memory that may be used. Default: what is free.
    size : int, optional
        Rows of a range. Default: by the room.
    """

    def __init__(
        self,
        device: Device,
        rows: HostRows,
        first: int,
        room: int | None = None,
        size: int | None = None,
    ) -> None:
        self.device, self._host, self._first = device, rows, first
        if room is None:
            room = places.room(places.described(device))
        self._room, self._asked = int(min(_SHARE * room, 1 << 62)), size
        self._failed = False
        n = len(rows.X)
        self._cut(n if size is None and self._bytes(n) <= self._room else self._by_room())

    @property
    def stays(self) -> bool:
        """Whether all its rows stay on the device, as one range."""
        return len(self.ranges) == self._stay == 1

    def _bytes(self, rows: int) -> int:
        """What a range takes: rows, a copy less the mean, labels and what an iteration makes."""
        return 2 * rows * self._host.X[0].nbytes + 16 * rows

    def _by_room(self) -> int:
        """Rows of a range, so that there are many."""
        most = min(self._room // _RANGES, _MOST)
        return self._asked or max(1, most // self._host.X[0].nbytes)

    def _cut(self, size: int) -> None:
        """Cut the rows into ranges of at most that many; those that stay are the first ones."""
        n = len(self._host.X)
        self._size = min(size, n)
        cuts = split(n, -(-n // self._size))
        whole = len(cuts) == 1 and self._asked is None
        rows = self._host if whole else self._host._replace(counted=False)  # the host has labels
        self.ranges = [Range(self.device, rows.cut(*cut), self._first + cut[0]) for cut in cuts]
        self._stay = max(self._room // self._bytes(self._size) - _TURNS - 1, 0)
        if (whole and self._room) or self._stay + _TURNS >= len(cuts):  # these are as many slots
            self._stay = len(cuts)
        self._staying: dict[int, tuple[Slot, ...]] = {}
        self._where: dict[int, tuple[Slot, ...]] = {}  # of the others, those that are there
        self._backwards = False

    def visit(self, step: Callable[[Range], T], mean: np.ndarray | None = None) -> list[T]:
        """``step(part)`` for each range while it is on the device, in the order of the rows, less
        a mean, or as it is.

        Where the device has less room than it should, what it keeps for later is freed and the
        rows are cut by the room, then ranges halve.
        """
        while True:
            try:
                with self.device.active():
                    found: dict[int, T] = {}
                    pipeline.run(self.device, self._steps(step, mean, found))
                    return [found[number] for number in range(len(self.ranges))]
            except DeviceMemoryError as error:
                size = self._size // 2
                if not self._room and size * self._host.X[0].nbytes < _LEAST:
                    raise
                failures.release(error)
            with self.device.active():
                for part in self.ranges:
                    part.leave()
                self._staying, self._where = {}, {}
                freed = self.device.trim()
            if self.stays and not self._failed:
                size = self._size if freed else self._by_room()
            else:
                self._room = 0  # others use the device too: nothing stays
            self._failed = True
            self._cut(max(size, 1))

    def _steps(
        self, step: Callable[[Range], T], mean: np.ndarray | None, found: dict[int, T]
    ) -> Iterator[Step]:
        """One for each range: first the last ones of the time before, which are there yet."""
        turns = [*range(self._stay, len(self.ranges))]
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
            part = self.ranges[number]
            if number < self._stay and number not in self._staying:
                self._staying[number] = self._slots()
            where = self._staying[number] if number < self._stay else slots[number]
            there = part.loaded

            def compute(number: int = number, part: Range = part, where: Any = where) -> None:
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
        """Slots for a range's rows and weights."""
        largest = self.ranges[0].arrays
        return tuple(pipeline.slots(self.device, array.nbytes, 1)[0] for array in largest)


class RangeBackend(SteppedBackend):
    """Rows on the host, of which each device computes with its share, all at the same time.

    Where all shares stay on their devices their labels do, too, until they are asked for.

    Parameters
    ----------
    devices : sequence of Device
    rows : HostRows
    room, size : int, optional
        As for `Share`.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        rows: HostRows,
        room: int | None = None,
        size: int | None = None,
    ) -> None:
        self.n = len(rows.X)
        self._host, self._X = rows, rows.X
        self._common = None if rows.given is None else subtracted_for(rows.given)
        self._known: tuple[np.ndarray, float] | None = None
        self._labels: np.ndarray | None = None
        self._found: list[tuple[np.ndarray, np.ndarray]] = []  # each share's sums
        self._saved: np.ndarray | None = None
        self._begun = 0
        cuts = split(self.n, len(devices))
        self._shares = [
            Share(device, rows.cut(*cut), cut[0], room, size)
            for device, cut in zip(devices, cuts, strict=False)
        ]
        if rows.given is None:
            self._moments()
        if self._staying:
            self._visit(lambda part: None, self.mean)

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        if self._common is None:
            self._common = subtracted(*self._moments(), self._X.dtype)
        return self._common

    def _moments(self) -> tuple[np.ndarray, float]:
        """The columns' means, and the mean of their variances."""
        if self._known is None:
            found = [
                (sum(n for n, *_ in parts), *combined(parts))
                for parts in self._visit(Range.moments)
            ]
            self._known = combined(found)
        return self._known

    def _visit(self, step: Callable[[Range], T], mean: np.ndarray | None = None) -> list[list[T]]:
        """``step(part)`` of each range of each share."""
        found: dict[int, list[T]] = {}

        def visit(number: int) -> None:
            found[number] = self._shares[number].visit(step, mean)

        numbers = range(len(self._shares))
        used = [share.device for share in self._shares]
        at_once.run(used, [partial(visit, n) for n in numbers], self._X.nbytes // len(used))
        return [found[number] for number in numbers]

    @property
    def _staying(self) -> list[Range]:
        """The shares' ranges, where all of them stay; else none."""
        stay = all(share.stays for share in self._shares)
        return [share.ranges[0] for share in self._shares] if stay else []

    def mean_variance(self) -> float:
        return self._moments()[1]

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        centre = self._moments()[0].astype(self._X.dtype)
        return self._X - centre, centre

    def host_weights(self) -> np.ndarray | None:
        return self._host.weights

    def seeding(self) -> Seeding:
        if len(self._staying) > 1:
            return PartitionSeeding(self._staying, self._X, self.mean)
        return NumpySeeding(self._X, self._host.weights, self._moments()[0])

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self._X[indices] - self.mean

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        if self._labels is None:
            labels = self._labels = np.empty(self.n, np.int32)
            self._visit(lambda part: part.fetch(labels), self.mean)
        return self._labels

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        try:
            return super().lloyd(centroids, maxiter, tol, exactly)
        except DeviceError as error:
            if self._saved is None:
                raise
            raise DeviceFailed(error, self._saved + self.mean, self._begun - 1) from error

    def restart(self, k: int) -> None:
        self._labels, self._begun = np.full(self.n, -1, np.int32), 0

    def assign(self, centroids: np.ndarray) -> int:
        self._saved, self._begun = centroids.copy(), self._begun + 1  # should a device fail
        if self._staying:  # all of them at once, by this thread
            self._labels = None
            self._each_staying(lambda part: part.rows.begin_step(centroids))
            self._found = self._each_staying(lambda part: part.rows.sums())
            changed = sum(self._each_staying(lambda part: part.rows.changed()))
            return self.n if self._begun == 1 else changed
        before, labels = self.labels, np.empty(self.n, np.int32)

        def step(part: Range) -> tuple[np.ndarray, np.ndarray]:
            part.rows.begin_step(centroids)
            found = part.rows.sums()
            part.fetch(labels)
            return found

        self._found = [_added(parts) for parts in self._visit(step, self.mean)]
        self._labels = labels
        return int(np.count_nonzero(before != labels))

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _added(self._found)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        found = self._labelled(centroids, lambda part: part.rows.distances(False))
        return np.concatenate([one for parts in found for one in parts])

    def inertia(self, centroids: np.ndarray) -> float:
        return sum(map(sum, self._labelled(centroids, lambda part: part.rows.inertia(False))))

    def _labelled(self, centroids: np.ndarray, step: Callable[[Range], T]) -> list[list[T]]:
        """``step(part)`` of each range, which has these centroids and the labels of its rows."""

        def labelled(part: Range) -> T:
            if not self._staying:
                labels = part.of(self.labels)
                part.device.upload(labels, part.rows.buffers["labels"])
            part.rows.upload(centroids)
            return step(part)

        return self._visit(labelled, self.mean)

    def _each_staying(self, step: Callable[[Range], T]) -> list[T]:
        """``step(part)`` of each range that stays."""
        found = []
        for part in self._staying:
            with part.device.active():
                found.append(step(part))
        return found


def _added(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The sums of rows and of weights of several ranges or shares."""
    sums, totals = zip(*found, strict=True)
    return np.sum(sums, axis=0), np.sum(totals, axis=0)


def combined(moments: list[tuple[int, np.ndarray, float]]) -> tuple[np.ndarray, float]:
    """The columns' means, and the mean of their variances, of all rows from those of parts."""
    numbers, means, variances = zip(*moments, strict=True)
    if len(numbers) == 1:
        return means[0], variances[0]
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        mean = np.average(means, axis=0, weights=numbers)
        between = np.mean((np.array(means) - mean) ** 2, axis=1)  # of the parts' means
        return mean, float(np.average(variances + between, weights=numbers))
