"""Rows on one device, for a whole fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.imports import load
from hetero.ops.kmeans import initial
from hetero.ops.kmeans.fit import Fit, Run
from hetero.ops.kmeans.operands import SEEDED, check_finite
from hetero.registry import Arguments
from hetero.registry.problem import Problem


class OneDevice:
    """See `hetero.ops.kmeans.fit.Rows`.

    Parameters
    ----------
    device : Device
        It is active.
    problem : Problem
    arguments : Arguments
        X and perhaps weights are buffers.
    method : str
    """

    def __init__(self, device: Device, problem: Problem, arguments: Arguments, method: str) -> None:
        DeviceRows = load("hetero.ops.kmeans.lloyd_device").DeviceRows
        self._device, self._problem = device, problem
        self._inputs = (*arguments.inputs, None)[:2]
        self._asked: Fit = arguments.options
        labels = self._asked.labels
        asked, seeded = self._asked, problem.layout == SEEDED
        self._rows = DeviceRows(
            device, problem, *self._inputs, method, labels, asked.given, seeded=seeded
        )
        self.mean: Any = self._rows.mean
        if not math.isfinite(self._rows.mean_variance()):  # or only their squares overflow
            check_finite(self._host())

    def mean_variance(self) -> float:
        """See `hetero.ops.kmeans.fit.Rows`."""
        return self._rows.mean_variance()

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """See `hetero.ops.kmeans.fit.Rows`."""
        n = self._problem.dims[0]
        if callable(how):
            X = self._host()
            centre = X.mean(axis=0)
            return initial.by_callable(how, X - centre, k, random) + (centre - self.mean)
        weights = self._weights()
        if how == initial.PLUS_PLUS:
            first = initial.weighted_choice(n, weights, random)
            return self._rows.rows(initial.plus_plus(self._rows.seeding(), first, k, random))
        return self._rows.rows(initial.weighted_choice(n, weights, random, k))

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray | None]:
        """See `hetero.ops.kmeans.fit.Rows`."""
        if maxiter:
            run = self._rows.lloyd(centroids, maxiter, tol, exactly)
        else:
            run = Run(self._rows.assign(centroids), 0, False)
        if self._asked.labels is not None and self._asked.starts == 1:
            return run, None
        return run, self._rows.fetch_labels()

    def _host(self) -> np.ndarray:
        """X on the host."""
        if self._asked.host is not None:
            return self._asked.host
        X = np.empty(self._problem.dims[:2], self._problem.dtype)
        self._device.download(self._inputs[0], X)
        return X

    def _weights(self) -> np.ndarray | None:
        if self._inputs[1] is None:
            return None
        weights = np.empty(self._problem.dims[0], self._problem.dtype)
        self._device.download(self._inputs[1], weights)
        return weights
