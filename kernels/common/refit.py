"""What measuring a card's figures needs: the device's limits, a clock, and a search.

A family's `refit` module measures its own figures: it makes plans, has them timed, and returns the
figures' values. It knows no device: whoever calls it gives a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .launch import LaunchPlan
from .tuning import Table, parse

__all__ = ["Clock", "Limits", "RefitCase", "Timer", "search"]

_WORTHWHILE = 0.01  # of the time; a smaller gain is noise, and the figure stays

# Seconds of device time of launches on buffers of so many bytes, by name.
Clock = Callable[[LaunchPlan, Mapping[str, int]], float]


class Limits(NamedTuple):
    """What a plan must know of a device."""

    multiprocessors: int
    block_limit: int
    shared_limit: int
    capability: tuple[int, int] | None


class RefitCase(NamedTuple):
    """A problem whose plan depends on a tuning table.

    Attributes
    ----------
    plan : callable
        ``plan(table)`` gives the launches.
    buffers : mapping
        Bytes of each operand, by the name that the launches have for it.
    """

    plan: Callable[[Table], LaunchPlan]
    buffers: Mapping[str, int]


class Timer:
    """A clock that times the same launches only once: the least of some passes."""

    def __init__(self, clock: Clock, passes: int = 1) -> None:
        self._clock = clock
        self._passes = passes
        self._found: dict[Any, float] = {}

    def __call__(self, launch_plan: LaunchPlan, buffers: Mapping[str, int]) -> float:
        key = launch_plan.launches
        if key not in self._found:
            self._found[key] = min(self._clock(launch_plan, buffers) for _ in range(self._passes))
        return self._found[key]


def search(
    table: Table, figure: str, values: Iterable[Any], cases: Iterable[RefitCase], timer: Timer
) -> Table:
    """The table with the value of a figure by which the plans of the cases take the least time.

    Plans that are the same by several values are timed once. The table's own value stays unless
    another one is better by more than noise.
    """
    cases = list(cases)
    best, least = table, _mean(table, cases, timer) * (1.0 - _WORTHWHILE)
    for value in values:
        if value == table[figure]:
            continue
        tried = parse(table.replaced({figure: value}), table.name)
        found = _mean(tried, cases, timer)
        if found < least:
            best, least = tried, found
    return best


def _mean(table: Table, cases: list[RefitCase], timer: Timer) -> float:
    """Geometric mean of the cases' seconds."""
    logs = [math.log(timer(case.plan(table), case.buffers)) for case in cases]
    return math.exp(sum(logs) / len(logs))
