"""What a calibration reports: progress, the time left, and what it leaves out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from hetero.errors import DeviceError

_BELIEVED = 1.0  # seconds of prior weight: this much of a group counts as done in the planned time
_EARLY = 0.02  # of the whole, before which the time left is not shown


class Schedule:
    """Steps with planned seconds; what those done took corrects what the others will take.

    Parameters
    ----------
    show : callable or None
        Called as ``show(fraction, text)`` when a step begins.
    clock : callable, optional
        Seconds.
    """

    def __init__(
        self,
        show: Callable[[float, str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._show, self._clock = show, clock
        self._left: dict[str, float] = {}
        self._planned: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._now: tuple[str, float, float] | None = None
        self._fraction = 0.0
        self._start = clock()

    def plan(self, group: str, seconds: float) -> None:
        """Add a step; steps of one group, such as a place, share a correction."""
        self._left[group] = self._left.get(group, 0.0) + seconds

    def begin(self, group: str, seconds: float, text: str) -> None:
        """End the current step, and begin one."""
        self._end()
        self._now = group, seconds, self._clock()
        if self._show is not None:
            left = self.seconds_left()
            spent = self._clock() - self._start
            self._fraction = max(self._fraction, spent / max(spent + left, 1e-9))
            line = f"{text}, {shown(left)} left" if self._fraction > _EARLY else text
            self._show(min(self._fraction, 0.99), line)

    def seconds_left(self) -> float:
        """Predicted seconds of all steps that have not ended."""
        return sum(left * self._pace(group) for group, left in self._left.items())

    def done(self) -> None:
        """End the last step."""
        self._end()
        if self._show is not None:
            self._show(1.0, "done")

    def _pace(self, group: str) -> float:
        """Seconds that one planned second takes."""
        took, planned = self._took.get(group, 0.0), self._planned.get(group, 0.0)
        return (took + _BELIEVED) / (planned + _BELIEVED)

    def _end(self) -> None:
        if self._now is not None:
            group, seconds, began = self._now
            self._now = None
            self._took[group] = self._took.get(group, 0.0) + self._clock() - began
            self._planned[group] = self._planned.get(group, 0.0) + seconds
            self._left[group] = max(self._left.get(group, 0.0) - seconds, 0.0)


def shown(seconds: float) -> str:
    """Seconds as text: "40 s", "1:20 min"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02} min"


class Failure(NamedTuple):
    """A part of a calibration that is left out, and the error."""

    operation: str
    place: str
    what: str
    error: Exception


def left_out(failures: list[Failure]) -> list[str]:
    """One line for each operation that lost something, and for each device that is gone."""
    gone = {f.place: f for f in failures if not f.operation}
    lines = [
        f"{place} from {what} on, since it no longer works: {one_line(error)}"
        for place, (_, _, what, error) in gone.items()
    ]
    rest = [f for f in failures if f.operation and f.place not in gone]
    for operation in dict.fromkeys(f.operation for f in rest):
        mine = [f for f in rest if f.operation == operation]
        what = dict.fromkeys(f"{f.what or operation} on {f.place or 'all'}" for f in mine)
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        lines.append(f"{next(iter(what))}{more}: {one_line(mine[0].error)}")
    return lines


def one_line(error: Exception) -> str:
    """The type and the message of an error, but for those of a device."""
    text = str(error).partition("\n")[0]
    return text if isinstance(error, DeviceError) else f"{type(error).__name__}: {text}"
