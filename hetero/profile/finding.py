"""The profile that fits this machine among those that are stored, and the current one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from hetero import locks, tables
from hetero.errors import ProfileError
from hetero.host.copying import copy_jobs
from hetero.profile import places, reading, validity
from hetero.profile.constants import Profile

log = logging.getLogger("hetero")

_lock = locks.new()
_current: Profile | None = None


class Stored(NamedTuple):
    """A stored profile.

    Attributes
    ----------
    path : Path
    profile : Profile or None
        None where the file cannot be read.
    obstacle : str or None
        Why it is not used here.
    """

    path: Path
    profile: Profile | None
    obstacle: str | None


def survey() -> list[Stored]:
    """The stored profiles, the one that is used first; unreadable ones do not raise."""
    expected = places.default_path()
    files = sorted(places.stored(), key=lambda path: path != expected)
    return sorted(map(_look, files), key=lambda one: one.obstacle is not None)


def current() -> Profile:
    """This machine's profile; never raises.

    Where no stored profile is of this machine, the shipped conservative one, and one line is
    logged: a hint where there is no file, else a warning that says why.
    """
    global _current
    loaded = _current
    if loaded is None:
        with _lock:
            if _current is None:
                _current = _load()
                copy_jobs.believe(_current.stages())
            loaded = _current
    return loaded


def set_current(new: Profile | None) -> None:
    """Replace the current profile; None: read it from its file again at the next call."""
    global _current
    with _lock:
        _current = new
        copy_jobs.believe(new.stages() if new is not None else {})
    tables.forget()


def held() -> Profile | None:
    """The stored profile of this machine; None without one."""
    best = _best()
    return best.profile if best is not None and best.obstacle is None else None


def _look(path: Path) -> Stored:
    """A stored profile, or why it cannot be used."""
    try:
        found = reading.believed(path)
    except (ProfileError, OSError) as error:
        return Stored(path, None, str(error))
    return Stored(path, found, validity.obstacle(found.data["fingerprint"]))


def _best() -> Stored | None:
    """The stored profile of this machine; if none is, one with the reason; None without a file."""
    files = places.stored()
    if (expected := places.default_path()) in files:
        first = _look(expected)  # the others need not be read
        if first.obstacle is None:
            return first
    return next(iter(survey()), None) if files else None


def _load() -> Profile:
    """The stored profile of this machine, or the conservative one with a line that says why."""
    best = _best()
    named = os.environ.get("HETERO_PROFILE")
    if best is not None and best.obstacle is None:
        return best.profile
    if best is None or (best.profile is not None and not named and len(places.stored()) > 1):
        missing = "no profile of this machine yet"
        if best is not None:
            missing = "none of the stored profiles is of this machine ('hetero info' lists them)"
        elif named:
            missing = f"HETERO_PROFILE names the file {named}, which is not there"
        log.warning(
            "%s: taking conservative constants. "
            "Run hetero.calibrate() once, or 'hetero calibrate'.",
            missing,
        )
        return reading.shipped("conservative")
    reason = best.obstacle
    if best.profile is not None:
        reason = f"it is of another machine or other circumstances: {reason}"
    log.warning(
        "the profile %s cannot be used: %s. Taking conservative constants; "
        "'hetero calibrate' writes a new one.",
        best.path,
        reason,
    )
    return reading.shipped("conservative")
