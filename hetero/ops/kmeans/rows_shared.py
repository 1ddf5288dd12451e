"""Rows on the host that several devices share: a part of each stays there, or comes in blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceMemoryError
from hetero.moving import failures
from hetero.ops.kmeans.rows_blocks import BlockRows
from hetero.ops.kmeans.rows_part import combined, cut_of
from hetero.ops.kmeans.rows_parts import PartedRows
from hetero.ops.linear_systems.partition import split
from hetero.pricing import memory_limit
from hetero.registry.problem import Problem


def shared_rows(
    devices: Sequence[Device],
    problem: Problem,
    X: np.ndarray,
    weights: np.ndarray | None,
    method: str,
    given: np.ndarray | None = None,
) -> PartedRows:
    """The rows in parts that stay, in blocks where one of the devices has no room for its part."""
    asked = problem, X, weights, method
    for again in (False, True):
        try:
            return PartedRows(devices, *asked, given)
        except DeviceMemoryError as error:
            failures.release(error)
        if again or not any([device.trim() for device in devices]):  # noqa: C419  # each of them
            break
    return SharedBlocks(devices, *asked, given=given)


class SharedBlocks(BlockRows):
    """Each device goes through its part of the rows in blocks, all of them at the same time.

    Parameters
    ----------
    devices : sequence of Device
    problem, X, weights, method, rows, given
        As for `BlockRows`.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        problem: Problem,
        X: np.ndarray,
        weights: np.ndarray | None,
        method: str,
        rows: int | None = None,
        given: np.ndarray | None = None,
    ) -> None:
        self._begin(X, weights)
        cuts = split(len(X), len(devices))
        self._devices = devices[: len(cuts)]
        self._each = []
        for device, cut in zip(self._devices, cuts, strict=True):
            mine = problem, X[slice(*cut)], cut_of(weights, cut), method
            room = memory_limit.room(memory_limit.of(device))
            self._each.append(BlockRows(device, *mine, room, rows, given))
        self._known, self.common = None, self._each[0].common

    @property
    def mean(self) -> np.ndarray:
        """See `BlockRows`; of all devices."""
        mean = super().mean
        for one in self._each:
            one.common = mean
        return mean

    def moments(self) -> tuple[int, np.ndarray, float]:
        """See `BlockRows`."""
        if self._known is None:
            self._known = combined(one.moments() for one in self._each)
        return len(self._X), *self._known

    def restart(self) -> None:
        """See `PartedRows`."""
        super().restart()
        for one in self._each:
            one.restart()

    def assign(self, centroids: np.ndarray) -> bool:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        self._saved, self._begun = centroids.copy(), self._begun + 1
        tasks = [functools.partial(one.assign, centroids) for one in self._each]
        before = self.labels
        at_once.run(self._devices, tasks, self._X.nbytes // len(tasks))
        self._found = [one.sums(centroids) for one in self._each]
        self._labels = np.concatenate([one.labels for one in self._each])
        return not np.array_equal(before, self._labels)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return np.concatenate([one.distances(centroids) for one in self._each])

    def inertia(self, centroids: np.ndarray) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return sum(one.inertia(centroids) for one in self._each)
