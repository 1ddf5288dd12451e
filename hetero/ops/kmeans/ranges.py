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
from typing import Any, TypeVar

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceMemoryError
from hetero.moving import failures, pipeline
from hetero.moving.pipeline import Load, Slot, Step
from hetero.ops.kmeans.cpu import NumpySeeding
from hetero.ops.kmeans.device import DeviceRows, DeviceSeeding, moments, subtracted, subtracted_for
from hetero.ops.kmeans.fit import Rows, Seeding
from hetero.ops.kmeans.operands import check_finite
from hetero.ops.linear_systems.partition import split
from hetero.pricing import places
from hetero.registry.problem import Problem

_SHARE = 0.75  # of a device's room, that ranges take with what is made of them
_RANGES = 12  # in that share, at least: what moves is not to be waited for
_MOST = 256 << 20  # bytes of a range; the host has some milliseconds to do for each
_LEAST = 1 << 16  # bytes of a range: a device without room for these has none
_TURNS = 2  # slots that ranges take turns in: one is loaded while another is computed with

S, T = TypeVar("S"), TypeVar("T")


class Range:
    """Rows from ``begin`` to ``end``, and what a device has of them while it computes with them."""

    def __init__(self, device: Device, arrays: Sequence[np.ndarray], begin: int, end: int) -> None:
        self.device, self.begin, self.end = device, begin, end
        self.arrays = [array[begin:end] for array in arrays]
        self.buffers: list[Slot] = []
        self.rows: DeviceRows | None = None

    def moments(self) -> tuple[int, np.ndarray, float]:
        """How many rows, their columns' means, and the mean of the columns' variances."""
        X = self.arrays[0]
        return len(X), *moments(self.device, self.buffers[0].buffer, *X.shape, X.dtype)

    def fetch(self, labels: np.ndarray) -> None:
        """Bring its labels to their place among those of all rows, on the host."""
        self.device.download(self.rows.buffers["labels"], labels[self.begin : self.end])


class Share:
    """The rows of one device from the first of ``cut`` to before the second: a range that stays
    there, or ranges that go through it."""

    def __init__(self, device: Device, rows: RangeRows, cut: tuple[int, int]) -> None:
        self.device, self._all, self._at = device, rows, cut
        room = rows.room
        if room is None:
            room = places.room(places.described(device))
        self._room, self._size = int(min(_SHARE * room, 1 << 62)), rows.size
        self._row, self._failures = rows.arrays[0][0].nbytes, 0
        self._cut()

    def _cut(self) -> None:
        """Cut the rows into ranges; those that stay are the first ones."""
        (begin, end), row = self._at, self._row
        needed = 2 * row + 16  # bytes: a copy less the mean, labels and what an iteration makes
        n, whole = end - begin, self._size is None and (end - begin) * needed <= self._room
        by_room = max(1, min(self._room // _RANGES, _MOST) // row)
        cuts = split(n, -(-n // (n if whole else min(self._size or by_room, n))))
        self._longest = cuts[0][1]
        self.ranges = [Range(self.device, self._all.arrays, begin + a, begin + b) for a, b in cuts]
        stay = self._room // (self._longest * needed) - _TURNS - 1
        self._stay = len(cuts) if whole or stay + _TURNS >= len(cuts) else max(stay, 0)
        self.stays = whole
        self._slots: dict[int, list[Slot]] = {}
        self._held: dict[int, int] = {}  # by its slots the range that lies there
        self._step = 1

    def visit(self, step: Callable[[Range], T], mean: np.ndarray | None = None) -> list[T]:
        """``step(part)`` for each range while it is on the device, in the order of the rows, less
        a mean, or as it is.

        Where the device has less room than it should, what it keeps for later is freed, and from
        the second time on the rows are cut for half the room.
        """
        while True:
            try:
                with self.device.active():
                    found: dict[int, T] = {}
                    pipeline.run(self.device, self._steps(step, mean, found))
                    return [found[number] for number in range(len(self.ranges))]
            except DeviceMemoryError as error:
                self._failures += 1
                if self._failures > 1:
                    self._room //= 2
                    self._size = self._size and max(self._size // 2, 1)
                    if self._longest * self._row < 2 * _LEAST:
                        raise
                failures.release(error)
            with self.device.active():
                self.ranges, self._slots = [], {}
                self.device.trim()
            self._cut()

    def _steps(
        self, step: Callable[[Range], T], mean: np.ndarray | None, found: dict[int, T]
    ) -> Iterator[Step]:
        """One for each range: first those that may still lie in the slots."""
        turns = [*range(self._stay, len(self.ranges))][:: self._step]
        self._step, leaving = -self._step, turns[:-_TURNS]
        for number in (*turns[:_TURNS], *range(self._stay), *turns[_TURNS:]):
            part, stays = self.ranges[number], number < self._stay
            slot = number if stays else self._stay + number % _TURNS
            if slot not in self._slots:
                sizes = [self._longest * array[0].nbytes for array in part.arrays]
                self._slots[slot] = [pipeline.slots(self.device, size, 1)[0] for size in sizes]
            slots = self._slots[slot]
            loads = () if self._held.get(slot) == number else map(Load, part.arrays, slots)
            self._held[slot] = number

            def compute(number: int = number, part: Range = part, slots: Any = slots) -> None:
                part.buffers = slots
                if mean is not None and part.rows is None:
                    part.rows = self._laid_out(part, mean)
                found[number] = step(part)
                if number in leaving:
                    part.rows = None

            yield Step(compute, tuple(loads), (), tuple(slots))

    def _laid_out(self, part: Range, mean: np.ndarray) -> DeviceRows:
        """A range ready for iterations on its rows less a mean."""
        _, d, k = self._all.problem.dims
        problem = replace(self._all.problem, dims=(part.end - part.begin, d, k))
        buffers = [slot.buffer for slot in part.buffers]
        counted = self._all.counted and self.stays  # else the host has the labels
        return DeviceRows(self.device, problem, *buffers, mean=mean, counted=counted)


class RangeRows(Rows):
    """Rows on the host, of which each device computes with its share, all at the same time.

    Where all shares stay on their devices their labels do, too, until they are asked for. ``given``
    and ``counted`` are as for `DeviceRows`; ``room`` is the bytes of each device that may be used
    (default: what is free), ``size`` the rows of a range (default: by the room).
    """

    def __init__(
        self,
        devices: Sequence[Device],
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None = None,
        given: np.ndarray | None = None,
        counted: bool = False,
        room: int | None = None,
        size: int | None = None,
    ) -> None:
        self.n, self._X, self._weights = len(X), X, weights
        self.problem, self.counted, self.room, self.size = problem, counted, room, size
        self.arrays = (X,) if weights is None else (X, weights)
        self._labels: np.ndarray | None = None
        self._found: list[tuple[np.ndarray, np.ndarray]] = []  # each share's sums
        cuts = split(self.n, len(devices))
        self._shares = [Share(d, self, cut) for d, cut in zip(devices, cuts, strict=False)]
        if given is None:
            parts = [combined(share) for share in self._visit(Range.moments)]
            _, self._centre, self._variance = combined(parts)
            self.mean = subtracted(self._centre, self._variance, X.dtype)
        else:
            self.mean = subtracted_for(given)
        if given is not None or not np.isfinite(self._variance):
            check_finite(X)
        if self._staying:
            self._visit(lambda part: None, self.mean)

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
        return self._variance

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        centre = self._centre.astype(self._X.dtype)
        return self._X - centre, centre

    def host_weights(self) -> np.ndarray | None:
        return self._weights

    def seeding(self) -> Seeding:
        if len(self._staying) > 1:
            return PartitionSeeding(self._staying, self._X, self.mean)
        return NumpySeeding(self._X, self._weights, self._centre)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self._X[indices] - self.mean

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        if self._labels is None:
            labels = self._labels = np.empty(self.n, np.int32)
            self._visit(lambda part: part.fetch(labels), self.mean)
        return self._labels

    def restart(self, centroids: np.ndarray) -> None:
        self._labels, self._is_first = np.full(self.n, -1, np.int32), True

    def assign(self, centroids: np.ndarray) -> int:
        if self._staying:  # all of them at once, by this thread
            self._labels = None
            parts = self._staying
            _each(parts, lambda part: part.rows.begin(centroids))
            self._found = _each(parts, lambda part: part.rows.sums())
            changed = sum(_each(parts, lambda part: part.rows.changed()))
            changed, self._is_first = self.n if self._is_first else changed, False
            return changed
        before, labels = self.labels, np.empty(self.n, np.int32)

        def step(part: Range) -> tuple[np.ndarray, np.ndarray]:
            part.rows.begin(centroids)
            found = part.rows.sums()
            part.fetch(labels)
            return found

        self._found = [_added(parts) for parts in self._visit(step, self.mean)]
        self._labels = labels
        return int(np.count_nonzero(before != labels))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        return _added(self._found)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        found = self._labelled(centroids, lambda part: part.rows.distances(centroids))
        return np.concatenate([one for parts in found for one in parts])

    def inertia(self, centroids: np.ndarray) -> float:
        found = self._labelled(centroids, lambda part: part.rows.inertia(centroids))
        return sum(map(sum, found))

    def _labelled(self, centroids: np.ndarray, step: Callable[[Range], T]) -> list[list[T]]:
        """``step(part)`` of each range, which has these centroids and the labels of its rows."""

        def labelled(part: Range) -> T:
            if not self._staying:
                labels = self.labels[part.begin : part.end]
                part.device.upload(labels, part.rows.buffers["labels"])
            part.rows.put(centroids)
            return step(part)

        return self._visit(labelled, self.mean)


def _each(parts: Sequence[S], step: Callable[[S], T]) -> list[T]:
    """``step(part)`` of each of some ranges that stay, or their seedings, on its device."""
    found = []
    for part in parts:
        with part.device.active():
            found.append(step(part))
    return found


def _added(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The sums of rows and of weights of several ranges or shares."""
    sums, totals = zip(*found, strict=True)
    return np.sum(sums, axis=0), np.sum(totals, axis=0)


def combined(parts: list[tuple[int, np.ndarray, float]]) -> tuple[int, np.ndarray, float]:
    """How many rows, the columns' means, and the mean of their variances, of all rows from those
    of parts."""
    numbers, means, variances = zip(*parts, strict=True)
    if len(numbers) == 1:
        return parts[0]
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        mean = np.average(means, axis=0, weights=numbers)
        between = np.mean((np.array(means) - mean) ** 2, axis=1)  # of the parts' means
        return sum(numbers), mean, float(np.average(variances + between, weights=numbers))


class PartitionSeeding:
    """k-means++ of rows on several devices; X has all of them on the host, of which a mean is
    subtracted."""

    def __init__(self, parts: Sequence[Range], X: np.ndarray, mean: np.ndarray) -> None:
        self._parts, self._X, self._mean = parts, X, mean
        self._seedings = _each(parts, lambda part: DeviceSeeding(part.rows))
        self._tried = np.zeros((0, 0))
        self._reached = np.zeros(0)

    def first(self, index: int) -> float:
        self._try(np.array([index]), first=True)
        self.take(0)
        return float(self._reached[-1])

    def draw(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.empty(len(values), np.int64)
        owners = np.minimum(np.searchsorted(self._reached, values), len(self._parts) - 1)
        for number in np.unique(owners):
            part, mine = self._parts[number], owners == number
            before = self._reached[number - 1] if number else 0.0
            with part.device.active():
                found[mine] = part.begin + self._seedings[number].find(values[mine] - before)
        self._try(found, first=False)
        return found, self._tried.sum(axis=0)

    def take(self, which: int) -> None:
        _each(self._seedings, lambda seeding: seeding.take(which))
        self._reached = np.cumsum(self._tried[:, which])

    def _try(self, indices: np.ndarray, first: bool) -> None:
        rows = self._X[indices] - self._mean
        _each(self._seedings, lambda seeding: seeding.begin(rows, first))
        self._tried = np.stack(_each(self._seedings, DeviceSeeding.end))
