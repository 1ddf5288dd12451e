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
    """How long measuring may take, and how finely.

    Attributes
    ----------
    quick : bool
        Whether to measure for seconds only.
    point : float
        Seconds for one measured point.
    longest : float
        Seconds of one call above which a point is extrapolated, not measured.
    step : float
        Ratio of neighbouring sizes of a grid, at least.
    solve_step : float
        Likewise, of the numbers of unknowns of a solve.
    largest_solve : int
        Unknowns.
    held_out : int
        Shapes measured in addition to each grid, for the residuals.
    largest_transfer : int
        Bytes.
    patience : float
        How many times its share of the time a case may take: cases differ, and most take far less.
    """

    quick: bool
    point: float
    longest: float
    step: float
    solve_step: float
    largest_solve: int
    held_out: int
    largest_transfer: int
    patience: float = 2.0


class Place(NamedTuple):
    """Where cases are measured: the CPU, a device, or all equal devices together.

    Attributes
    ----------
    name : str
        Of the device in the profile, such as "cpu", "cuda:0" or, of two together, "cuda*2".
    info : dict
        Its description.
    devices : tuple of Device
        None for the CPU.
    """

    name: str
    info: dict[str, Any]
    devices: tuple[Device, ...] = ()

    @property
    def kind(self) -> str:
        return self.info["kind"]

    @property
    def operands_on(self) -> str:
        """Where operands lie: on the host, or on a device that computes alone."""
        return self.devices[0].name if len(self.devices) == 1 else HOST


@dataclass(frozen=True, slots=True)
class SampleGrid:
    """Seconds of single calls at each knot, interpolated between them.

    Attributes
    ----------
    held_out : int
        Number of random shapes to measure between the knots.
    multiple, less : int
        Extents of these are multiples of the one, less the other.
    reference : str or None
        A layout: the knots are some of that layout's, and its model's shape counts between them.
    by_estimate : bool
        The implementation estimates its own time; how far off it is gets interpolated.
    """

    held_out: int = 0
    multiple: int = 1
    less: int = 0
    reference: str | None = None
    by_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Passes:
    """As `SampleGrid`, of knots that need not be sizes, by the clock of the host.

    Attributes
    ----------
    form : str
        Of the model: "surface" or "filter".
    knots, held_out : dict
        The dimensions that the model knows -> the arguments of `Case.problem`.
    longest : float
        Seconds of one call above which a knot is extrapolated.
    number : int
        Of calls that are timed at each knot, at least.
    block : int
        Of a "filter" model.
    """

    form: str
    knots: dict[Dims, Dims]
    held_out: dict[Dims, Dims]
    longest: float
    number: int = 1
    block: int = 1


@dataclass(frozen=True, slots=True)
class TimedSolves:
    """A solve: set-up and one step, separated by timing two numbers of steps.

    Attributes
    ----------
    few, many : int
        Numbers of steps that are timed; the second one at least. Equal where a solve is one step.
    most : int
        Most steps that are timed where ``many`` take hardly longer than ``few``.
    """

    few: int
    many: int
    most: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """What one model is fitted to: problems of an implementation, with one dtype and layout.

    Attributes
    ----------
    implementation : Implementation
    dtype, layout : str
        As in the model's key.
    how : SampleGrid, Passes or TimedSolves
        What is measured, and which form the model gets.
    axes : list of list of int
        Knots of each dimension; none for `Passes`, which have their own.
    problem : callable or None
        ``problem(*dims)``.
    arguments : callable or None
        ``arguments(*dims, devices=devices)`` makes `Arguments` on the host. None: operands of
        random numbers are made of the problem's descriptions.
    options : callable or None
        ``options(problem)`` gives `Arguments.options` to go with such operands.
    inputs : int or None
        How many of the problem's inputs a run gets, where the others are among the options.
    seconds : float
        How long measuring it takes, at most, in proportion to the others.
    example : tuple of int
        Dimensions of a problem that compiles all that the case needs; none: the smallest ones.
    """

    implementation: Implementation
    dtype: str
    layout: str
    how: SampleGrid | Passes | TimedSolves
    axes: list[list[int]] | None = None
    problem: Callable[..., Problem] | None = None
    arguments: Callable[..., Arguments] | None = None
    options: Callable[[Problem], Any] | None = None
    inputs: int | None = None
    seconds: float = 1.0
    example: Dims = ()

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
    """A call so small that what the host does around it is most of it.

    Attributes
    ----------
    implementation : Implementation
    problem : Problem
        With operands that lie on the device.
    arrays : tuple of numpy.ndarray
        The operands.
    from_host : callable
        Makes the call with these; can be repeated.
    """

    implementation: Implementation
    problem: Problem
    arrays: tuple[Any, ...]
    from_host: Callable[[], object]


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
    points: list[Dims] = [()]
    for sizes in axes:
        points = [(*point, size) for point in points for size in sizes]
    return points
