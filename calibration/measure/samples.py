"""What was measured of a case, and what tells one look at it from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hetero.calibration.measure.workbench import Bench
from hetero.ops.cases import Dims

_LESS = 1.2  # times: an earlier look took clearly longer


@dataclass(frozen=True)
class Samples:
    """What was measured of a case: seconds by dimensions.

    Attributes
    ----------
    seconds : dict
        Of knots; of one step in a solve. What would have taken too long, or
        came too late, is missing.
    held_out : dict
        Of shapes that are no knots.
    setup : dict
        Of what a solve takes beside its steps.
    typical : dict
        Median of each pass, where ``seconds`` is the fastest call of all.
    host : float
        The host's share of each call, where it is known.
    least : float
        The host's share of a call of the smallest problem, as measured; negative if it was not.
    timed : dict
        Seconds of a whole solve with each number of steps, the fastest one.
    steps : dict
        These numbers.
    marked : frozenset
        What was measured beside other load, and never without.
    unsure : frozenset
        Whose last look took clearly less than those before: so may another one.
    """

    seconds: dict[Dims, float] = field(default_factory=dict)
    held_out: dict[Dims, float] = field(default_factory=dict)
    setup: dict[Dims, float] = field(default_factory=dict)
    typical: dict[Dims, tuple[float, ...]] = field(default_factory=dict)
    host: float = 0.0
    least: float = -1.0
    timed: dict[Dims, tuple[float, ...]] = field(default_factory=dict)
    steps: dict[Dims, tuple[float, ...]] = field(default_factory=dict)
    marked: frozenset[Dims] = frozenset()
    unsure: frozenset[Dims] = frozenset()


def is_less(now: float, before: float) -> bool:
    """Whether a look took clearly less than those before: they met a slow spell."""
    return _LESS * now < before


def watched(bench: Bench, call: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """What a call returns, and whether other load was noticed meanwhile."""
    bench.watch.begin()
    found = call(*arguments)
    return found, bench.watch.disturbed()
