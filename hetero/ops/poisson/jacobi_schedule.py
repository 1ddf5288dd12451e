"""When a Jacobi iteration looks at its residual, and when it ends."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hetero.ops.linear_systems.types import CONVERGED, LIMIT, NOT_FINITE, ROUNDING, Outcome

_FEWEST = 64
_MOST = 8192


class Verdict(NamedTuple):
    """What follows from a residual.

    Attributes
    ----------
    status : str or None
        Why the iteration ends; None: it goes on.
    sweeps : int
        Sweeps until the next look.
    """

    status: str | None
    sweeps: int


class Schedule:
    """Decides from the residuals alone, so that equal runs end after equally many sweeps.

    The residual's norm falls ever more slowly, towards a factor of cos(pi / (n + 1)) a sweep. The
    sweeps that are left, reckoned with the last factor seen, are therefore rather too few, and the
    next look comes after as many. Without rounding the norm would never rise; when it did not fall
    twice in a row, rounding keeps it up and the iteration ends.

    Parameters
    ----------
    target : float or None
        Residual norm to reach; None: only ``limit`` ends the iteration, and only then is looked.
    limit : int
        Most sweeps.
    """

    def __init__(self, target: float | None, limit: int) -> None:
        self._target = target
        self._limit = limit
        self._last: tuple[int, float] | None = None
        self._stalled = 0

    def first(self) -> int:
        """Sweeps before the first look: 0 where a start may be good enough."""
        return self._limit if self._target is None else 0

    def judge(self, done: int, residual: float) -> Verdict:
        """What to do after ``done`` sweeps with that residual norm."""
        if not math.isfinite(residual):
            return Verdict(NOT_FINITE, 0)
        if self._target is not None and residual <= self._target:
            return Verdict(CONVERGED, 0)
        if done >= self._limit:
            return Verdict(LIMIT, 0)
        sweeps = _FEWEST
        if self._last is not None:
            before, norm = self._last
            if residual < norm:
                self._stalled = 0
                sweeps = self._left((done - before) / math.log(norm / residual), residual)
            else:
                self._stalled += 1
                if self._stalled == 2:
                    return Verdict(ROUNDING, 0)
        self._last = done, residual
        return Verdict(None, min(sweeps, self._limit - done))

    def _left(self, sweeps_per_e: float, residual: float) -> int:
        """Sweeps to the target if each e-th part of the residual takes that many."""
        if not self._target:
            return _MOST
        return int(min(max(sweeps_per_e * math.log(residual / self._target), _FEWEST), _MOST))


def iterate(run: Any, schedule: Schedule) -> Outcome:
    """Let a run ``advance(sweeps)`` and look at its ``residual()`` as the schedule says."""
    run.advance(schedule.first())
    while True:
        residual = run.residual()
        status, sweeps = schedule.judge(run.sweeps, residual)
        if status is not None:
            return Outcome(status, run.sweeps, residual)
        run.advance(sweeps)
