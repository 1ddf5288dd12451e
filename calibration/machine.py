"""What of this machine is measured, in which order, and the profile that comes of it."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hetero import devices as backends
from hetero.calibration import (
    budgets,
    compiling,
    keeping_out,
    load,
    loop,
    overheads,
    selection,
    thread_counts,
    twins,
)
from hetero.calibration.checkpoint import Around, Checkpoint
from hetero.calibration.progress import Schedule
from hetero.errors import DeviceNotAvailable
from hetero.kernels.cpu import blas_timeout
from hetero.runtime import inventory, pricing, profile, registry
from hetero.runtime.cases import Budget, Place
from hetero.runtime.plan import CPU

# Planned seconds of what is no case, quick and in full: what it takes corrects them.
_COMPILING, _PACK, _AROUND, _THREADS = (3.0, 8.0), (0.2, 0.4), (3.0, 6.0), (0.5, 1.0)
_LOOP = 10.0 / (os.cpu_count() or 1)  # of compiling one of the CPU's loops, others beside it
_AGAIN = 0.1  # of the cases' seconds, for what is measured once more

log = logging.getLogger("hetero")


class Wanted(NamedTuple):
    """What a calibration is to measure.

    Attributes
    ----------
    quick : bool
    devices : list of str or None
        None for all.
    only : tuple of str
        Names of operations, devices and methods; empty for everything.
    base : dict or None
        Content of a profile whose other constants stay where ``only`` is given.
    unfinished : Path or None
        Where to keep what was measured so far.
    fresh : bool
        Whether what an interrupted calibration left is not to be continued.
    kernels : bool
        Whether tuning tables are measured too.
    """

    quick: bool = False
    devices: list[str] | None = None
    only: tuple[str, ...] = ()
    base: dict[str, Any] | None = None
    unfinished: Path | None = None
    fresh: bool = False
    kernels: bool = False

    @property
    def budget(self) -> Budget:
        return budgets.QUICK if self.quick else budgets.FULL

    def plain(self) -> dict[str, Any]:
        """What must be the same in a calibration that goes on with another one's samples."""
        return {
            "budget": dataclasses.asdict(self.budget),
            "devices": self.devices,
            "only": sorted(self.only),
            "kernels": self.kernels,
        }


def checkpoint(wanted: Wanted) -> Checkpoint:
    """Where it is kept what was measured; with what an interrupted calibration left."""

    def content(so_far: Checkpoint) -> dict[str, Any]:
        return profile_of(wanted, so_far, list(so_far.measured.values()), [])

    made = Checkpoint(wanted.unfinished, wanted.plain(), content)
    if not wanted.fresh:
        made.resume()
    return made


def measure(
    wanted: Wanted, kept: Checkpoint, progress: Callable[[float, str], None] | None
) -> dict[str, Any]:
    """Measure what is wanted and not known yet; the content of a profile."""
    try:
        return _measure(wanted, kept, progress)
    except BaseException:  # most of all KeyboardInterrupt
        kept.write()
        raise


def _measure(
    wanted: Wanted, kept: Checkpoint, progress: Callable[[float, str], None] | None
) -> dict[str, Any]:
    budget, operations = wanted.budget, registry.operations()
    watch = load.Watch()
    for name, info in inventory.devices().items():
        if name in wanted.devices if wanted.devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # or it is not in the list that follows
    infos = inventory.devices()
    chosen = _chosen(wanted.devices, infos)
    places = _places(chosen, infos, wanted.quick)
    failures: list[loop.Failure] = []
    portions = loop.all_cases(operations, places, budget, failures)
    if wanted.only:
        portions = selection.selected(portions, wanted.only)
        places = [p for p in places if any(portion.place is p for portion in portions)]
    kept.cases = sum(len(portion.cases) for portion in portions)
    schedule = _planned(portions, places, wanted, kept, progress)
    blas_timeout.shorten()  # as it is in a program with loops
    schedule.begin("compiling", _COMPILING[not wanted.quick], "compiling")
    compiling.compile_ahead(portions, wanted.quick, _told_by(schedule))
    if kept.pack is None and (wanted.base is None or CPU in wanted.only):
        schedule.begin("pack", _PACK[not wanted.quick], "copies in host memory")
        kept.pack = overheads.pack(budget)
    shares: dict[tuple[str, str, str], float] = {}
    for place in places:
        if len(place.devices) == 1:
            schedule.begin("links", _AROUND[not wanted.quick], f"links of {place.name}")
            try:
                found = kept.around.get(place.name) or _around(place, portions, wanted)
            except Exception as error:
                failures.append(loop.Failure("links", place.name, "", error))
            else:
                kept.around[place.name] = found
                kept.write_if_due()
                shares |= {(place.name, *key): value for key, value in found.shares.items()}
    measured = loop.measure(portions, budget, shares, schedule.begin, failures, watch, kept)
    if wanted.devices is None and not wanted.only:
        measured += _of_twins(infos, places, measured, wanted, schedule, failures, kept, watch)
    found = profile_of(wanted, kept, measured, failures)
    schedule.begin("threads", _THREADS[not wanted.quick], "numbers of threads")
    for key, table in thread_counts.tables(measured, budget, failures).items():
        if str(key) in found["models"]:
            found["models"][str(key)]["threads"] = table
    found["load"] = watch.seen()
    for line in loop.told(failures):
        log.warning("calibration leaves out %s", line)
    for line in keeping_out.told(found["models"]):
        log.warning("calibration keeps out %s", line)
    if load.is_loaded(found["load"]):
        log.warning("other work ran beside the calibration: %s", load.described(found["load"]))
    if not load.is_trusted(found["load"]):
        log.warning("this calibration cannot be trusted: calibrate again when nothing else runs")
    schedule.done()
    return found


def _told_by(schedule: Schedule) -> Callable[[int], None]:
    """Who is told how many of the CPU's loops are not compiled yet."""
    planned = False

    def told(number: int) -> None:
        nonlocal planned
        if not planned:
            schedule.plan("loops", number * _LOOP)
        planned = True
        schedule.begin("loops", _LOOP, f"compiling the CPU's loops, {number} yet")

    return told


def _planned(
    portions: list[loop.Portion],
    places: list[Place],
    wanted: Wanted,
    kept: Checkpoint,
    progress: Callable[[float, str], None] | None,
) -> Schedule:
    full, total = not wanted.quick, 0.0
    schedule = Schedule(progress)
    schedule.plan("compiling", _COMPILING[full])
    schedule.plan("pack", _PACK[full])
    schedule.plan("threads", _THREADS[full])
    for place in places:
        if len(place.devices) == 1:
            schedule.plan("links", _AROUND[full])
    for portion in portions:
        for case in portion.cases:
            done = kept.turns_left(case, portion.place) / loop.turns(case)
            schedule.plan(portion.place.name, case.seconds * (1.0 - done))
            total += case.seconds
    schedule.plan(loop.AGAIN, _AGAIN * total)
    return schedule


def _around(place: Place, portions: list[loop.Portion], wanted: Wanted) -> Around:
    """What a call costs beside computing; its links, unless only other things are wanted."""
    cases = [case for portion in portions if portion.place is place for case in portion.cases]
    base = wanted.base or {}
    links = base.get("links", {}).get(place.name)
    dispatch = base.get("host", {}).get("dispatch", {}).get(place.name)
    if links is None or dispatch is None or selection.place_names(place) & set(wanted.only):
        return Around(*overheads.of_device(place, cases, registry.operations(), wanted.budget))
    shares = {}
    if "device" in dispatch:
        shares = overheads.host_shares(place, cases, dispatch["device"])
    return Around(links, dispatch, shares)


def _of_twins(
    infos: dict[str, dict[str, Any]],
    places: list[Place],
    measured: list[loop.Measured],
    wanted: Wanted,
    schedule: Schedule,
    failures: list[loop.Failure],
    kept: Checkpoint,
    watch: load.Watch,
) -> list[loop.Measured]:
    """Samples of those of several equal GPUs that are not like the one that was measured."""
    found: list[loop.Measured] = []
    for name, info in infos.items():
        first = next((p for p in places if p.name == info.get("same_as")), None)
        if first is None or info.get("set_aside") or not inventory.believed(name):
            continue
        twin = Place(name, info, (backends.get(name),))
        schedule.begin("twins", twins.SECONDS, f"whether {name} is like {first.name}")
        try:
            cases = [one.case for one in measured if one.place is first]
            difference = twins.difference(first, twin, cases, wanted.budget)
        except Exception as error:
            failures.append(loop.Failure("confirmation", name, "", error))
            continue
        if difference is None:
            continue
        what = f"{name} is measured by itself"
        if difference.only_links:
            what = f"the links of {name} are measured by themselves"
        log.warning("%s: %s", what, difference.text)
        portions = []
        if not difference.only_links:
            portions = loop.all_cases(registry.operations(), [twin], wanted.budget, failures)
        for portion in portions:
            for case in portion.cases:
                schedule.plan(name, case.seconds)
        kept.cases += sum(len(portion.cases) for portion in portions)
        try:
            around = kept.around.get(name) or _around(twin, portions, wanted)
        except Exception as error:
            failures.append(loop.Failure("links", name, "", error))
            continue
        kept.around[name] = around
        shares = {(name, *key): value for key, value in around.shares.items()}
        found += loop.measure(
            portions, wanted.budget, shares, schedule.begin, failures, watch, kept
        )
    return found


def profile_of(
    wanted: Wanted,
    kept: Checkpoint,
    measured: list[loop.Measured],
    failures: list[loop.Failure],
) -> dict[str, Any]:
    """The content of a profile: what was measured, and what stays of the one before."""
    base = wanted.base if wanted.only else None
    stays = base or {"models": {}, "links": {}, "host": {}, "devices": {}}
    before = {loop.ModelKey.parse(key): model for key, model in stays["models"].items()}
    models = before | loop.models(measured, failures)
    models = loop.derived(registry.operations(), models, failures)
    pack = kept.pack or stays["host"].get("pack")
    found = {
        "schema_version": profile.SCHEMA_VERSION,
        "name": "measured",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": wanted.quick and bool(stays.get("quick", True)),
        "units": profile.UNITS,
        "fingerprint": inventory.fingerprint(),
        "devices": {
            name: {key: value for key, value in info.items() if key != "set_aside"}
            for name, info in inventory.devices().items()
        },
        "links": {**stays["links"], **{place: found.links for place, found in kept.around.items()}},
        "host": {
            "pack": pack or profile.shipped("conservative").data["host"]["pack"],
            "dispatch": {
                **stays["host"].get("dispatch", {}),
                **{place: found.dispatch for place, found in kept.around.items()},
            },
        },
        "models": {str(key): model for key, model in models.items()},
    }
    if wanted.only and (missing := _missing(base, found)) != []:
        found["unfinished"] = {
            "why": f"only {', '.join(wanted.only)} was measured anew. Conservative constants serve "
            "for what is missing; 'hetero calibrate' measures it",
            "missing": missing,
        }
    return found


def _missing(base: dict[str, Any] | None, found: dict[str, Any]) -> list[str] | None:
    """What the profile before lacked and this one lacks still; None if that is not known."""
    if base is None:
        return None
    missing = base.get("unfinished", {"missing": []}).get("missing")
    there = {*found["models"], *(f"{place}|links" for place in found["links"])}
    there |= {f"{place}|dispatch" for place in found["host"]["dispatch"]}
    return None if missing is None else [name for name in missing if name not in there]


def _places(names: list[str], infos: dict[str, dict[str, Any]], quick: bool) -> list[Place]:
    """The CPU, each device, and all equal devices together."""
    found = [
        Place(name, infos[name], () if name == CPU else (backends.get(name),)) for name in names
    ]
    for info in pricing.groups(infos).values() if not quick else ():
        if info["members"][0] in names and not info.get("is_host_cpu"):
            together = tuple(backends.get(member) for member in info["members"])
            found.append(Place(info["constants"], info, together))
    return found


def _chosen(devices: list[str] | None, infos: dict[str, dict[str, Any]]) -> list[str]:
    if devices is None:
        return [
            name
            for name, info in infos.items()
            if not (info.get("is_host_cpu") or info.get("same_as") or info.get("set_aside"))
        ]
    for name in devices:
        if name not in infos:
            reason = f": it is broken, {why}" if (why := inventory.broken().get(name)) else ""
            raise DeviceNotAvailable(
                f"devices must be among {', '.join(map(repr, infos))}, got {name!r}{reason}"
            )
    return [CPU, *(name for name in devices if name != CPU)]
