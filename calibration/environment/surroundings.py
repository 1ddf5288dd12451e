"""What calls cost beside computing, at each place that is measured: links, and the host's own work.

All of it is timed by the host, with all cores: nothing may be compiled meanwhile.
"""

from __future__ import annotations

from typing import Any

from hetero import registry
from hetero.calibration import selection
from hetero.calibration.checkpoint import Around, Checkpoint
from hetero.calibration.environment import links_at_once, overheads, quiet_links
from hetero.calibration.failures import Failure
from hetero.calibration.portions import Portion
from hetero.calibration.progress import Schedule
from hetero.calibration.wanted import Wanted
from hetero.ops.cases import Place
from hetero.pricing.plan import CPU

# Planned seconds, quick and in full: what it takes corrects them.
_PACK, _AROUND = (0.2, 0.4), (3.0, 6.0)


def plan(schedule: Schedule, places: list[Place], quick: bool) -> None:
    """Add what is measured here to a schedule."""
    schedule.plan("pack", _PACK[not quick])
    for place in places:
        if len(place.devices) == 1:
            schedule.plan("links", _AROUND[not quick])
        if len(place.devices) > 1:
            schedule.plan("company", links_at_once.SECONDS)


class Surroundings:
    """What is measured once for each place, and kept in a checkpoint.

    Parameters
    ----------
    places, portions, wanted, kept, schedule, failures
        Of the calibration.

    Attributes
    ----------
    shares : dict
        Place, operation and method -> the host's share of a call; filled by `measure`.
    """

    def __init__(
        self,
        places: list[Place],
        portions: list[Portion],
        wanted: Wanted,
        kept: Checkpoint,
        schedule: Schedule,
        failures: list[Failure],
    ) -> None:
        self._places, self._portions, self._wanted, self._kept = places, portions, wanted, kept
        self._schedule, self._failures = schedule, failures
        self._links: dict[str, dict[str, Any] | None] = {}  # None where they cannot be measured
        self.shares: dict[tuple[str, str, str], float] = {}

    def measure(self) -> None:
        """Measure what is not known yet."""
        self._copies()
        self._calls()

    def _copies(self) -> None:
        """Copies in host memory, and each device's links."""
        wanted, kept = self._wanted, self._kept
        if kept.pack is None and (wanted.base is None or CPU in wanted.only):
            self._schedule.begin("pack", _PACK[not wanted.quick], "copies in host memory")
            kept.pack = overheads.pack(wanted.budget)
        for place in self._places:
            if len(place.devices) != 1 or place.name in kept.around:
                continue
            if links_are_wanted(place, wanted):
                seconds = _AROUND[not wanted.quick] / 2
                self._schedule.begin("links", seconds, f"links of {place.name}")
                try:
                    with place.devices[0].active():
                        found = quiet_links.links(place.devices[0], wanted.budget)
                except Exception as error:
                    self._failures.append(Failure("links", place.name, "", error))
                    found = None
                self._links[place.name] = found

    def _calls(self) -> None:
        """What the host does around calls, and the links of several devices."""
        wanted, kept = self._wanted, self._kept
        for place in self._places:
            name = place.name
            if len(place.devices) != 1 or self._links.get(name, {}) is None:
                continue
            seconds = _AROUND[not wanted.quick] / 2
            self._schedule.begin("links", seconds, f"the host's share of calls on {name}")
            try:
                links = self._links.get(name)
                found = kept.around.get(name) or around(place, self._portions, wanted, links)
            except Exception as error:
                self._failures.append(Failure("links", name, "", error))
            else:
                kept.around[name] = found
                kept.write_if_due()
                self.shares |= {(name, *key): value for key, value in found.shares.items()}
        for place in self._places:
            several = len(place.devices) > 1 and place.name not in kept.around
            if several and links_are_wanted(place, wanted):
                self._together(place)

    def _together(self, place: Place) -> None:
        kept, first = self._kept, place.devices[0].name
        links = kept.around[first].links if first in kept.around else {}
        links = links or (self._wanted.base or {}).get("links", {}).get(first, {})
        self._schedule.begin("company", links_at_once.SECONDS, f"links of {place.name} at once")
        found = links_at_once.together(place, links, self._wanted.budget, self._failures)
        kept.around[place.name] = Around(*found, {})


def around(
    place: Place, portions: list[Portion], wanted: Wanted, links: dict[str, Any] | None = None
) -> Around:
    """What a call costs beside computing; its links, unless only other things are wanted, or they
    are given."""
    cases = [case for portion in portions if portion.place is place for case in portion.cases]
    if links is None and links_are_wanted(place, wanted):
        with place.devices[0].active():
            links = quiet_links.links(place.devices[0], wanted.budget)
    if links is not None:
        operations = registry.operations()
        return Around(links, *overheads.of_calls(place, cases, operations, wanted.budget))
    links = wanted.base["links"][place.name]
    dispatch = wanted.base["host"]["dispatch"][place.name]
    shares = {}
    if "device" in dispatch:
        shares = overheads.host_shares(place, cases, dispatch["device"])
    return Around(links, dispatch, shares)


def links_are_wanted(place: Place, wanted: Wanted) -> bool:
    """Whether links are to be measured: not where only other things are, and they are known."""
    base = wanted.base or {}
    known = place.name in base.get("links", {})
    if len(place.devices) == 1:
        known = known and place.name in base.get("host", {}).get("dispatch", {})
    return not known or bool(selection.place_names(place) & set(wanted.only))
