"""A rung at one size on one device, and a loop on the CPU: run, checked, timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from hetero import devices
from hetero.calibration.measure import timing
from hetero.calibration.measure.queue import Queue
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable
from hetero.host import limits
from hetero.kernels.common.ladder import HELD_BYTES, Block, Step
from hetero.ladder.families import Dims, Family
from hetero.ops import benchmark
from hetero.pricing.plan import CPU
from hetero.times import readable

POINT = 0.06  # seconds for one figure by the wall's clock
_ROOM = 1 << 28  # bytes of operands at different places, against caches
_PLACES = 8
_FLOPS = 1e6  # of the size that is tried first, to see how long others take
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # of the largest value expected


def place_of(device: str | None) -> Device | None:
    """The device that is named, or the first GPU, or the first one at all; None of the CPU.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device.
    """
    if device == CPU:
        return None
    if device is None:
        device = benchmark.cuda_device() or next(iter(devices.proven()), None)
    if device is None:
        why = "; ".join(devices.missing())
        raise DeviceNotAvailable(
            f"kernels need a GPU or an OpenCL device, and none is here: {why}; the CPU's loops: "
            "'hetero ladder' with --device cpu"
        )
    return devices.get(device)


class Clock:
    """Times calls on a device, which is active, or on the CPU."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        own = device is not None and device.traits.own_clock
        self._queue = Queue(device) if own else None

    def seconds(self, call: Callable[[int], object]) -> float:
        """Seconds of ``call(turn)``: by the device's own clock where it has one."""
        if self._queue is not None:
            return self._queue.quickly(call)
        return timing.measure(partial(self.wait, call), budget=POINT, most=30).seconds

    def once(self, call: Callable[[int], object]) -> float:
        """Seconds of a second call, by the wall's clock."""
        self.wait(call)
        return timing.once(partial(self.wait, call))

    def wait(self, call: Callable[[int], object]) -> None:
        """Make a call, and wait until it is done."""
        call(0)
        if self._device is not None:
            self._device.synchronize()


class OnDevice:
    """A family's rungs at one size on an active device.

    Parameters
    ----------
    device : Device
    of : Family
    dims : tuple of int
    dtype : str
    """

    def __init__(self, device: Device, of: Family, dims: Dims, dtype: str) -> None:
        self.device, self.of, self.dims, self.dtype = device, of, dims, dtype
        self.arrays = of.operands(np.random.default_rng(0), dtype, *dims)
        self.card = device.card()
        nbytes = sum(array.nbytes for array in self.arrays.values())
        own = device.traits.own_clock
        self._owners: list[Any] = []
        self._sets = [
            {name: self._uploaded(array) for name, array in self.arrays.items()}
            for _ in range(max(1, min(_PLACES, _ROOM // nbytes)) if own else 1)
        ]

    def _uploaded(self, array: np.ndarray) -> Any:
        buffer = self._allocated(array.nbytes)
        self.device.upload(array, buffer)
        return buffer

    def _allocated(self, nbytes: int) -> Any:
        buffer, owner = self.device.allocate(nbytes)
        self._owners.append(owner)
        return buffer

    def blocks(self, name: str) -> tuple[Block, ...]:
        """The legal blocks of a rung."""
        return self.of.ladder.blocks(name, self.dtype, self.card)

    def chosen(self, name: str) -> Block:
        """The block that a rung is launched with."""
        return self.of.ladder.chosen(name, self.dtype, self.card, self.dims)

    def obstacle(self, name: str) -> str | None:
        """Why a rung cannot do this size; None where it can."""
        return self.of.obstacle(name, self.dims, np.dtype(self.dtype).itemsize, self.card)

    def prepared(self, name: str, block: Block | None = None) -> Callable[[int], None]:
        """A rung as ``call(turn)``, compiled, with what is made once before done."""
        steps = self.of.ladder.steps(
            name, block or self.chosen(name), self.dtype, self.card, self.dims
        )
        scratch = {n: self._allocated(nbytes) for n, nbytes in steps.scratch.items()}
        sets = [{**buffers, **scratch} for buffers in self._sets]
        for step in steps.before:
            self._run(step, sets[0])

        def call(turn: int) -> None:
            for step in steps.launches:
                self._run(step, sets[turn % len(sets)])

        return call

    def _run(self, step: Step, buffers: dict[str, Any]) -> None:
        device, launch, given = self.device, step.launch, dict(buffers)
        where = launch.source, launch.kernel, launch.defines
        with ExitStack() as held:
            if step.held:
                constant = device.constant_memory(*where, "held", HELD_BYTES)
                kernel, given["held"] = held.enter_context(constant)
                nbytes = self.arrays[step.held].nbytes
                device.copy(given["held"], buffers[step.held], nbytes)
            elif step.cleared:
                device.fill(buffers[step.cleared], 4)
                kernel = device.cooperative(*where, launch.block, 0)
            else:
                kernel = device.build(*where)
            arguments = [given[a] if type(a) is str else a for a in launch.arguments]
            if step.cleared and kernel is not None:
                kernel.launch(launch.grid, arguments)
            else:
                kernel = kernel or device.build(*where)
                device.launch(kernel, launch.grid, launch.block, arguments)

    def results(self, name: str, block: Block | None = None) -> dict[str, np.ndarray]:
        """What a rung makes, by the names of its results."""
        wanted = self.of.expected(self.arrays, self.of.ladder.rungs[name].repeats)
        self.prepared(name, block)(0)
        found = {result: np.zeros_like(value) for result, value in wanted.items()}
        for result, value in found.items():
            self.device.download(self._sets[0][result], value)
        return found

    def wanted(self, name: str, block: Block | None = None) -> list[tuple[str, Any]]:
        """What a rung is compiled from, for `Device.compile_ahead`."""
        block = block or self.chosen(name)
        steps = self.of.ladder.steps(name, block, self.dtype, self.card, self.dims)
        launches = [step.launch for step in (*steps.before, *steps.launches)]
        return [(launch.source, launch.defines) for launch in launches]

    def method(self, name: str) -> Callable[[int], object]:
        """A method of hetero's on arrays of the device, as ``call(turn)``."""
        there = {n: self._array(a) for n, a in self.arrays.items()} | {"host": self.arrays}
        return lambda turn: self.of.call(there, device=self.device.name, method=name)

    def _array(self, host: np.ndarray) -> Any:
        array, buffer = self.device.new_array(host.shape, host.dtype)
        self.device.upload(host, buffer)
        return array


class OnCpu:
    """A family's loops at one size on the CPU; see `OnDevice`."""

    def __init__(self, of: Family, dims: Dims, dtype: str) -> None:
        self.of, self.dims, self.dtype = of, dims, dtype
        self.arrays = of.operands(np.random.default_rng(0), dtype, *dims)
        self._given = of.loops(self.arrays)

    def prepared(self, loop: Any, threads: int | None = None) -> Callable[[int], None]:
        """A loop as ``call(turn)``, on some threads or all."""
        run = loop.run
        if threads is not None and loop.threads:
            run = limits.limited(limits.LOOPS, threads, run)
        out = self.arrays[self.of.out]

        def call(turn: int) -> None:
            out[...] = 0
            run(*self._given)

        return call


def check(
    rung: str, results: dict[str, np.ndarray], expected: dict[str, np.ndarray], dtype: str
) -> None:
    """ValueError where results differ from what is expected by more than rounding makes of it."""
    for name, value in expected.items():
        apart = np.abs(results[name].astype(float) - value.astype(float)).max()
        worst = float(apart) / max(float(np.abs(value).max()), 1e-30)
        if not worst <= TOLERANCE[dtype]:
            raise ValueError(f"{rung} is wrong by {worst:.2g} of the largest value of {name}")


def too_long(dims: Dims, limit: float, of: Family, once: Callable[[Dims], float]) -> str | None:
    """Why a size would take too long; None where it would not.

    It is tried at sizes that double, so that each shows how long the next one takes.
    """
    work = of.flops(*dims)
    sizes = [dims]
    while of.flops(*sizes[-1]) > _FLOPS and max(sizes[-1]) > 1:
        sizes.append(tuple(max(1, size // 2) for size in sizes[-1]))
    for small, following in zip(sizes[:0:-1], sizes[-2::-1], strict=True):
        rate = once(small) / of.flops(*small)
        if rate * of.flops(*following) > limit:
            return f"would take about {readable(rate * work)}"
        if rate * work < limit / 8:  # and less than that, since small sizes are slow
            return None
    return None
