"""What a calibration leaves out, and why."""

from __future__ import annotations

from typing import NamedTuple

from hetero.errors import DeviceError


class Failure(NamedTuple):
    """What is left out, and why."""

    operation: str
    place: str
    what: str
    error: Exception


def told(failures: list[Failure]) -> list[str]:
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
