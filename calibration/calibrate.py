"""`hetero.calibrate`: measure this machine once and store what was found."""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
from collections.abc import Callable
from typing import Any

from hetero import devices as backends
from hetero import paths
from hetero.calibration import budgets, compiling, loop, overheads, tuning
from hetero.errors import DeviceError, DeviceNotAvailable, ProfileError
from hetero.runtime import inventory, pricing, profile, registry
from hetero.runtime import tuning as tuning_tables
from hetero.runtime.cases import Place
from hetero.runtime.plan import CPU

log = logging.getLogger("hetero")

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


def calibrate(
    quick: bool = False,
    path: str | os.PathLike[str] | None = None,
    devices: list[str] | None = None,
    progress: Callable[[float, str], None] | None = None,
    *,
    kernels: bool = False,
) -> profile.Profile:
    """Measure this machine and store its profile; from then on every plan uses it.

    Measured are the links of each device (each direction, pageable and pinned memory), the
    overhead of a launch and of a call, and every implementation, by dtype and layout, over sizes
    and aspect ratios.

    Parameters
    ----------
    quick : bool
        Coarser grids: seconds instead of one to three minutes.
    path : path-like, optional
        Where to store the profile. Default: ``HETERO_PROFILE``, or the user's cache directory.
    devices : list of str, optional
        Only these, such as ``["cpu", "cuda:0"]``; the CPU is always measured. Default: all devices;
        of identical GPUs only one is measured, and an OpenCL device that is this machine's CPU is
        left out.
    progress : callable, optional
        Called as ``progress(fraction, text)``, fraction from 0 to 1.
    kernels : bool
        First measure, on each CUDA device, the figures that hetero's own kernels are planned by:
        a minute more, once for a card that no shipped tuning table is of. They stay in the
        profile when it is measured again without this.

    Returns
    -------
    Profile

    Raises
    ------
    DeviceNotAvailable
        If ``devices`` names one that is not here; the message names those that are.
    OSError
        If the profile cannot be written: before anything is measured, where that shows.

    Notes
    -----
    A second calibration of the same user waits for the first one's end, since both would measure
    how they disturb each other. It does not where the user's cache directory cannot be written.

    References
    ----------
    A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
    University, 2013, chapter 3.

    Examples
    --------
    >>> import hetero
    >>> hetero.calibrate(quick=True, path="/tmp/hetero-example.json").name
    'measured'
    """
    profile.place(path)  # fails before anything is measured, not after
    found = profile.parse(profile.encode(measure_machine(quick, devices, progress, kernels)))
    try:
        found.save(path)
    finally:
        profile.set_current(found)
    return found


def measure_machine(
    quick: bool,
    devices: list[str] | None,
    progress: Callable[[float, str], None] | None,
    kernels: bool = False,
) -> dict[str, Any]:
    """The content of a profile of this machine; one process of a user's measures at a time."""
    folder = paths.private_folder()
    if folder is None:
        return _planned_by_tables(quick, devices, progress, kernels)

    def waiting() -> None:
        log.warning("another calibration is running on this machine: waiting for its end")

    # The folder may be one of several machines.
    lock = folder / f"calibrating-{os.uname().nodename}.lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(paths.locked(lock, waiting))
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            log.info("calibrating without a lock against others: %s", error)
        return _planned_by_tables(quick, devices, progress, kernels)


def _planned_by_tables(
    quick: bool,
    devices: list[str] | None,
    progress: Callable[[float, str], None] | None,
    kernels: bool,
) -> dict[str, Any]:
    """What `_measure` finds with the kernels' own tuning tables, which become part of it."""
    here = inventory.devices()
    cards = {info.get("name") for info in here.values()}
    tables = {card: table for card, table in _stored_tables().items() if card in cards}
    for name, info in here.items() if kernels else ():
        if info["kind"] != "cuda" or (devices is not None and name not in devices):
            continue
        if not (info.get("same_as") or info.get("set_aside")):
            try:
                tables[info["name"]] = tuning.measure_table(backends.get(name), progress)
            except DeviceError as error:
                log.warning("calibration leaves out the kernels of %s: %s", name, error)
    with tuning_tables.using(tables):
        found = _measure(quick, devices, progress)
    return {**found, "kernels": tables} if tables else found


def _stored_tables() -> dict[str, Any]:
    """The tuning tables of all stored profiles, by card; of one card the newest."""
    found: dict[str, Any] = {}
    for path in reversed(profile.stored()):
        with contextlib.suppress(OSError, ProfileError):
            found |= profile.read(path).data.get("kernels", {})
    return found


def _measure(
    quick: bool, devices: list[str] | None, progress: Callable[[float, str], None] | None
) -> dict[str, Any]:
    budget = budgets.QUICK if quick else budgets.FULL
    for name, info in inventory.devices().items():
        if name in devices if devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # or it is not in the list that follows
    infos = inventory.devices()
    places = _places(_chosen(devices, infos), infos, quick)
    failures: list[loop.Failure] = []
    operations = registry.operations()
    portions = loop.all_cases(operations, places, budget, failures)
    steps = 2 + len(places) + sum(len(list(loop.in_turn(portion))) for portion in portions)
    number = 0

    def show(text: str) -> None:
        nonlocal number
        if progress is not None:
            progress(min(number / steps, 1.0), text)
        number += 1

    show("compiling")
    compiling.compile_ahead(portions)
    show("copies in host memory")
    host: dict[str, Any] = {"pack": overheads.pack(budget), "dispatch": {}}
    links: dict[str, Any] = {}
    shares: dict[tuple[str, str, str], float] = {}
    for place in places:
        if len(place.devices) == 1:
            show(f"links of {place.name}")
            cases = [
                case for portion in portions if portion.place is place for case in portion.cases
            ]
            try:
                found = overheads.of_device(place, cases, operations, budget)
            except Exception as error:
                failures.append(loop.Failure("links", place.name, "", error))
            else:
                links[place.name], host["dispatch"][place.name], mine = found
                shares.update({(place.name, *key): value for key, value in mine.items()})
    measured = loop.measure(portions, budget, shares, show, failures)
    models = loop.derived(operations, loop.models(measured, failures), failures)
    for line in loop.told(failures):
        log.warning("calibration leaves out %s", line)
    if progress is not None:
        progress(1.0, "done")
    return {
        "schema_version": profile.SCHEMA_VERSION,
        "name": "measured",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "units": profile.UNITS,
        "fingerprint": inventory.fingerprint(),
        "devices": {
            name: {key: value for key, value in info.items() if key != "set_aside"}
            for name, info in infos.items()
        },
        "links": links,
        "host": host,
        "models": {str(key): model for key, model in models.items()},
    }


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
