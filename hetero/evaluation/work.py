"""Work that the CPU or a device does: seconds that are given, or a call of an operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import NamedTuple

from hetero import devices as backends
from hetero.arrays import HOST, Spec
from hetero.calling.planner import Machine
from hetero.errors import DeviceError, MethodNotAvailable, NotPriced
from hetero.evaluation import draws
from hetero.evaluation.break_even import scaled
from hetero.ops import benchmark
from hetero.ops.benchmark import Trial
from hetero.pricing.plan import Candidate, Plan
from hetero.registry import Operation
from hetero.registry.problem import Problem

_LEAST, _MOST, _SECONDS = 3, 15, 0.3  # samples of a call, and seconds for all of them
_LONGEST = 5.0  # predicted seconds of a call that is measured


class Given(NamedTuple):
    """Work of which the seconds are given.

    Attributes
    ----------
    cpu : float
        On the CPU.
    device : float or None
        On the device, its operands there; None where that is not known.
    """

    cpu: float
    device: float | None = None

    def __str__(self) -> str:
        return "the given work"


@dataclass(frozen=True)
class Call:
    """A call of an operation, by its dimensions.

    Attributes
    ----------
    operation : Operation
    dims : tuple of int
    dtype : str
    options : mapping
        The operation's own.
    """

    operation: Operation
    dims: tuple[int, ...]
    dtype: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.operation.function, *map(str, self.dims), self.dtype])

    def problem(self, on: str = HOST) -> Problem:
        """Its problem, with its operands on a device or the host."""
        return self.operation.from_dims(self.dims, self.dtype, on, **self.options)

    def _specs(self, problem: Problem) -> tuple[Spec, ...]:
        return tuple(Spec(o.shape, o.dtype, on=o.location) for o in problem.inputs)

    def plan(
        self, machine: Machine, on: str = HOST, device: str | None = None, method: str | None = None
    ) -> Plan:
        """Its plan on a machine, with its operands on a device or the host."""
        problem = self.problem(on)
        if self.operation.plan is None:
            return machine.plan(problem, device, method)
        operands, options = self._specs(problem), dict(self.options)
        return self.operation.plan(operands, options, device, method, machine)

    def chosen(self, machine: Machine, on: str, device: str | None = None) -> Candidate | None:
        """How a machine does it, on one device where it is named; None where it cannot."""
        try:
            found = self.plan(machine, on, device).chosen
        except (NotPriced, MethodNotAvailable):
            return None
        return found if device is None or set(found.device.split("+")) == {device} else None

    def moved(self, up: float = 1.0, down: float = 1.0) -> tuple[list[int], list[int]]:
        """Bytes of each of its operands, and of its result, times a factor: a copy each."""
        problem = self.problem()
        return [round(up * o.nbytes) for o in problem.inputs], [round(down * problem.output.nbytes)]

    @property
    def growing(self) -> tuple[int, ...]:
        """Which of its dimensions grow with its size; the first one tells how large it is."""
        return benchmark.of(self.operation, "GROWING", tuple(range(len(self.dims))))

    @property
    def leading(self) -> str:
        """The name of the dimension that tells how large it is."""
        forms = (form.split() for form in self.operation.dims)
        names = next(names for names in forms if len(names) == len(self.dims))
        return names[self.growing[0]]

    def of_size(self, extent: int) -> Call:
        """The same call with another leading dimension."""
        return replace(self, dims=scaled(self.dims, self.growing, extent))

    def measured(self, candidate: Candidate | None, on: str) -> float | None:
        """Seconds of it by a candidate.

        None where the dimensions do not tell its operands, the device has no arrays, or it would
        take too long.
        """
        if candidate is None or not (candidate.seconds or 0.0) < _LONGEST:
            return None
        if on != HOST and not backends.get(on).traits.cuda_libraries:
            return None
        problem = self.problem(on)
        specs = self._specs(problem)
        try:
            told = self.operation.problem(*specs, **self.options)
            if (told.dims, told.inputs) != (problem.dims, problem.inputs):
                return None
            arrays = draws.Arrays(on).of(Trial(specs))
            place = {"device": candidate.device}
            return typical(
                _ended(partial(self.operation.call, *arrays, **place, **self.options), on)
            )
        except (TypeError, ValueError, DeviceError, MemoryError):
            return None


def _ended(call: Callable[[], object], on: str) -> Callable[[], object]:
    """A call that returns when its result is there."""
    if on == HOST:
        return call
    device = backends.get(on)

    def ended() -> None:
        call()
        with device.active():
            device.synchronize()

    return ended


def typical(call: Callable[[], object]) -> float:
    """Seconds of a call, which was made once before."""
    call()
    samples: list[float] = []
    while len(samples) < _LEAST or (len(samples) < _MOST and sum(samples) < _SECONDS):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return median(samples)
