"""What a calibration measures: data that each operation's ``cases`` module gives.

Such a module has a function ``cases(place, budget)`` that yields every `Case` to measure at a
`Place`. It may also have:

``derived(models)``
    Models that follow from others: both a dict of `ModelKey` to model.
``small_call(device)``
    A `SmallCall` to measure what the host does around a call on the device.
``SHARED``
    Dimensions of the largest call that is measured while the CPU and a device share it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST
from hetero.devices.base import Device
from hetero.registry import Arguments, Implementation
from hetero.registry.problem import Problem

Dims = tuple[int, ...]

_PERIOD = 1_000_003  # random numbers that are repeated: making them would take longer than a call
_numbers: dict[str, np.ndarray] = {}


@dataclass(frozen=True, slots=True)
class Budget:
    """How long measuring may take, and how finely."""

    quick: bool  # whether to measure for seconds only
    point: float  # seconds for one measured point
    longest: float  # seconds of one call above which a point is extrapolated, not measured
    step: float  # ratio of neighbouring sizes of a grid, at least
    solve_step: float  # likewise, of the numbers of unknowns of a solve
    largest_solve: int  # unknowns
    held_out: int  # shapes measured in addition to each grid, for the residuals
    largest_transfer: int  # bytes
    patience: float = 2.0  # how many times its share of the time a case may take: cases differ


class Place(NamedTuple):
    """Where cases are measured: the CPU, a device, or all equal devices together."""

    name: str  # of the device in the profile: "cpu", "cuda:0" or, of two together, "cuda*2"
    info: dict[str, Any]  # its description
    devices: tuple[Device, ...] = ()  # none for the CPU

    @property
    def kind(self) -> str:
        return self.info["kind"]

    @property
    def operands_on(self) -> str:
        """Where operands lie: on the host, or on a device that computes alone."""
        return self.devices[0].name if len(self.devices) == 1 else HOST


@dataclass(frozen=True, slots=True)
class SampleGrid:
    """Seconds of single calls at each knot, interpolated between them."""

    held_out: int = 0  # number of random shapes to measure between the knots
    multiple: int = 1  # their extents are multiples of this
    less: int = 0  # less this
    # A layout: the knots are some of that layout's, and its model's shape counts between them.
    reference: str | None = None
    # The implementation estimates its own time; how far off it is gets interpolated.
    by_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Passes:
    """As `SampleGrid`, of knots that need not be sizes, by the clock of the host."""

    form: str  # of the model: "surface" or "filter"
    knots: dict[
        Dims, Dims
    ]  # the dimensions that the model knows -> the arguments of `Case.problem`
    held_out: dict[Dims, Dims]
    longest: float  # seconds of one call above which a knot is extrapolated
    number: int = 1  # of calls that are timed at each knot, at least
    block: int = 1  # of a "filter" model


@dataclass(frozen=True, slots=True)
class TimedSolves:
    """A solve: set-up and one step, separated by timing two numbers of steps."""

    few: int
    many: int  # timed at least; equal to few where a solve is one step
    most: int = 0  # most steps that are timed where ``many`` take hardly longer than ``few``


@dataclass(frozen=True, slots=True)
class Case:
    """What one model is fitted to: problems of an implementation, with one dtype and layout."""

    implementation: Implementation
    dtype: str  # as in the model's key, like the layout
    layout: str
    how: SampleGrid | Passes | TimedSolves  # what is measured, and which form the model gets
    axes: list[list[int]] | None = None  # knots of each dimension; `Passes` have their own
    problem: Callable[..., Problem] | None = None  # ``problem(*dims)``
    # ``arguments(*dims, devices=devices)`` makes `Arguments` on the host. None: operands of random
    # numbers are made of the problem's descriptions.
    arguments: Callable[..., Arguments] | None = None
    # ``options(problem)`` gives `Arguments.options` to go with such operands.
    options: Callable[[Problem], Any] | None = None
    inputs: int | None = None  # how many of them a run gets, where others are among the options
    seconds: float = 1.0  # how long measuring takes, at most, in proportion to the others
    example: Dims = ()  # of a problem that compiles all that is needed; none: the smallest ones

    def __str__(self) -> str:
        row = self.implementation
        layout = "" if self.layout == "*" else f"{self.layout} "
        return f"{row.operation} {row.method} {layout}{self.dtype}"

    @property
    def smallest(self) -> Dims:
        return self.example or tuple(axis[0] for axis in self.axes or ())

    @property
    def largest(self) -> Dims:
        return tuple(axis[-1] for axis in self.axes or ())


class SmallCall(NamedTuple):
    """A call so small that what the host does around it is most of it."""

    implementation: Implementation
    problem: Problem  # with operands that lie on the device
    arrays: tuple[Any, ...]  # NumPy's: the operands
    from_host: Callable[[], object]  # makes the call with these; can be repeated


def numbers(shape: Dims, dtype: str) -> np.ndarray:
    """Random numbers between -0.5 and 0.5, to read only: the same memory each time.

    Fresh pages would take longer to fill than most calls take. `forget_numbers` frees it.
    """
    count = math.prod(shape)
    if dtype not in _numbers or _numbers[dtype].size < count:
        drawn = (np.random.default_rng(0).random(_PERIOD) - 0.5).astype(dtype)
        _numbers[dtype] = np.resize(drawn, max(count, _PERIOD))
    return _numbers[dtype][:count].reshape(shape)


def forget_numbers() -> None:
    """Free what `numbers` keeps."""
    _numbers.clear()


def axis(smallest: int, largest: int, step: float) -> list[int]:
    """Sizes from smallest to largest with about the given ratio."""
    sizes = [smallest]
    while sizes[-1] * step <= largest * 1.01:
        sizes.append(round(sizes[-1] * step))
    return sizes


def thinned(sizes: Sequence[int], step: float) -> list[int]:
    """Some of the sizes, with at least that ratio: from the largest down, and the smallest."""
    kept = [sizes[-1]]
    for size in sizes[-2:0:-1]:
        if size * step <= kept[-1] and sizes[0] * step**0.5 <= size:
            kept.append(size)
    return [*dict.fromkeys((sizes[0], *reversed(kept)))]


def grid(axes: list[list[int]]) -> list[Dims]:
    """All combinations of the axes' sizes, the last axis fastest."""
    return [*itertools.product(*axes)]
