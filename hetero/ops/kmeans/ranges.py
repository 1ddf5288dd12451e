"""Rows on the host that devices compute with in ranges: a fit on several, or on one without room.

Each device has its share of the rows. A share that has room is one range, which stays there. Else
it is cut, and ranges take turns in as many slots as have room, each loaded while those before it
are computed with. Every second iteration takes them in the opposite order, so that what came last
need not come again.

Each range is labelled and added up on its device; the host makes centroids of the sums. One mean of
all is subtracted of every range, so that rows get the labels that one device would give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.moving import pipeline
from hetero.moving.pipeline import Load, Step
from hetero.ops.kmeans.device import DeviceRows, DeviceSeeding, each, moments, subtracted
from hetero.ops.kmeans.fit import NumpyRows, Rows
from hetero.ops.kmeans.operands import check_finite
from hetero.ops.solvers.exchange import split
from hetero.pricing import places
from hetero.registry import Problem

_ROOM = 0.75  # of a device's room, that ranges take with what is made of them
_RANGES = 12  # in that share, at least: what moves is not to be waited for
_MOST = 256 << 20  # bytes of a range; the host has some milliseconds to do for each
_TURNS = 2  # slots, at least: one is loaded while another is computed with


class Range:
    """Rows from ``begin`` to ``end``, and what their device has of them: ``slots`` with the rows
    and their weights while they lie there, and what iterations need, ``rows``."""

    rows: DeviceRows | None = None

    def __init__(self, device: Device, arrays: Sequence[np.ndarray], slots: Any, cut: Any) -> None:
        self.device, self.slots, (self.begin, self.end) = device, slots, cut
        self.arrays = [array[self.begin : self.end] for array in arrays]

    def moments(self) -> tuple[int, np.ndarray, float]:
        """How many rows, their columns' means, and the mean of the columns' variances."""
        X = self.arrays[0]
        return len(X), *moments(self.device, self.slots[0].buffer, *X.shape, X.dtype)

    def fetch(self, labels: np.ndarray) -> None:
        """Bring its labels to their place among those of all rows."""
        self.device.download(self.rows.buffers["labels"], labels[self.begin : self.end])


class Share:
    """The rows from ``begin`` to ``end``, of one device: a range that stays there, or ranges that
    go through it."""

    def __init__(self, device: Device, arrays: Sequence[np.ndarray], begin: int, end: int) -> None:
        n, row = end - begin, arrays[0][0].nbytes
        needed = 2 * row + 16  # bytes: a copy less the mean, labels and what an iteration makes
        room = int(_ROOM * min(places.room(places.described(device)), 2 * n * needed))
        self.device, self.stays = device, n * needed <= room
        by_room = max(1, min(room // _RANGES, _MOST) // row)
        cuts = split(n, 1 if self.stays else -(-n // by_room))
        longest = cuts[0][1]
        number = min(len(cuts), max(room // (longest * needed) - 1, _TURNS))
        with device.active():
            slots = [
                [pipeline.slots(device, longest * array[0].nbytes, 1)[0] for array in arrays]
                for _ in range(number)
            ]
        self._ranges = [
            Range(device, arrays, slots[i % number], (begin + a, begin + b))
            for i, (a, b) in enumerate(cuts)
        ]
        self._held: list[Range | None] = [None] * number  # in each of the slots
        self._order = 1

    def visit(self, step: Callable[[Range], Any]) -> list[Any]:
        """``step(part)`` for each range while it is on the device, in the order of the rows."""
        found: dict[int, Any] = {}

        def compute(part: Range, before: Range | None) -> None:
            if before is not None and before is not part:
                before.rows = None
            found[part.begin] = step(part)

        def steps() -> Iterator[Step]:
            for number, part in list(enumerate(self._ranges))[:: self._order]:
                slot = number % len(self._held)
                before, self._held[slot] = self._held[slot], part
                loads = () if before is part else tuple(map(Load, part.arrays, part.slots))
                yield Step(partial(compute, part, before), loads, (), tuple(part.slots))

        with self.device.active():
            pipeline.run(self.device, steps())
        self._order = -self._order
        return [found[begin] for begin in sorted(found)]


class RangeRows(Rows):
    """Rows on the host, of which each device computes with its share, all at the same time.

    Where all shares stay on their devices their labels do, too, until they are asked for. ``given``
    and ``counted`` are as for `DeviceRows`.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None = None,
        given: np.ndarray | None = None,
        counted: bool = False,
    ) -> None:
        super().__init__(X, weights)
        self._problem, arrays = problem, (X,) if weights is None else (X, weights)
        shares = zip(devices, split(self.n, len(devices)), strict=False)
        self._shares = [Share(device, arrays, *cut) for device, cut in shares]
        stay = all(share.stays for share in self._shares)
        self._counted = counted and stay  # else the host has the labels
        means, self.variance = self._combined() if given is None else (None, np.inf)
        self.mean = subtracted(means, self.variance, X.dtype, given)
        if not np.isfinite(self.variance):
            check_finite(X)
        self._labels: np.ndarray | None = None
        self._staying = self._visit(self._laid_out) if stay else []

    def _laid_out(self, part: Range) -> DeviceRows:
        """A range, which lies on its device, ready for iterations on its rows less the mean."""
        if part.rows is None:
            _, d, k = self._problem.dims
            problem = replace(self._problem, dims=(part.end - part.begin, d, k))
            buffers, how = [slot.buffer for slot in part.slots], {"mean": self.mean}
            part.rows = DeviceRows(part.device, problem, *buffers, counted=self._counted, **how)
        return part.rows

    def _visit(self, step: Callable[[Range], Any]) -> list[Any]:
        """``step(part)`` of each range."""
        found: dict[int, list[Any]] = {}

        def visit(number: int) -> None:
            found[number] = self._shares[number].visit(step)

        used, tasks = [s.device for s in self._shares], range(len(self._shares))
        peers.run(used, [partial(visit, n) for n in tasks], self._X.nbytes // len(used))
        return [one for number in tasks for one in found[number]]

    def _combined(self) -> tuple[np.ndarray, float]:
        """The columns' means, and the mean of their variances, of all rows from those of ranges."""
        numbers, means, variances = zip(*self._visit(Range.moments), strict=True)
        with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
            mean = np.average(means, axis=0, weights=numbers)
            between = np.mean((np.array(means) - mean) ** 2, axis=1)  # of the parts' means
            return mean, float(np.average(variances + between, weights=numbers))

    def seeding(self) -> Any:
        if self._staying:
            return DeviceSeeding(self._staying, self._X, self.mean)
        return NumpyRows(self._X, self._weights)

    @property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        if self._labels is None:
            labels = self._labels = np.empty(self.n, np.int32)
            self._visit(lambda part: part.fetch(labels))
        return self._labels

    def restart(self, centroids: np.ndarray) -> None:
        self._labels, self._is_first = np.full(self.n, -1, np.int32), True

    def assign(self, centroids: np.ndarray) -> int:
        if self._staying:  # all of them at once, by this thread
            each(self._staying, lambda rows: rows.begin(centroids))
            self._found = each(self._staying, DeviceRows.sums)
            states = each(self._staying, DeviceRows.state)
            changed = self.n if self._is_first else sum(changed for _, _, changed in states)
            self._labels, self._is_first = None, False
            return changed
        before, labels = self.labels, np.empty(self.n, np.int32)

        def step(part: Range) -> tuple[np.ndarray, np.ndarray]:
            rows = self._laid_out(part)
            rows.begin(centroids)
            found = rows.sums()
            part.fetch(labels)
            return found

        self._found, self._labels = self._visit(step), labels
        return int(np.count_nonzero(before != labels))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        sums, totals = zip(*self._found, strict=True)
        return np.sum(sums, axis=0), np.sum(totals, axis=0)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        return np.concatenate(self._labelled(centroids, DeviceRows.distances))

    def inertia(self, centroids: np.ndarray) -> float:
        return sum(self._labelled(centroids, DeviceRows.inertia))

    def _labelled(self, centroids: np.ndarray, of: Callable[..., Any]) -> list[Any]:
        """``of(rows, centroids)`` of each range, with these centroids and its rows' labels."""

        def step(part: Range) -> Any:
            rows = self._laid_out(part)
            if not self._staying:
                labels = self.labels[part.begin : part.end]
                part.device.upload(labels, rows.buffers["labels"])
            return of(rows, centroids)

        return self._visit(step)
