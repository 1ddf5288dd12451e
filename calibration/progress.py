"""What a calibration reports: progress, the time left, and what it leaves out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from hetero.errors import DeviceError
from hetero.times import readable

_EARLY = 0.02  # of the whole, before which the time left is not shown


class Schedule:
    """Steps with their planned seconds; what those done took tells what the others will take.

    ``show(fraction, text)`` is called when a step begins.
    """

    def __init__(self, show: Callable[[float, str], object] | None, planned: float) -> None:
        self._show, self._planned = show or (lambda fraction, text: None), planned
        self._start, self._done, self._now = time.perf_counter(), 0.0, 0.0

    def begin(self, seconds: float, text: str) -> None:
        """End the current step, and begin one."""
        self._done, self._now = self._done + self._now, seconds
        fraction = min(self._done / max(self._planned, self._done, 1e-9), 0.99)
        if fraction > _EARLY:
            left = (time.perf_counter() - self._start) * (1.0 - fraction) / fraction
            text = f"{text}, {readable(left)} left"
        self._show(fraction, text)

    def done(self) -> None:
        """End the last step."""
        self._show(1.0, "done")


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
