"""`hetero.calibrate`: measure this machine once and store what was found."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import time
from collections.abc import Callable
from typing import Any

from hetero import paths
from hetero.calibration import efforts, solves, tasks
from hetero.errors import DeviceError, DeviceNotAvailable
from hetero.runtime import inventory, planner, profile

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


def calibrate(
    quick: bool = False,
    path: str | os.PathLike[str] | None = None,
    devices: list[str] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> profile.Profile:
    """Measure this machine and store its profile; from then on every plan uses it.

    Measured are the links of each device (each direction, pageable and pinned memory), the
    overhead of a launch and of a call, and every implementation, by dtype and layout, over sizes
    and aspect ratios.

    Parameters
    ----------
    quick : bool
        Coarser grids: seconds instead of one or two minutes.
    path : path-like, optional
        Where to store the profile. Default: ``HETERO_PROFILE``, or the user's cache directory.
    devices : list of str, optional
        Only these, such as ``["cpu", "cuda:0"]``; the CPU is always measured. Default: all devices;
        of identical GPUs only one is measured, and an OpenCL device that is this machine's CPU is
        left out.
    progress : callable, optional
        Called as ``progress(fraction, text)``, fraction from 0 to 1.

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
    found = profile.parse(profile.encode(measure_machine(quick, devices, progress)))
    try:
        found.save(path)
    finally:
        profile.set_current(found)
    return found


def measure_machine(
    quick: bool, devices: list[str] | None, progress: Callable[[float, str], None] | None
) -> dict[str, Any]:
    """The content of a profile of this machine; one process of a user's measures at a time."""
    folder = paths.private_folder()
    if folder is None:
        return _measure(quick, devices, progress)

    def waiting() -> None:
        profile.log.warning("another calibration is running on this machine: waiting for its end")

    # The folder may be one of several machines.
    lock = folder / f"calibrating-{os.uname().nodename}.lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(paths.locked(lock, waiting))
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            profile.log.info("calibrating without a lock against others: %s", error)
        return _measure(quick, devices, progress)


def _measure(
    quick: bool, devices: list[str] | None, progress: Callable[[float, str], None] | None
) -> dict[str, Any]:
    effort = efforts.QUICK if quick else efforts.FULL
    for name, info in inventory.devices().items():
        if name in devices if devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # or it is not in the list that follows
    infos = inventory.devices()
    names = _chosen(devices, infos)
    seconds = effort.total + effort.device_total * (len(names) - 1)
    phases = [(tasks.compilations(names, infos, effort, quick), 1.0)]
    phases.append((tasks.products(names, infos, effort, quick), seconds))
    if not quick:
        phases.append(([("compiling the CPU's loops", tasks.compile_all, 1.0)], 1.0))
    phases += [(found, effort.filters) for found in tasks.filters(names, infos, effort, quick)]
    phases += [(found, effort.solves) for found in tasks.all_solves(names, infos, effort, quick)]
    number, total = 0, sum(len(found) for found, _ in phases)
    models: dict[str, Any] = {}
    links: dict[str, Any] = {}
    host: dict[str, Any] = {"dispatch": {}}
    for phase, budget in phases:
        end = time.perf_counter() + budget
        left = sum(weight for _, _, weight in phase)
        for text, task, weight in phase:
            if progress is not None:
                progress(number / total, text)
            number += 1
            left, weight = left - weight, weight / left
            try:
                # Twice the fair share: tasks differ, and most take far less.
                share = 2.0 * max(end - time.perf_counter(), 0.1) * weight
                task(models, links, host, share)
            except DeviceError as error:
                profile.log.warning("calibration leaves out %s: %s", text, error)
    if progress is not None:
        progress(1.0, "done")
    for place in {key.partition("|")[0] for key in models}:
        if not quick:
            solves.longer_dense(models, place)
        models.update(solves.same_as_cg(models, place))
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
        "models": models,
    }


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
    return [planner.CPU, *(name for name in devices if name != planner.CPU)]
