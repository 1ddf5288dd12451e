"""`hetero calibrate --kernels`: measure the figures that a card's kernels are planned by."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import kernels
from hetero.calibration.ahead import compiling
from hetero.calibration.measure.queue import Queue
from hetero.devices.base import Device
from hetero.errors import KernelCompileError
from hetero.imports import load
from hetero.kernels.common import tuning
from hetero.kernels.common.refit import Buffers, Limits

_COLD_BYTES = 200 << 20  # several times the largest cache, which operands rotate through
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
        The content of a table (`hetero.kernels.common.tuning`). A figure is the nearest table's
        unless another value is better by more than noise.
    """
    info = device.describe()
    card, architecture = info["name"], info.get("arch", "")
    table = tuning.nearest(card, architecture, device.multiprocessors)
    limits = Limits(
        device.multiprocessors, device.block_limit, device.shared_limit, device.capability
    )
    values: dict[str, Any] = {}
    modules = {name: load(f"hetero.kernels.{name}.refit") for name in kernels.REFITTED}

    def tell(done: int, text: str) -> None:
        if progress is not None:
            progress(done / (len(modules) + 1), f"{text} of {device.name}")

    with device.active():
        tell(0, "compiling kernels")
        plans = (plan for module in modules.values() for plan in module.candidates(table, limits))
        compiling.compile_kernels(
            device, ((one.source, one.defines) for plan in plans for one in plan.launches)
        )
        clock = DeviceClock(device)
        for number, (family, module) in enumerate(modules.items(), 1):
            tell(number, f"tuning {family}")
            values |= module.refit(table, limits, clock.seconds)
    return table.replaced(
        values,
        card=card,
        architecture=architecture,
        multiprocessors=device.multiprocessors,
        measured=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


class DeviceClock:
    """Seconds of device time of launches on operands with known or random contents.

    Parameters
    ----------
    device : Device
        Active in this thread as long as this is used.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._queue = Queue(device)
        self._pools: list[tuple[Any, int, Any]] = []
        self._kept: dict[int, tuple[Any, np.ndarray, Any]] = {}
        self._noise = np.random.default_rng(0).random(1 << 24, np.float32) - np.float32(0.5)

    def seconds(
        self, launch_plan: kernels.LaunchPlan, buffers: Buffers, cold: bool = True
    ) -> float:
        """Of the launches, on operands that come from memory if ``cold``, and not from a cache.

        Infinite where a kernel cannot be compiled.
        """
        try:
            return self._seconds(launch_plan, buffers, cold)
        except KernelCompileError:
            return math.inf

    def _seconds(self, launch_plan: kernels.LaunchPlan, buffers: Buffers, cold: bool) -> float:
        names = {a for one in launch_plan.launches for a in one.arguments if type(a) is str}
        if launch_plan.workspace:
            names.discard("partial")
        wanted = {name: buffers[name] for name in names}
        known = {n: self._keep(a) for n, a in wanted.items() if isinstance(a, np.ndarray)}
        sizes = {n: -(-nbytes // 256) * 256 for n, nbytes in wanted.items() if n not in known}
        places = -(-_COLD_BYTES // sum(sizes.values())) if cold else 1
        places = max(1, min(places, _MOST_PLACES, _POOL_BYTES // max(sizes.values())))
        largest_first = sorted(sizes, key=lambda name: -sizes[name])
        pools = {n: self._pool(i, sizes[n] * places) for i, n in enumerate(largest_first)}
        itemsize = 8 if "double" in dict(launch_plan.launches[0].defines).values() else 4
        device, scratch = self._device, None
        if launch_plan.workspace:
            known["partial"], scratch = device.allocate(launch_plan.workspace * itemsize)
        ready = [device.build(one.source, one.kernel, one.defines) for one in launch_plan.launches]

        def launches(place: int) -> list[tuple[Any, ...]]:
            at = {name: pools[name] + size * place for name, size in sizes.items()} | known
            return [
                (
                    kernel,
                    one.grid,
                    one.block,
                    [at.get(a, a) for a in one.arguments],
                    one.shared_bytes,
                )
                for kernel, one in zip(ready, launch_plan.launches, strict=True)
            ]

        turns = itertools.cycle([launches(place) for place in range(places)])

        def call(_: int) -> None:  # minimal, so that the device does not wait for the host
            for launch in next(turns):
                device.launch(*launch)

        seconds = self._queue.quickly(call)
        if _LONG < seconds < _WARM:  # long enough to reach the card's power limit
            seconds = self._queue.seconds(call, max(1, round(_WARM / seconds)), 2)
        del scratch
        return seconds

    def _keep(self, array: np.ndarray) -> Any:
        """An array's copy on the device."""
        if id(array) not in self._kept:
            buffer, owner = self._device.allocate(array.nbytes)
            self._device.upload(array, buffer)
            self._kept[id(array)] = buffer, array, owner
        return self._kept[id(array)][0]

    def _pool(self, number: int, nbytes: int) -> Any:
        """Memory for the operand of this number, filled with random numbers."""
        if number == len(self._pools):
            self._pools.append((None, 0, None))
        if self._pools[number][1] < nbytes:
            nbytes = max(1 << (nbytes - 1).bit_length(), self._noise.nbytes)
            self._pools[number] = None, 0, None  # given back before more is taken
            buffer, owner = self._device.allocate(nbytes)
            for offset in range(0, nbytes, self._noise.nbytes):
                self._device.upload(self._noise, buffer, offset)
            self._pools[number] = buffer, nbytes, owner
        return self._pools[number][0]
