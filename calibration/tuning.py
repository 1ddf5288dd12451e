"""`hetero calibrate --kernels`: measure the figures that a card's kernels are planned by."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from hetero import kernels
from hetero.calibration.queue import Queue
from hetero.devices.base import Device
from hetero.kernels.common import tuning
from hetero.kernels.common.refit import Limits

_COLD_BYTES = 200 << 20  # several times the largest cache: operands rotate among as many
_MOST_PLACES = 256
_POOL_BYTES = (1 << 30) + (1 << 28)  # for one operand, at all its places
_LONG = 1e-3  # seconds, from which on calls are repeated until the card is as warm as in use
_WARM = 0.03


def measure_table(device: Device, progress: Callable[[float, str], None] | None = None) -> Any:
    """Measure a card's tuning table, from the nearest that is shipped.

    Parameters
    ----------
    device : Device
        Of CUDA.
    progress : callable, optional
        Called as ``progress(fraction, text)``.

    Returns
    -------
    dict
        The content of a table (`hetero.kernels.common.tuning`). Figures of families that have no
        ``refit`` module are the nearest table's.
    """
    info = device.describe()
    card, architecture = info["name"], info.get("arch", "")
    table = tuning.nearest(card, architecture, device.multiprocessors)
    limits = Limits(
        device.multiprocessors, device.block_limit, device.shared_limit, device.capability
    )
    values: dict[str, Any] = {}
    with device.active():
        clock = DeviceClock(device)
        for number, family in enumerate(kernels.REFITTED):
            if progress is not None:
                progress(number / len(kernels.REFITTED), f"tuning {family} of {device.name}")
            refit = import_module(f"hetero.kernels.{family}.refit").refit
            values |= refit(table, limits, clock.seconds)
    return table.replaced(
        values,
        card=card,
        architecture=architecture,
        multiprocessors=device.multiprocessors,
        measured=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


class DeviceClock:
    """Seconds of device time of launches on operands that come from memory, not from a cache.

    Parameters
    ----------
    device : Device
        Active in this thread as long as this is used.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._queue = Queue(device)
        self._pools: dict[str, tuple[Any, int, Any]] = {}
        self._noise = np.random.default_rng(0).random(1 << 24, np.float32) - np.float32(0.5)

    def seconds(self, launch_plan: kernels.LaunchPlan, buffers: Mapping[str, int]) -> float:
        """Of the launches, on operands of so many bytes."""
        sizes = {name: -(-nbytes // 256) * 256 for name, nbytes in buffers.items()}
        places = -(-_COLD_BYTES // sum(sizes.values()))
        places = max(1, min(places, _MOST_PLACES, _POOL_BYTES // max(sizes.values())))
        pools = {name: self._pool(name, size * places) for name, size in sizes.items()}
        itemsize = 8 if "double" in dict(launch_plan.launches[0].defines).values() else 4
        turns = itertools.count()

        def call(_: int) -> None:
            place = next(turns) % places
            operands = {name: pools[name] + size * place for name, size in sizes.items()}
            self._device.run_launches(launch_plan, operands, itemsize)

        found = self._queue.quickly(call)
        if _LONG < found < _WARM:  # long enough to meet the card's limit of power
            found = self._queue.seconds(call, max(1, round(_WARM / found)), 2)
        return found

    def _pool(self, name: str, nbytes: int) -> Any:
        """Memory for an operand, as much as was ever asked for, filled with random numbers."""
        if name not in self._pools or self._pools[name][1] < nbytes:
            self._pools.pop(name, None)
            nbytes = max(nbytes, _POOL_BYTES)
            buffer, owner = self._device.allocate(nbytes)
            for offset in range(0, nbytes, self._noise.nbytes):
                part = self._noise[: min(self._noise.nbytes, nbytes - offset) // 4]
                self._device.upload(part, buffer, offset)
            self._pools[name] = buffer, nbytes, owner
        return self._pools[name][0]
