"""What measuring a card's figures needs: the device's limits, a clock, and a search.

A family's `refit` module measures its own figures: it makes plans, has them timed, and returns the
figures' values. It knows no device: whoever calls it gives a clock.

A figure stays what it was unless another value is better by clearly more than the times scatter,
so that two measurements of one card give the same table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, median_low
from typing import Any, NamedTuple, Protocol

from .launch import Launch, LaunchPlan
from .tuning import Table, Target, parse

__all__ = [
    "Buffers",
    "Clock",
    "Limits",
    "RefitCase",
    "Search",
    "Timer",
    "better",
    "candidates",
    "plans",
    "refit_by_search",
    "search",
    "with_numbers",
]

_WORTHWHILE = 0.02  # of the time; a smaller gain is not worth another figure
_ERRORS = 3.0  # standard errors that a gain must be larger than
_LEAST_NOISE = 0.002  # of a time
_PASSES = 2
_ROUNDS = 5  # in which two values are timed in turn, before one takes the other's place
_CONTENDERS = 2  # values that are timed so
_ALIKE = 0.9  # of the largest gain: of values that gain as much, the nearest is taken

# Name -> bytes of random numbers, or what a buffer holds (an ndarray).
Buffers = Mapping[str, Any]


class Clock(Protocol):
    """Seconds of device time of launches; infinite where the device cannot run them."""

    def __call__(self, launch_plan: LaunchPlan, buffers: Buffers, cold: bool = True) -> float: ...


class Limits(NamedTuple):
    """What a plan must know of a device."""

    multiprocessors: int
    block_limit: int
    shared_limit: int
    capability: tuple[int, int] | None

    def target(self, table: Table) -> Target:
        """The device as plans by a table take it."""
        warps = self.capability is not None
        return Target(self.multiprocessors, self.block_limit, table, warps)


class RefitCase(NamedTuple):
    """A problem with a plan that depends on a tuning table.

    Attributes
    ----------
    plan : callable
        ``plan(table)`` gives the launches. It may raise ValueError for what cannot be launched.
    buffers : mapping
        Each operand, by the name that the launches have for it.
    cold : bool
        Whether operands come from memory, not from a cache.
    """

    plan: Any
    buffers: Buffers
    cold: bool = True


class Search(NamedTuple):
    """Values to try for a figure.

    Attributes
    ----------
    figure : str
    values : sequence of number
    cases : sequence of RefitCase
        What is timed with them.
    path : tuple of str or int
        Keys and indices that lead to the number, where a figure has several.
    """

    figure: str
    values: Sequence[Any]
    cases: Sequence[RefitCase]
    path: tuple[str | int, ...] = ()


class Timer:
    """A clock that keeps its times, by launches; their time is the median."""

    def __init__(self, clock: Clock, passes: int = _PASSES) -> None:
        self._clock = clock
        self._passes = passes
        self._times: dict[Any, list[float]] = {}

    def __call__(self, launch_plan: LaunchPlan, buffers: Buffers, cold: bool = True) -> float:
        """Seconds; the lower one of the two in the middle, since disturbances add to them."""
        times = self._times.setdefault((launch_plan.launches, cold), [])
        while len(times) < self._passes and math.inf not in times:
            times.append(self._clock(launch_plan, buffers, cold))
        return median_low(times)

    def again(self, launch_plan: LaunchPlan, buffers: Buffers, cold: bool = True) -> None:
        """Time once more."""
        self._times[launch_plan.launches, cold].append(self._clock(launch_plan, buffers, cold))

    def noise(self) -> float:
        """Standard deviation of one time's logarithm, by the differences of two."""
        apart = [abs(math.log(t[1] / t[0])) for t in self._times.values() if len(t) > 1]
        return max(median(apart) * 1.48 / math.sqrt(2), _LEAST_NOISE) if apart else _LEAST_NOISE


def search(table: Table, wanted: Search, timer: Timer) -> Table:
    """The table with the value by which the plans of the cases take the least time."""
    values = _nearest_first(table, wanted)
    return better(table, [_replaced(table, wanted, v) for v in values], wanted.cases, timer)


def better(
    table: Table, others: Sequence[Table], cases: Sequence[RefitCase], timer: Timer
) -> Table:
    """The nearest of other tables by which the cases' plans take less time; else the table itself.

    Plans that are the same by several tables are timed once. What looks better than the plans by
    the table itself is timed in turn with them, and taken if it still is, by more than the error.
    """
    gains = []
    for number, tried in enumerate(others):
        changed = _changed(table, tried, cases)
        gain = _gain(changed, timer) if changed else 0.0
        if changed and gain > _WORTHWHILE * len(changed):
            gains.append((gain, -number, tried, changed))
    most = max((gain for gain, *_ in gains), default=0.0)
    # Of those that gain about as much the nearest first.
    gains.sort(key=lambda one: (one[0] >= _ALIKE * most, one[1], one[0]), reverse=True)
    for *_, tried, changed in gains[:_CONTENDERS]:
        for _ in range(_ROUNDS):
            for case, old, new in changed:
                timer.again(old, case.buffers, case.cold)
                timer.again(new, case.buffers, case.cold)
        # A median of n has an error of 1.25 / sqrt(n).
        error = 1.25 * timer.noise() * math.sqrt(2 / (_PASSES + _ROUNDS) / len(changed))
        if _gain(changed, timer) / len(changed) > max(_WORTHWHILE, _ERRORS * error):
            return tried
    return table


def refit_by_search(
    table: Table, searches: Iterable[Search], timer: Timer, family: str
) -> dict[str, Any]:
    """The values of a family's figures, determined one after the other, each with those before."""
    best = table
    for wanted in searches:
        best = search(best, wanted, timer)
    return {name: best[name] for name in table.data["figures"] if name.startswith(f"{family}.")}


def candidates(table: Table, searches: Iterable[Search]) -> Iterator[LaunchPlan]:
    """The plans by a table and by all other values of one figure at a time."""
    for wanted in searches:
        yield from plans(table, wanted.cases)
        for value in wanted.values:
            yield from plans(_replaced(table, wanted, value), wanted.cases)


def plans(table: Table, cases: Iterable[RefitCase]) -> Iterator[LaunchPlan]:
    """The cases' plans by a table, without those that cannot be launched."""
    for case in cases:
        try:
            yield case.plan(table)
        except ValueError:
            continue


def with_numbers(*launches: Launch, **numbers: float) -> LaunchPlan:
    """Launches in order, with numbers in place of names."""
    return LaunchPlan(
        tuple(
            launch._replace(arguments=tuple(numbers.get(a, a) for a in launch.arguments))
            for launch in launches
        ),
        0,
        "",
    )


_Changed = list[tuple[RefitCase, LaunchPlan, LaunchPlan]]


def _changed(table: Table, tried: Table, cases: Iterable[RefitCase]) -> _Changed:
    """Cases in which another table changes the launches, with the plans before and after."""
    changed = []
    for case in cases:
        old = case.plan(table)
        try:
            new = case.plan(tried)
        except ValueError:
            return []
        if new.launches != old.launches:
            changed.append((case, old, new))
    return changed


def _gain(changed: _Changed, timer: Timer) -> float:
    """Sum of the logarithms of time before over time after."""
    total = 0.0
    for case, old, new in changed:
        after = timer(new, case.buffers, case.cold)
        if after == math.inf:
            return -math.inf
        total += math.log(timer(old, case.buffers, case.cold) / after)
    return total


def _nearest_first(table: Table, wanted: Search) -> list[Any]:
    """The values to try, but for the table's own."""
    own = table[wanted.figure]
    for key in wanted.path:
        own = own[key]
    others = {value for value in wanted.values if value != own}
    return sorted(others, key=lambda value: (abs(math.log(value / own)), value))


def _replaced(table: Table, wanted: Search, value: Any) -> Table:
    """The table with another value."""

    def inside(present: Any, path: tuple[str | int, ...]) -> Any:
        if not path:
            return value
        key, *rest = path
        new = list(present) if isinstance(present, list) else dict(present)
        new[key] = inside(present[key], tuple(rest))
        return new

    return parse(
        table.replaced({wanted.figure: inside(table[wanted.figure], wanted.path)}), table.name
    )
