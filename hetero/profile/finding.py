"""The profile that fits this machine among those that are stored, and the current one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hetero import locks
from hetero.errors import ProfileError
from hetero.host.copying import staging
from hetero.profile import inventory, places, reading, validity
from hetero.profile.constants import Profile
from hetero.registry.models import ModelKey

_SHOWN = 4  # names of constants in a message

log = logging.getLogger("hetero")

_lock = locks.new()
_current: Profile | None = None
_listeners: list[Callable[[], None]] = []


class Stored(NamedTuple):
    """A stored profile, as far as it can be used here.

    Attributes
    ----------
    path : Path
    holding : Holding or None
        None where the file cannot be read.
    obstacle : str or None
        Why nothing of it is used here.
    """

    path: Path
    holding: validity.Holding | None
    obstacle: str | None

    @property
    def unfinished(self) -> str:
        """Why it holds only a part of this machine's constants; empty where it holds all."""
        return str(self.holding.data.get("unfinished", {}).get("why", "")) if self.holding else ""

    @property
    def complete(self) -> bool:
        """Whether all constants of it hold, and it was measured to the end."""
        holding = self.holding
        return self.obstacle is None and not (holding.aside or holding.new or self.unfinished)


def survey() -> list[Stored]:
    """The stored profiles, the one that fits best first; unreadable ones do not raise."""
    return sorted(map(_look, places.stored()), key=_rank, reverse=True)


def current() -> Profile:
    """This machine's profile; never raises.

    What the stored profile that fits best does not cover, the shipped conservative constants do.
    One line is logged that says so: a hint where there is no file, else a warning that names
    what cannot be used.
    """
    global _current
    loaded = _current
    if loaded is None:
        with _lock:
            if _current is None:
                _current = _load()
                staging.believe(_current.stages())
            loaded = _current
    return loaded


def set_current(new: Profile | None) -> None:
    """Replace the current profile; None: read it from its file again at the next call."""
    global _current
    with _lock:
        _current = new
        staging.believe(new.stages() if new is not None else {})
    for listener in _listeners:
        listener()


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever the current profile is replaced."""
    _listeners.append(listener)


def held() -> dict[str, Any] | None:
    """What holds of the stored profile that fits best, as a profile's content; None without one."""
    best = _best()
    if best is None or best.obstacle is not None:
        return None
    holding = best.holding
    missing = [name for names in holding.aside.values() for name in names]
    missing += [f"{name}|links" for name in holding.new]
    if best.unfinished or not missing:
        return holding.data
    why = "constants that no longer hold are put aside"
    return {**holding.data, "unfinished": {"why": why, "missing": missing}}


def _look(path: Path) -> Stored:
    """A stored profile, with what holds of it, or why it cannot be used."""
    try:
        holding = validity.holding(reading.believed(path).data)
    except (ProfileError, OSError) as error:
        return Stored(path, None, str(error))
    return Stored(path, holding, holding.obstacle)


def _rank(stored: Stored) -> tuple[Any, ...]:
    """A sort key: larger for profiles that fit better."""
    if stored.obstacle is not None:
        return (False,)
    data = stored.holding.data
    return True, stored.holding.here, not stored.unfinished, str(data.get("created", ""))


def _best() -> Stored | None:
    """The stored profile that fits best; if none does, one with the reason; None without a file."""
    files = places.stored()
    if not files:
        return None
    if (expected := places.default_path()) in files:
        first = _look(expected)  # the others need not be read
        if first.complete:
            return first
    return next(iter(survey()), None)


def _load() -> Profile:
    """The stored profile that fits best, or the conservative one with a line that says why."""
    best = _best()
    named = os.environ.get("HETERO_PROFILE")
    if best is not None and best.obstacle is None:
        return _served(best)
    if best is None or (best.holding is not None and not named and len(places.stored()) > 1):
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
    if best.holding is not None:
        reason = f"it was measured in other circumstances: {reason}"
    log.warning(
        "the profile %s cannot be used: %s. Taking conservative constants; "
        "'hetero calibrate' writes a new one.",
        best.path,
        reason,
    )
    return reading.shipped("conservative")


def _served(best: Stored) -> Profile:
    """What holds of a profile, with conservative constants for the rest."""
    holding = best.holding
    for change, names in holding.aside.items():
        log.warning(
            "of the profile %s the constants of %s are put aside: %s. Conservative ones are "
            "used instead; 'hetero calibrate%s' measures them.",
            best.path,
            listed(names),
            change,
            _only(names, holding.data),
        )
    if holding.new:
        log.warning(
            "%s was not here when the profile %s was measured: taking conservative constants of "
            "it; 'hetero calibrate%s' measures it.",
            ", ".join(holding.new),
            best.path,
            "".join(f" --only {name}" for name in holding.new),
        )
    if best.unfinished:
        log.warning("the profile %s is not complete: %s", best.path, best.unfinished)
    if best.complete:
        return Profile(holding.data)
    return completed(holding.data, holding.aside, holding.new)


def completed(
    data: dict[str, Any], aside: dict[str, list[str]] | None = None, new: Sequence[str] = ()
) -> Profile:
    """A profile with conservative constants for what was put aside, or was never measured.

    Parameters
    ----------
    data : dict
        Content of a profile. If it is unfinished, they are taken for all that it has not.
    aside, new
        As of a `Holding`.
    """
    spare = reading.shipped("conservative").data
    unfinished = "unfinished" in data
    wanted = {_row(name) for names in (aside or {}).values() for name in names}
    known = {_row(key) for key in data["models"]}
    models = {}
    for place in ("cpu", *inventory.fingerprint()["devices"]):
        if data["devices"].get(place, {}).get("same_as"):
            continue
        for text, model in spare["models"].items():
            key = ModelKey.parse(text)
            mine = str(key._replace(place=place))
            row = _row(mine)
            if (
                validity.kind_of(key.place) == validity.kind_of(place)
                and row not in known
                and (unfinished or row in wanted or place in new)
            ):
                models[mine] = model
    return Profile(
        {
            **data,
            "links": {**spare["links"], **data["links"]},
            "host": {"pack": spare["host"]["pack"], **data["host"]},
            "models": {**models, **data["models"]},
        }
    )


def _row(key: str) -> tuple[str, ...]:
    """Place, operation, method and dtype of a model: what a conservative constant stands in for."""
    return tuple(key.split("|")[:4])


def listed(names: list[str]) -> str:
    """Names of a few constants for a message, without dtype and layout."""
    short = list(dict.fromkeys(" ".join(name.split("|")[:3]) for name in names))
    more = f" and {len(short) - _SHOWN} more" if len(short) > _SHOWN else ""
    return ", ".join(short[:_SHOWN]) + more


def _only(aside: list[str], left: dict[str, Any]) -> str:
    """The options of ``hetero calibrate`` that measure just what is put aside, if there are any."""
    keys = [ModelKey.parse(name) for name in aside if name.count("|") == len(ModelKey._fields) - 1]
    others = [ModelKey.parse(name) for name in left["models"]]
    for field in ("place", "method", "operation"):
        names = dict.fromkeys(getattr(key, field) for key in keys)
        if keys and not any(getattr(key, field) in names for key in others):
            return "".join(f" --only {name}" for name in names if "*" not in name)
    return ""
