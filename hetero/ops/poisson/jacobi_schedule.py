"""Jacobi's method but for its sweeps: when the residual is computed, and when it ends."""

from __future__ import annotations

import math
from typing import Protocol

from hetero.ops.linear_systems.types import CONVERGED, LIMIT, NOT_FINITE, ROUNDING, Outcome

_FEWEST = 64
_MOST = 8192


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

    def judge(self, done: int, residual: float) -> tuple[str | None, int]:
        """After ``done`` sweeps: why it ends, or None, and sweeps until the next residual."""
        if not math.isfinite(residual):
            return NOT_FINITE, 0
        if self._target is not None and residual <= self._target:
            return CONVERGED, 0
        if done >= self._limit:
            return LIMIT, 0
        sweeps = _FEWEST
        if self._last is not None:
            before, norm = self._last
            if residual < norm:
                self._stalled = 0
                sweeps = self._left((done - before) / math.log(norm / residual), residual)
            else:
                self._stalled += 1
                if self._stalled == 2:
                    return ROUNDING, 0
        self._last = done, residual
        return None, min(sweeps, self._limit - done)

    def _left(self, sweeps_per_e: float, residual: float) -> int:
        """Sweeps to the target if each e-th part of the residual takes that many."""
        if not self._target:
            return _MOST
        return int(min(max(sweeps_per_e * math.log(residual / self._target), _FEWEST), _MOST))


class Run(Protocol):
    """A solve wherever it runs: ``sweeps`` that the present u has seen, and what it can do."""

    sweeps: int

    def advance(self, sweeps: int) -> None:
        """Make sweeps."""

    def residual(self) -> float:
        """Norm of f - A u, computed in double."""

    def right_side(self) -> float:
        """Norm of f; called before the first sweep."""

    def zero(self) -> None:
        """Make u zero."""


def iterate(
    run: Run,
    *,
    sweeps: int | None = None,
    rtol: float | None = None,
    atol: float = 0.0,
    maxiter: int = 10**9,
) -> Outcome:
    """Sweep until the residual is small, or a number of times.

    Parameters
    ----------
    run : Run
    sweeps : int, optional
        Make exactly that many sweeps.
    rtol, atol : float
        Without ``sweeps``: done when norm(f - A u) <= max(rtol norm(f), atol). The residual is
        computed only now and then, so that a few more may be made than were needed.
    maxiter : int
        Most sweeps.

    Returns
    -------
    Outcome
        CONVERGED, LIMIT, ROUNDING (the residual no longer falls) or NOT_FINITE.
    """
    target, norm = None, run.right_side()  # the host would take longer to see f's range
    if sweeps is None:
        if norm == 0.0:
            run.zero()
            return Outcome(CONVERGED, 0, 0.0, 0.0)
        target = max((rtol or 0.0) * norm, atol)
    schedule = Schedule(target, maxiter if sweeps is None else sweeps)
    run.advance(schedule.first())
    while True:
        residual = run.residual()
        status, more = schedule.judge(run.sweeps, residual)
        if status is not None:
            return Outcome(status, run.sweeps, residual, norm)
        run.advance(more)
