"""A calibration's results so far, on disk: an interrupted one is continued, and serves.

The file is a profile of what was measured, with its samples. It is replaced as a whole every few
seconds, so that a process that ends in any way loses no more than that.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hetero import paths, profile
from hetero.calibration.measure.loop import Keeper, Measured, key_of
from hetero.calibration.measure.workbench import Samples
from hetero.errors import ProfileError
from hetero.ops.cases import Case, Place
from hetero.profile import inventory
from hetero.registry.models import ModelKey

_EVERY = 3.0  # seconds between two writes, at least
_MOST = 0.05  # fraction of the time for writing
_OLD = 86400.0  # seconds after which the machine may be in another state

log = logging.getLogger("hetero")


class Around(NamedTuple):
    """Costs of a call on a device other than computing; of several devices, to begin on all.

    Attributes
    ----------
    links : dict
    dispatch : dict
    shares : dict
        Operation and method -> the host's share of a call.
    """

    links: dict[str, Any]
    dispatch: dict[str, float]
    shares: dict[tuple[str, str], float]


class Checkpoint(Keeper):
    """Keeps what was measured, and gives back what an interrupted calibration had.

    Parameters
    ----------
    path : Path or None
        The file; None keeps nothing.
    request : dict
        What is to be measured and how; a different request is not continued.
    content : callable
        ``content(checkpoint)`` gives the profile of what was measured so far.
    clock : callable, optional
        Seconds.

    Attributes
    ----------
    around : dict
        Place -> `Around`.
    pack : dict or None
        Model of copies within the host's memory.
    measured : dict
        Key of a model, as text -> `Measured`.
    fitted : dict
        Models fitted to what was measured, for `hetero.calibration.modelling.models`.
    """

    def __init__(
        self,
        path: Path | None,
        request: dict[str, Any],
        content: Callable[[Checkpoint], dict[str, Any]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._path, self._request, self._content, self._clock = path, request, content, clock
        self.around: dict[str, Around] = {}
        self.pack: dict[str, Any] | None = None
        self.measured: dict[str, Measured] = {}
        self.fitted: dict[ModelKey, Any] = {}
        self.cases = 0  # to be measured in all
        self._turns: dict[str, int] = {}
        self._earlier: dict[str, tuple[int, Samples]] = {}
        self._due = clock() + _EVERY
        self._failed = False

    def resume(self) -> None:
        """Continue an interrupted calibration if possible; if not, log why."""
        if self._path is None:
            return
        paths.sweep(self._path.parent, self._path.name)  # files of a process that was killed
        if not self._path.exists():
            return
        try:
            data = profile.believed(self._path).data
            obstacle = self._obstacle(data)
            if obstacle is None:
                self._take_over(data)
        except (ProfileError, OSError) as error:
            obstacle = str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            obstacle = f"its samples cannot be used ({type(error).__name__}: {error})"
        if obstacle is not None:
            self.around, self.pack, self._earlier = {}, None, {}
            log.warning("%s is not continued: %s. Measuring anew", self._path, obstacle)
            return
        log.warning(
            "going on with the calibration of %s, which had measured %d cases",
            data["unfinished"]["updated"],
            len(self._earlier),
        )

    def earlier(self, case: Case, place: Place) -> Samples | None:
        key = str(key_of(case, place))
        turns, samples = self._earlier.get(key, (0, None))
        if not turns:
            return None
        self._earlier[key] = turns - 1, samples
        self._note(Measured(case, place, samples))
        return samples

    def turns_left(self, case: Case, place: Place) -> int:
        """How many times `earlier` will give samples of a case."""
        return self._earlier.get(str(key_of(case, place)), (0, None))[0]

    def add(self, one: Measured) -> None:
        self._note(one)
        self.write_if_due()

    def _note(self, one: Measured) -> None:
        key = str(one.key)
        self.measured[key] = one
        self._turns[key] = self._turns.get(key, 0) + 1

    def write_if_due(self) -> None:
        """`write`, unless the last one was a moment ago."""
        if self._clock() >= self._due:
            self.write()

    def write(self) -> None:
        """Write the file; where that fails, measuring goes on."""
        if self._path is None or not (self.measured or self.around):
            return
        begin = self._clock()
        try:
            data = self._content(self)
            data["unfinished"] = self._unfinished()
            paths.replace_file(self._path, profile.encode(data), durable=True)
        except OSError as error:
            if not self._failed:
                log.warning("what was measured so far cannot be kept: %s", error)
            self._failed = True
        now = self._clock()
        self._due = now + max(_EVERY, (now - begin) / _MOST)

    def remove(self) -> None:
        """Remove the file: the calibration is done, or a new one begins."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _unfinished(self) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return {
            "why": f"the calibration was interrupted when {len(self.measured)} of {self.cases} "
            "cases were measured. Conservative constants serve for the rest; "
            "'hetero calibrate' goes on from there",
            "wanted": self._request,
            "updated": now,
            "pack": self.pack,
            "around": {
                place: [costs.links, costs.dispatch, [[*k, s] for k, s in costs.shares.items()]]
                for place, costs in self.around.items()
            },
            "samples": {
                key: [self._turns[key], packed(one.samples)] for key, one in self.measured.items()
            },
        }

    def _obstacle(self, data: dict[str, Any]) -> str | None:
        """Why a partial calibration cannot be continued by this one."""
        was, left = data["fingerprint"], data.get("unfinished", {})
        measured = (*left["samples"], *left["around"])
        kinds = {profile.kind_of(key.split("|")[0]) for key in measured}
        if _of_kinds(was, kinds) != _of_kinds(inventory.fingerprint(), kinds):
            changes = profile.changes(was)
            return f"it was measured in other circumstances: {changes or 'other devices'}"
        request = left.get("wanted", {})
        if request.get("budget") != self._request["budget"]:
            quick = request.get("budget", {}).get("quick")
            return f"it was {'a quick' if quick else 'a full'} one, or took other times for a case"
        if request != self._request:
            return f"it was to measure something else: {request}"
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(left["updated"])
        if not abs(age.total_seconds()) < _OLD:
            return f"it is of {left['updated']}, more than a day ago"
        return None

    def _take_over(self, data: dict[str, Any]) -> None:
        left = data["unfinished"]
        self.pack = left["pack"]
        for place, (links, dispatch, shares) in left["around"].items():
            known = {(operation, method): float(s) for operation, method, s in shares}
            self.around[place] = Around(links, dispatch, known)
        for key, (turns, samples) in left["samples"].items():
            self._earlier[key] = int(turns), unpacked(samples)


def _of_kinds(fingerprint: dict[str, Any], kinds: set[str]) -> dict[str, Any]:
    """A fingerprint without the devices of other kinds."""
    devices = fingerprint["devices"].items()
    return {**fingerprint, "devices": {n: i for n, i in devices if profile.kind_of(n) in kinds}}


def packed(samples: Samples) -> dict[str, Any]:
    """Samples as plain data for JSON: dictionaries by dimensions become lists of pairs."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return [[list(dims), item] for dims, item in value.items()]
        return [list(dims) for dims in value] if isinstance(value, frozenset) else value

    return {f.name: plain(getattr(samples, f.name)) for f in dataclasses.fields(samples)}


def unpacked(values: dict[str, Any]) -> Samples:
    """The inverse of `packed`.

    Raises
    ------
    TypeError, ValueError
        If these are no samples.
    """
    blank, fields = Samples(), {}
    for name, value in values.items():
        kind = type(getattr(blank, name))
        if kind is dict:
            value = {tuple(map(int, dims)): _numbers(item) for dims, item in value}
        elif kind is frozenset:
            value = frozenset(tuple(map(int, dims)) for dims in value)
        else:
            value = kind(value)
        fields[name] = value
    return Samples(**fields)


def _numbers(value: Any) -> Any:
    return tuple(map(float, value)) if isinstance(value, list) else float(value)
