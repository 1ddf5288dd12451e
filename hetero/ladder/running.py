"""A rung at one size on a device, or a loop on the CPU: run, checked, timed; and the roof, the most
that a device gives, measured by kernels that do one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from hetero import devices
from hetero.calibration import measure as timing
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceNotAvailable, MethodNotAvailable
from hetero.evaluation import problems
from hetero.imports import load
from hetero.kernels import Launch
from hetero.kernels.common.ladder import HELD_BYTES, Block, Step, Steps
from hetero.kernels.common.peak import peaks
from hetero.ladder.families import Arrays, Dims, Family
from hetero.pricing.plan import CPU
from hetero.times import readable

_POINT, _SHORT = 0.06, 0.01  # seconds: for one figure by the wall's clock; of a short call
_ROOM, _PLACES = 1 << 28, 8  # bytes of operands at different places, against caches
_MANY = 1 << 16  # threads: more than there are
_FLOPS = 1e6  # of the size that is tried first, to see how long others take
_BLOCKS = 32  # of each multiprocessor, of the kernels of the roof
_ROUNDS, _ROUNDS_OTHERS = {"cuda": 1 << 12}, 1 << 6
_COPIED, _COPIED_OTHERS = {"cuda": 1 << 30}, 1 << 26  # bytes, far more than caches hold
_REPEATS = 16  # other load only adds to them
_PRODUCT = 1024  # extent of the product that is the CPU's
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # of the largest value expected


def place_of(device: str | None) -> Device | None:
    """The device that is named, or the first GPU, or the first one at all; None of the CPU."""
    if device == CPU:
        return None
    device = device or problems.cuda_device() or next(iter(devices.proven()), None)
    if device is None:
        why = "; ".join(devices.missing())
        raise DeviceNotAvailable(
            f"kernels need a GPU or an OpenCL device, and none is here: {why}; the CPU's loops: "
            "'hetero ladder' with --device cpu"
        )
    return devices.get(device)


class Clock:
    """Times calls ``call(turn)`` on a device, which is active, or on the CPU."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        own = device is not None and device.is_cuda
        self._queue = timing.Queue(device) if own else None

    def seconds(self, call: Callable[[int], object]) -> float:
        """Seconds of a call: by the device's own clock where it has one."""
        if self._queue is not None:
            return self._queue.quickly(call)
        return timing.measure(partial(self._wait, call), budget=_POINT, most=30)

    def once(self, call: Callable[[int], object]) -> float:
        """Seconds of later calls, by the wall's clock; of a short one the least of some."""
        self._wait(call)
        first = timing.once(partial(self._wait, call))
        more = range(3 if first < _SHORT else 0)
        return min([first, *(timing.once(partial(self._wait, call)) for _ in more)])

    def _wait(self, call: Callable[[int], object]) -> None:
        call(0)
        if self._device is not None:
            self._device.synchronize()


class OnDevice:
    """A family's rungs at one size on an active device."""

    def __init__(self, device: Device, of: Family, dims: Dims, dtype: str) -> None:
        self.device, self.of, self.dims, self.dtype = device, of, dims, dtype
        self.arrays, self.card = of.arrays(dtype, dims), device.card()
        nbytes = sum(array.nbytes for array in self.arrays.values())
        places = max(1, min(_PLACES, _ROOM // nbytes)) if device.is_cuda else 1
        self._owner = Workspace(device, "ladder")
        self._sets = [{n: self._up(a) for n, a in self.arrays.items()} for _ in range(places)]

    def _up(self, array: np.ndarray) -> Any:
        buffer = self._owner.allocate(array.nbytes)
        self.device.upload(array, buffer)
        return buffer

    def chosen(self, name: str) -> Block:
        """The block that a rung is launched with."""
        return self.of.ladder.chosen(name, self.dtype, self.card, self.dims)

    def steps(self, name: str, block: Block | None = None) -> Steps:
        """The launches of a rung, by default with its own block."""
        given = block or self.chosen(name), self.dtype, self.card, *self.dims
        return self.of.ladder.steps(self.of.ladder, self.of.ladder.rungs[name], *given)

    def obstacle(self, name: str) -> str | None:
        """Why a rung cannot do this size; None where it can."""
        step, what, nbytes, most = self.steps(name).launches[0], "constant memory", 0, HELD_BYTES
        if step.held:
            nbytes = self.arrays[step.held].nbytes
        elif step.cleared:
            (columns, share), what = step.launch.arguments[5:7], "shared memory"
            most = dict(step.launch.defines)["SHARED_BYTES"]
            nbytes = share * columns * np.dtype(self.dtype).itemsize
        return f"{nbytes} bytes do not fit in the {most} of {what}" if nbytes > most else None

    def prepared(self, name: str, block: Block | None = None) -> Callable[[int], None]:
        """A rung as ``call(turn)``, what is made once before done."""
        steps = self.steps(name, block)
        scratch = {n: self._owner.allocate(nbytes) for n, nbytes in steps.scratch.items()}
        sets = [buffers | scratch for buffers in self._sets]
        for step in steps.before:
            self._run(step, sets[0])

        def call(turn: int) -> None:
            for step in steps.launches:
                self._run(step, sets[turn % len(sets)])

        return call

    def _run(self, step: Step, buffers: Arrays) -> None:
        device, launch, given = self.device, step.launch, dict(buffers)
        where = launch.source, launch.kernel, launch.defines
        with ExitStack() as stack:
            if step.held:
                held = device.constant_memory(*where, "held", HELD_BYTES)
                kernel, given["held"] = stack.enter_context(held)
                device.copy(given["held"], buffers[step.held], self.arrays[step.held].nbytes)
            else:
                kernel = device.build(*where)
            arguments = [given[a] if type(a) is str else a for a in launch.arguments]
            if step.cleared:
                device.fill(buffers[step.cleared], 4)
                together = device.cooperative(*where, launch.block, 0)
                if together is not None:
                    together.launch(launch.grid, arguments)
                    return
                if launch.grid > 1:
                    raise MethodNotAvailable(f"blocks do not wait for each other on {device.name}")
            device.launch(kernel, launch.grid, launch.block, arguments)

    def check(self, name: str, block: Block | None = None) -> None:
        """ValueError where a rung's results differ from NumPy's by more than rounding."""
        expected = self.of.expected(self.arrays, self.of.ladder.rungs[name].repeats)
        self.prepared(name, block)(0)
        for result, value in expected.items():
            found = np.zeros_like(value)
            self.device.download(self._sets[0][result], found)
            worst = float(np.abs(found - value).max() / max(np.abs(value).max(), 1e-30))
            if not worst <= TOLERANCE[self.dtype]:
                raise ValueError(f"{name}'s {result} is wrong by {worst:.2g} of the largest value")

    def method(self, name: str) -> Callable[[int], object]:
        """A method of hetero's on arrays of the device, as ``call(turn)``."""
        there: Arrays = {"host": self.arrays}
        for key, host in self.arrays.items():
            there[key], buffer = self.device.new_array(host.shape, host.dtype)
            self.device.upload(host, buffer)
        return lambda turn: self.of.call(there, device=self.device.name, method=name)


def on_cpu(of: Family, arrays: Arrays, loop: Any, threads: int | None = None) -> Callable[..., Any]:
    """A loop of the CPU as ``call(turn)``, on some threads or all."""
    given = of.loops(arrays)
    if loop.threads:
        given = (load("hetero.host.threads").team_for(threads or _MANY, 1), *given)

    def call(turn: int) -> None:
        arrays[of.out][...] = 0
        loop.run(*given)

    return call


def too_long(dims: Dims, limit: float, of: Family, once: Callable[[Dims], float]) -> str | None:
    """Why a size would take too long, by sizes that double: each shows how long the next takes."""
    sizes = [dims]
    while of.work(*sizes[-1])[0] > _FLOPS and max(sizes[-1]) > 1:
        sizes.append(tuple(max(1, size // 2) for size in sizes[-1]))
    flops = [of.work(*size)[0] for size in sizes]
    for at in range(len(sizes) - 1, 0, -1):
        rate = once(sizes[at]) / flops[at]
        if rate * flops[at - 1] > limit:
            return f"would take about {readable(rate * flops[0])}"
        if rate * flops[0] < limit / 8:  # and less than that, since small sizes are slow
            return None
    return None


# -- The roof --------------------------------------------------------------------------------------


def roof(device: Device | None, dtype: str) -> dict[str, Any]:
    """The most that a device, which is active, or the CPU gives: flops_per_second, by arithmetic on
    registers alone or a product by BLAS, as ``how`` says; bytes_per_second, read and written by a
    copy in its memory.

    A method takes at least the longer of the times of its flops and of its bytes, its roof
    (S. Williams, A. Waterman, D. Patterson, "Roofline", Commun. ACM 52 (2009), 65-76).
    """

    def found(flops: float, nbytes: float, how: str) -> dict[str, Any]:
        return {"flops_per_second": flops, "bytes_per_second": nbytes, "how": how}

    if device is None:
        A = np.random.default_rng(0).random((_PRODUCT, _PRODUCT), np.float32).astype(dtype)
        source = np.ones(_COPIED_OTHERS // A.itemsize, dtype)
        target, C = np.ones_like(source), np.empty_like(A)
        calls = (lambda: np.dot(A, A, out=C)), (lambda: np.copyto(target, source))
        product, copy = (min(timing.once(call) for _ in range(_REPEATS + 1)) for call in calls)
        rates = 2.0 * _PRODUCT**3 / product, 2 * source.nbytes / copy
        return found(*rates, "a product by BLAS")
    blocks = _BLOCKS * device.multiprocessors
    rounds = _ROUNDS.get(device.kind, _ROUNDS_OTHERS)
    kernels = peaks(dtype, blocks, rounds, device.block_limit, device.capability)
    rates = {how: flops / seconds_of(device, launch) for how, (launch, flops) in kernels.items()}
    how = max(rates, key=lambda name: rates[name])
    nbytes = _COPIED.get(device.kind, _COPIED_OTHERS)
    (source, _first), (target, _second) = device.allocate(nbytes), device.allocate(nbytes)
    device.fill(source, nbytes)
    copied = _least(device, lambda: device.copy(target, source, nbytes))
    return found(rates[how], 2 * nbytes / copied, how)


def seconds_of(device: Device, launch: Launch, buffers: Mapping[str, Any] | None = None) -> float:
    """Seconds of a launch on an active device; ``"out"`` has up to 8 bytes for each thread."""
    out, _owner = device.allocate(8 * launch.grid * launch.block)
    known = {**(buffers or {}), "out": out}
    kernel = device.build(launch.source, launch.kernel, launch.defines)
    arguments = [known[a] if type(a) is str else a for a in launch.arguments]
    return _least(device, lambda: device.launch(kernel, launch.grid, launch.block, arguments))


def _least(device: Device, run: Callable[[], object]) -> float:
    """Seconds on the device's clock, the fewest of some; the first run does not count."""
    run()
    device.synchronize()
    taken = []
    for _ in range(_REPEATS):
        begin = device.event()
        run()
        taken.append(device.elapsed(begin, device.event()))
    return min(taken)
