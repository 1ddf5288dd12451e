"""A ladder at one size, on a device or on the CPU: run, checked, timed; and the roof, the most that
a device gives, measured by kernels that do one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from hetero import devices
from hetero.calibration import measure as timing
from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, readable
from hetero.evaluation import problems
from hetero.host import loops as compiled
from hetero.imports import load
from hetero.kernels import Launch
from hetero.kernels.common.ladder import HELD_BYTES, Block, Step, Steps
from hetero.kernels.common.plan import peaks
from hetero.ladder.families import Arrays, Dims, Family
from hetero.pricing.plan import CPU

_POINT = 0.06  # seconds for one figure by the host's clock
_ROOM, _PLACES = 1 << 28, 8  # bytes of operands at different places, against caches
_MANY = 1 << 16  # threads: more than there are
_FLOPS = 1e6  # of the size that is tried first, to see how long others take
_BLOCKS = 32  # of each multiprocessor, of the kernels of the roof
_ROUNDS, _ROUNDS_OTHERS = {"cuda": 1 << 12}, 1 << 6
_COPIED = 1 << 26  # bytes of the copy of the roof on others: more than caches hold
_PRODUCT = 1024  # extent of the product that is the CPU's
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # of the largest value expected
Call = Callable[[int], object]  # ``call(turn)``


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


def active(place: Device | None) -> AbstractContextManager[Any]:
    """The context in which a device, or the CPU, runs."""
    return nullcontext() if place is None else place.active()


def named(place: Device | None) -> dict[str, str]:
    """What results say of a device: its names."""
    if place is None:
        return {"device": CPU, "name": CPU}
    return {"device": place.name, "name": place.describe()["name"]}


class Clock:
    """Seconds of calls on a ``device``, which is active, by its own clock; None: on the CPU."""

    def __init__(self, device: Device | None) -> None:
        self.device = device
        self._queue = timing.Queue(device) if device is not None and device.is_cuda else None

    def seconds(self, call: Call) -> float:
        """Of a call; of an OpenCL device by the host's clock."""
        if self._queue is not None:
            return self._queue.quickly(call)
        waited = timing.awaited(partial(call, 0), [self.device] if self.device else [])
        return timing.measure(waited, budget=_POINT, most=30)

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of a copy in the device's memory."""
        if self._queue is not None:
            return self._queue.copy_bandwidth()
        if self.device is None:
            source, target = np.ones(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
            return 2 * _COPIED / self.seconds(lambda _: np.copyto(target, source))
        (one, _first), (other, _second) = (self.device.allocate(_COPIED) for _ in range(2))
        self.device.fill(one, _COPIED)
        return 2 * _COPIED / self.seconds(lambda _: self.device.copy(other, one, _COPIED))

    def of_launch(self, launch: Launch, **buffers: Any) -> float:
        """Of a launch; ``"out"`` has up to 8 bytes for each thread."""
        device = self.device
        buffers["out"], _owner = device.allocate(8 * launch.grid * launch.block)
        kernel = device.build(launch.source, launch.kernel, launch.defines)
        arguments = [buffers[a] if type(a) is str else a for a in launch.arguments]
        return self.seconds(lambda _: device.launch(kernel, launch.grid, launch.block, arguments))


class OnCpu:
    """A family's loops at one size; those that run on threads on some numbers of them, or all."""

    def __init__(self, threads: Sequence[int], of: Family, dtype: str, dims: Dims) -> None:
        found = load("hetero.kernels.cpu.ladder").LADDERS.get(of.ladder.family, ())
        if not found:
            family = of.ladder.family
            raise ValueError(f"{family} has no loops on {CPU!r}: its kernels are a device's")
        self.of, self.dims, self.dtype, self._threads = of, dims, dtype, threads
        self.rungs, self.methods = {loop.name: loop for loop in found}, dict[str, str]()
        self.arrays = of.arrays(dtype, dims)

    def variants(self, name: str) -> list[dict[str, Any]]:
        """How a loop is called, by the options of `prepared`."""
        several = self._threads if self.rungs[name].threads else ()
        return [{"threads": number} for number in several or (None,)]

    def obstacle(self, name: str) -> str | None:
        """Why a loop cannot do this size; None where it can."""
        return compiled.obstacle()

    def prepared(self, name: str, threads: int | None = None) -> Call:
        """A loop as a call."""
        loop, given = self.rungs[name], tuple(self.arrays.values())
        if loop.threads:
            given = (load("hetero.host.threads").team_for(threads or _MANY, 1), *given)

        def call(turn: int) -> None:
            self.arrays[self.of.out][...] = 0
            loop.run(*given)

        return call

    def compile_ahead(self, *given: tuple[Any, ...]) -> None:
        """Each loop is compiled by its first call."""

    def check(self, name: str) -> None:
        """ValueError where a loop's result differs from NumPy's by more than rounding."""
        self.prepared(name)(0)
        out = self.of.out
        _compare(f"{name}'s {out}", self.arrays[out], self.of.expected(self.arrays, 1)[out])


class OnDevice:
    """A family's rungs, and hetero's own methods, at one size on an active device."""

    def __init__(self, device: Device, of: Family, dtype: str, dims: Dims) -> None:
        self.device, self.of, self.dims, self.dtype = device, of, dims, dtype
        self.rungs, self.methods = of.ladder.rungs, of.methods
        self.arrays, self.card = of.arrays(dtype, dims), device.card()
        nbytes = sum(array.nbytes for array in self.arrays.values())
        places = max(1, min(_PLACES, _ROOM // nbytes)) if device.is_cuda else 1
        self._owner = Workspace(device, "ladder")
        self._sets = [
            {name: self._owner.upload(array) for name, array in self.arrays.items()}
            for _ in range(places)
        ]

    def variants(self, name: str) -> list[dict[str, Any]]:
        """How a rung is launched, by the options of `prepared`."""
        return [{"block": self.chosen(name)}]

    def chosen(self, name: str) -> Block:
        """The block that a rung is launched with."""
        return self.of.ladder.chosen(name, self.dtype, self.card, self.dims)

    def steps(self, name: str, block: Block | None = None) -> Steps:
        """The launches of a rung, by default with its own block."""
        given = block or self.chosen(name), self.dtype, self.card, *self.dims
        return self.of.ladder.steps(self.of.ladder, self.rungs[name], *given)

    def compile_ahead(self, *given: tuple[Any, ...]) -> None:
        """Compile what `steps` gives for some arguments."""
        launches = [step.launch for one in given for step in self.steps(*one).launches]
        self.device.compile_ahead([(launch.source, launch.defines) for launch in launches])

    def obstacle(self, name: str) -> str | None:
        """Why a rung cannot do this size here; None where it can."""
        wanted = self.of.ladder.rungs[name].capability
        if wanted and (self.device.capability, self.dtype) != (wanted, "float32"):
            return "it is for float32 on compute capability {}.{}".format(*wanted)
        step, what, nbytes, most = self.steps(name).launches[0], "constant memory", 0, HELD_BYTES
        if step.held:
            nbytes = self.arrays[step.held].nbytes
        elif step.cleared:
            (columns, share), what = step.launch.arguments[5:7], "shared memory"
            most = dict(step.launch.defines)["SHARED_BYTES"]
            nbytes = share * columns * np.dtype(self.dtype).itemsize
        return f"{nbytes} bytes do not fit in the {most} of {what}" if nbytes > most else None

    def prepared(self, name: str, block: Block | None = None) -> Call:
        """A rung as a call, what is made once before done."""
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
        if step.held:
            kernel, given["held"], _owner = device.constant_memory(*where, "held", HELD_BYTES)
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
        device.launch(kernel, launch.grid, launch.block, arguments, launch.shared_bytes)

    def check(self, name: str, block: Block | None = None) -> None:
        """ValueError where a rung's results differ from NumPy's by more than rounding."""
        expected = self.of.expected(self.arrays, self.rungs[name].repeats)
        self.prepared(name, block)(0)
        for result, value in expected.items():
            found = np.zeros_like(value)
            self.device.download(self._sets[0][result], found)
            _compare(f"{name}'s {result}", found, value)

    def method(self, name: str) -> Call:
        """A method of hetero's on arrays of the device, as a call."""
        there: Arrays = {"host": self.arrays}
        for key, host in self.arrays.items():
            there[key], buffer = self.device.new_array(host.shape, host.dtype)
            self.device.upload(host, buffer)
        return lambda turn: self.of.call(there, device=self.device.name, method=name)


def _compare(what: str, found: np.ndarray, value: np.ndarray) -> None:
    """ValueError where results differ by more than rounding."""
    worst = float(np.abs(found - value).max() / max(np.abs(value).max(), 1e-30))
    if not worst <= TOLERANCE.get(value.dtype.name, 0.0):
        raise ValueError(f"{what} is wrong by {worst:.2g} of the largest value")


def too_long(of: Family, dims: Dims, limit: float, seconds: Callable[[Dims], float]) -> str | None:
    """Why a size would take too long, by sizes that double: each shows how long the next takes."""
    sizes = [dims]
    while of.work(*sizes[0])[0] > _FLOPS and max(sizes[0]) > 1:
        sizes.insert(0, tuple(max(1, size // 2) for size in sizes[0]))
    flops = [of.work(*size)[0] for size in sizes]
    for at, (here, following) in enumerate(pairwise(flops)):
        rate = seconds(sizes[at]) / here
        if rate * following > limit:
            return f"would take about {readable(rate * flops[-1])}"
        if rate * flops[-1] < limit / 8:  # and less than that, since small sizes are slow
            break
    return None


def roof(clock: Clock, dtype: str) -> Mapping[str, Any]:
    """The most that a clock's device gives: flops_per_second, by arithmetic on registers alone or
    a product by BLAS, as ``how`` says; bytes_per_second, read and written by a copy in its memory.

    A method takes at least the longer of the times of its flops and of its bytes, its roof
    (S. Williams, A. Waterman, D. Patterson, "Roofline", Commun. ACM 52 (2009), 65-76).
    """
    device = clock.device
    if device is None:
        A = np.random.default_rng(0).random((_PRODUCT, _PRODUCT), np.float32).astype(dtype)
        C = np.empty_like(A)
        product = clock.seconds(lambda _: np.dot(A, A, out=C))
        rates = {"a product by BLAS": 2.0 * _PRODUCT**3 / product}
    else:
        blocks = _BLOCKS * device.multiprocessors
        rounds = _ROUNDS.get(device.kind, _ROUNDS_OTHERS)
        kernels = peaks(dtype, blocks, rounds, device.block_limit, device.capability)
        rates = {how: flops / clock.of_launch(launch) for how, (launch, flops) in kernels.items()}
    how = max(rates, key=rates.__getitem__)
    return {"flops_per_second": rates[how], "bytes_per_second": clock.bandwidth(), "how": how}
