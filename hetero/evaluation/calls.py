"""Calls of operations, drawn at random or given by their dimensions, with operands in memory; the
machine that they are planned for; and from which size on a device pays."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple

import numpy as np

from hetero import devices as backends
from hetero import profile
from hetero.arrays import HOST, Operand, Spec
from hetero.calling.planner import Machine
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, NotPriced, ProfileError, one_of
from hetero.evaluation import problems
from hetero.evaluation.problems import Trial
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.profile import Profile, inventory
from hetero.registry import Operation, Problem

Seconds = Callable[[int], float | None]  # of a leading extent; None: not known, or no room


def known(named: str | None) -> tuple[Profile, dict[str, dict[str, Any]]]:
    """Constants and devices of this machine, or of another one by its profile: its name, or a file.

    Raises
    ------
    ValueError
        If there is no such profile; the message names those that there are.
    """
    if named is None:
        backends.proven()
        return profile.current(), inventory.devices()
    try:
        constants = profile.named(named)
    except (ProfileError, OSError) as error:
        raise ValueError(str(error)) from None
    return constants, constants.machine() or inventory.devices()


def gpu(devices: Mapping[str, Mapping[str, Any]], device: str | None) -> str:
    """The device that is named, or the first GPU; DeviceNotAvailable says what there is."""
    others = [name for name in devices if name != CPU]
    for name in others:
        if name == device or (device is None and not devices[name].get("is_host_cpu")):
            return name
    if others and device is not None:
        raise DeviceNotAvailable(one_of("--device", others, device))
    here = f"no GPU is here; --device takes {', '.join(others) or 'none'}"
    raise DeviceNotAvailable(f"{here}; --profile h100, h200 or tesla-t10 predicts for one")


def draw(operation: Operation, random: random.Random, on: str, largest: int) -> Trial:
    """A random call of an operation, with dimensions up to ``largest``."""
    return problems.of(operation).draw(random, on, largest)


class Arrays:
    """Random numbers where a trial names but shapes: a block of them, repeated."""

    def __init__(self, on: str) -> None:
        self._on, self._block = on, np.random.default_rng(3).random(1 << 20) - 0.5

    def of(self, trial: Trial) -> tuple[Any, ...]:
        """The trial's operands, on the host or on the device."""
        return tuple(
            self._filled(x.operand()) if isinstance(x, Spec) else x for x in trial.operands
        )

    def _filled(self, operand: Operand) -> Any:
        values = np.resize(self._block.astype(operand.dtype), operand.size)
        host = np.ndarray(operand.shape, operand.dtype, values, 0, operand.strides)
        return host if operand.location == HOST else backends.get(self._on).array_of(host)


@dataclass(frozen=True)
class Call:
    """A call of an operation, by its dimensions; ``options`` are the operation's own."""

    operation: Operation
    dims: tuple[int, ...]
    dtype: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.operation.function, *map(str, self.dims), self.dtype])

    def problem(self, on: str = HOST) -> Problem:
        """Its problem, with its operands on a device or the host."""
        return self.operation.from_dims(self.dims, self.dtype, on, **self.options)

    def plan(
        self, machine: Machine, on: str = HOST, device: str | None = None, method: str | None = None
    ) -> Plan:
        """Its plan on a machine."""
        problem = self.problem(on)
        if self.operation.plan is None:
            return machine.plan(problem, device, method)
        specs = tuple(Spec(o.shape, o.dtype, on=o.location) for o in problem.inputs)
        return self.operation.plan(specs, dict(self.options), device, method, machine)

    def chosen(self, machine: Machine, on: str, device: str) -> Candidate | None:
        """How a machine does it on one device; None where it cannot."""
        try:
            found = self.plan(machine, on, device).chosen
        except (NotPriced, MethodNotAvailable):
            return None
        return found if set(found.device.split("+")) == {device} else None

    @property
    def growing(self) -> tuple[int, ...]:
        """Which of its dimensions grow with its size; the first one tells how large it is."""
        return problems.of(self.operation).growing or tuple(range(len(self.dims)))

    @property
    def leading(self) -> tuple[str, int]:
        """The name of that dimension, "n" where all are alike, and its extent."""
        forms = (form.lower().split() for form in self.operation.dims)
        names = next(names for names in forms if len(names) == len(self.dims))
        first = self.growing[0]
        return "n" if len(set(self.dims)) == 1 else names[first], self.dims[first]

    def of_size(self, extent: int) -> Call:
        """The same call with another leading dimension; others that grow keep their ratio to it."""
        dims = list(self.dims)
        for axis in self.growing:
            dims[axis] = max(1, round(dims[axis] * (extent / self.leading[1])))
        return replace(self, dims=tuple(dims))


# -- When a device pays: arithmetic on seconds -----------------------------------------------------


class BreakEven(NamedTuple):
    """From which leading extent on a device with its copies is faster than the CPU."""

    extent: int | None  # None where it is not within the sizes that were looked at
    smallest: int  # the first and the last of these
    largest: int


def extents(smallest: int, largest: int) -> list[int]:
    """Leading extents to look at, two for each doubling, both ends included.

    Examples
    --------
    >>> extents(8, 32)
    [8, 11, 16, 23, 32]
    """
    number = 1 + math.ceil(2 * math.log2(largest / smallest))
    return list(dict.fromkeys(np.geomspace(smallest, largest, number).round().astype(int).tolist()))


def break_even(cpu: Seconds, device: Seconds, sizes: Sequence[int]) -> BreakEven:
    """The smallest extent from which on the device is faster than the CPU.

    It is faster at every one of ``sizes`` above it. Between two of these it is looked for by
    halving. Sizes that one of the two cannot do end the search.

    Examples
    --------
    >>> break_even(lambda n: n**3 * 1e-9, lambda n: 1e-3 + n**2 * 1e-9, [8, 64, 512])
    BreakEven(extent=101, smallest=8, largest=512)
    """

    def faster(extent: int) -> bool | None:
        there, here = device(extent), cpu(extent)
        return None if there is None or here is None else there < here

    won = {size: faster(size) for size in sizes}
    possible = dropwhile(lambda size: won[size] is None, sizes)  # a device may not do the smallest
    seen = [*takewhile(lambda size: won[size] is not None, possible)] or sizes
    lost = [place for place, size in enumerate(seen) if not won[size]]
    if not lost or lost[-1] == len(seen) - 1:
        return BreakEven(None if lost else seen[0], seen[0], seen[-1])
    between = range(seen[lost[-1]] + 1, seen[lost[-1] + 1])
    at = bisect_left(between, True, key=lambda extent: bool(faster(extent)))
    return BreakEven(between.start + at, seen[0], seen[-1])
