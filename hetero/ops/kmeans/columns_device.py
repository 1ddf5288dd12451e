"""The columns of X on a device: their means and variances, and what is subtracted of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan as plans

_FAR = 1.0  # of the variance; rows whose mean is farther from zero are centred


def launches(device: Device, n: int, d: int, dtype: np.dtype) -> tuple[Launch, Launch]:
    """What adds the columns up, and what makes X less their means."""
    return plans.columns(n, d, dtype.name, device.multiprocessors, device.block_limit)


def moments(device: Device, X: Any, n: int, d: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
    """The columns' means in float64, and the mean of their variances.

    Parameters
    ----------
    device : Device
        It is active.
    X : device buffer
        (n, d), contiguous.
    n, d, dtype
    """
    sums, _ = launches(device, n, d, dtype)
    space = Workspace(device, "kmeans")  # which holds it as long as it is there
    columns = space.allocate(sums.grid * 2 * d * 8)
    buffers = {"X": X, "columns": columns}
    arguments = [buffers[a] if type(a) is str else a for a in sums.arguments]
    kernel = device.build(sums.source, sums.kernel, sums.defines)
    device.launch(kernel, sums.grid, sums.block, arguments, sums.shared_bytes)
    first, found = np.empty(d, dtype), np.empty((sums.grid, 2, d))
    device.download(X, first)
    device.download(columns, found)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        apart, squares = found.sum(axis=0) / n
        return first + apart, float(np.mean(np.maximum(squares - apart * apart, 0.0)))


def subtracted(means: np.ndarray, variance: float, dtype: np.dtype) -> np.ndarray:
    """What is subtracted of rows for accurate distances: their mean, or zeros where that is near
    enough to zero."""
    with np.errstate(over="ignore"):  # infinite is far
        is_far = np.mean(means * means) > _FAR * variance
    if is_far:
        return means.astype(dtype)
    return np.zeros(len(means), dtype)


def subtracted_for(given: np.ndarray) -> np.ndarray:
    """What is subtracted of rows that only get labels: see `hetero.ops.kmeans.fit.Fit.given`."""
    variance = float(given.var(axis=0, dtype=np.float64).mean())
    return subtracted(given.mean(axis=0, dtype=np.float64), variance, given.dtype)
