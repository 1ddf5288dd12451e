"""`hetero.calibrate`: measure this machine once and store the results."""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hetero import devices as backends
from hetero import paths, profile, registry
from hetero.calibration import fit, operands, overheads, repeat, sizes
from hetero.calibration.derived import derived
from hetero.calibration.repeat import Measured, leave_out
from hetero.calibration.sizes import FULL, QUICK, Case, Place, WorkItem
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable, ProfileError, one_of
from hetero.host import loops
from hetero.pricing import pricing
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Arguments
from hetero.registry.models import ModelKey
from hetero.times import readable

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_COMPILING = 3.0  # planned seconds; measured ones correct them
_EARLY = 0.02  # of the whole, before which the time left is not shown

log = logging.getLogger("hetero")


def calibrate(
    quick: bool = False,
    path: str | os.PathLike[str] | None = None,
    devices: list[str] | None = None,
    progress: Callable[[float, str], None] | None = None,
    *,
    only: Sequence[str] | None = None,
) -> profile.Profile:
    """Measure this machine and store its profile; from then on every plan uses it.

    Measured are the links of each device (each direction, pageable and pinned memory), the
    overhead of a launch and of a call, and every implementation, by dtype and layout, over sizes
    and aspect ratios.

    Parameters
    ----------
    quick : bool
        Coarser grids and less exact: 14 seconds on two cores instead of 17, compiling the CPU's
        loops apart.
    path : path-like, optional
        Where to store the profile. Default: ``HETERO_PROFILE``, or the user's cache directory.
    devices : list of str, optional
        Only these, such as ``["cpu", "cuda:0"]``; the CPU is always measured. Default: all devices;
        of identical GPUs one is measured, for all; an OpenCL device that is this machine's CPU is
        left out.
    progress : callable, optional
        Called as ``progress(fraction, text)``, fraction from 0 to 1; the text says what is measured
        and the time left.
    only : sequence of str, optional
        Names of operations, devices or methods: just what has one of them is measured, such as
        ``["matmul", "cuda:0"]``, and merged into this machine's profile.

    Returns
    -------
    Profile
        What was measured, which is used from now on.

    Raises
    ------
    DeviceNotAvailable
        If ``devices`` names one that is not here; the message names those that are.
    ValueError
        If ``only`` names nothing that can be measured here; the message lists what can.
    OSError
        If the profile cannot be written: before anything is measured, where that shows.

    Notes
    -----
    Samples that the others contradict are measured once more. Where many stay doubtful, or other
    processes kept the machine busy, a warning says so. The log has seconds of each stage at INFO.

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
    only = (only,) if isinstance(only, str) else tuple(only or ())
    if path is not None:  # this fails before anything is measured
        profile.place(path)
    with _alone():
        if path is None:  # the default path depends on the devices
            profile.place()
        base = None
        if only:
            base = profile.held() if path is None else _holding(path)
            if base is None:
                log.warning("all else is conservative until 'hetero calibrate' measures it")
        measured = profile.parse(
            profile.encode(_measure(quick, devices, progress, only, base.data if base else {}))
        )
    try:
        measured.save(path)
    finally:
        profile.set_current(measured)
    return measured


def _holding(path: str | os.PathLike[str]) -> profile.Profile | None:
    """The profile in a file, if there is one and it is of this machine."""
    try:
        stored = profile.read(path)
    except (OSError, ProfileError):
        return None
    return stored if profile.obstacle(stored.data["fingerprint"]) is None else None


def measure_machine(
    quick: bool,
    devices: list[str] | None,
    progress: Callable[[float, str], None] | None,
) -> dict[str, Any]:
    """The content of a profile of this machine, which is not stored."""
    with _alone():
        return _measure(quick, devices, progress, (), {})


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process of a user calibrate at a time."""

    def waiting() -> None:
        log.warning("another calibration is running on this machine: waiting for its end")

    with contextlib.ExitStack() as stack:
        if (folder := paths.private_folder()) is not None:
            # Several machines may share the folder.
            lock = folder / f"calibrating-{os.uname().nodename}.lock"
            try:
                stack.enter_context(paths.locked(lock, waiting))
            except OSError as error:
                if error.errno not in _NOT_WRITABLE:
                    raise
                log.info("calibrating without a lock against others: %s", error)
        yield


class Schedule:
    """Steps with their planned seconds; what those done took tells what the others will take.

    ``show(fraction, text)`` is called when a step begins; ``stages`` are seconds of steps that
    belong together, which the log has, too.
    """

    def __init__(self, show: Callable[[float, str], object] | None, planned: float) -> None:
        self._show, self._planned = show or (lambda fraction, text: None), planned
        self._start, self._done, self._now = time.perf_counter(), 0.0, 0.0
        self._stage, self._since = "", self._start
        self.stages: dict[str, float] = {}

    def stage(self, name: str) -> None:
        """End the current stage, and begin one."""
        now = time.perf_counter()
        if self._stage:
            took = self.stages.get(self._stage, 0.0) + now - self._since
            self.stages[self._stage] = round(took, 3)
        if name != self._stage and self._stage:
            log.info("calibration, %s: %s", self._stage, readable(self.stages[self._stage]))
        self._stage, self._since = name, now

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
        self.stage("")
        self._show(1.0, "done")


def _measure(
    quick: bool,
    devices: list[str] | None,
    progress: Callable[[float, str], None] | None,
    only: tuple[str, ...],
    base: dict[str, Any],
) -> dict[str, Any]:
    """The content of a profile of this machine: what is measured, all or what ``only`` names, and
    what stays of ``base``, a content."""
    if profile.held() is None:  # else a line would say so, and ask for what is under way
        profile.set_current(profile.shipped("conservative"))
    before, budget = repeat.reading(), QUICK if quick else FULL
    for name, info in inventory.devices().items():
        if name in devices if devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # removes broken devices from the list below
    infos = inventory.devices()
    places = places_of(chosen_devices(devices, infos), infos)
    worklist = all_cases(places, quick)
    if only:
        worklist = selected(worklist, only)
        places = [p for p in places if any(item.place is p for item in worklist)]
    planned = sum(item.case.seconds for item in worklist) * (1.0 + repeat.AGAIN)
    schedule = Schedule(progress, planned + _COMPILING + overheads.planned(places))
    schedule.begin(_COMPILING, "compiling")
    compile_first(worklist, schedule)
    schedule.stage("links and overheads")
    costs = overheads.at_places(places, worklist, budget, only, base, schedule.begin)
    try:
        measured, counts = repeat.measure(worklist, budget.point, costs.shares, schedule)
    finally:
        operands.forget_numbers()
    schedule.stage("fitting")
    content = _content(quick, bool(only), base, costs, measured)
    content["load"] = load = repeat.load(before, repeat.reading(), *counts)
    repeat.warn_if_loaded(load)
    schedule.done()
    content["stages"] = schedule.stages
    return content


# -- What is measured ------------------------------------------------------------------------------


def chosen_devices(devices: list[str] | None, infos: dict[str, dict[str, Any]]) -> list[str]:
    """The names of the devices to measure: the CPU and those requested, or all in use."""
    if devices is None:
        return [
            name
            for name, info in infos.items()
            if not (info.get("is_host_cpu") or info.get("same_as") or info.get("set_aside"))
        ]
    for name in devices:
        if name not in infos:
            reason = f": it is broken, {why}" if (why := inventory.broken().get(name)) else ""
            raise DeviceNotAvailable(one_of("device", infos, name) + reason)
    return [CPU, *(name for name in devices if name != CPU)]


def places_of(names: list[str], infos: dict[str, dict[str, Any]]) -> list[Place]:
    """The CPU, each device, and all equal devices together."""
    places = [
        Place(name, infos[name], () if name == CPU else (backends.get(name),)) for name in names
    ]
    for info in pricing.groups(infos).values():
        if info["members"][0] in names and not info.get("is_host_cpu"):
            together = tuple(backends.get(member) for member in info["members"])
            places.append(Place(info["constants"], info, together))
    return places


def all_cases(places: list[Place], quick: bool) -> list[WorkItem]:
    """The work list, in order; a quick one has only the links of several devices, by which calls in
    ranges are priced."""
    items: list[WorkItem] = []
    for operation in registry.operations():
        for place in (p for p in places if len(p.devices) < 2 or not quick):
            try:
                found = [*sizes.cases(operation.name, place, quick)]
            except Exception as error:
                leave_out(operation.name, place.name, error)
            else:
                items += [WorkItem(place, case) for case in found]
    return items


def selected(worklist: list[WorkItem], only: Iterable[str]) -> list[WorkItem]:
    """The cases that have one of these names.

    Raises
    ------
    ValueError
        If a name stands for nothing that can be measured; the message lists those that do.
    """
    known = set().union(*(item.names for item in worklist))
    functions = {o.name: o.function for o in registry.operations()}
    for name in sorted(set(only) - known):
        raise ValueError(one_of("only", sorted({functions.get(n, n) for n in known}), name))
    return [item for item in worklist if item.names & set(only)]


# -- Compiling -------------------------------------------------------------------------------------


def compile_first(worklist: list[WorkItem], schedule: Schedule) -> None:
    """Compile on all cores what cases need: the CPU's loops, and of a GPU the kernels of products
    and of convolutions, which are most. Solves compile theirs at once when they are measured."""
    if any(not item.place.devices for item in worklist):
        schedule.stage("compiling loops")
        loops.ensure(loops.every(), lambda fraction, text: schedule.begin(0.0, text))
    for device in dict.fromkeys(d for p, _ in worklist for d in p.devices if len(p.devices) == 1):
        schedule.stage(f"compiling kernels of {device.name}")
        wanted = kernels_of(device, [c for p, c in worklist if p.devices == (device,)])
        device.compile_ahead(wanted)


class _Recorder:
    """A device that notes which kernels it is asked for, and runs none."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.wanted: dict[tuple[str, Any], None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def build(self, text: str, kernel: str, defines: Any) -> None:
        self.wanted[text, defines] = None

    def launch(self, *_: Any) -> None:
        """Nothing was built."""

    def run_launches(self, plan: Any, *_: Any) -> None:
        self.wanted.update(((one.source, one.defines), None) for one in plan.launches)


def kernels_of(device: Device, cases: Iterable[Case]) -> Iterable[tuple[str, Any]]:
    """The kernels, (file, macros), of all shapes that tables are measured at."""
    recorder = _Recorder(device)
    with device.active():
        for case in (case for case in cases if case.steps is None):
            between = [*case.between.values()][: case.checks]
            for dims in (*case.knots.values(), *between):
                with contextlib.suppress(Exception):  # reported when the case is measured
                    problem = case.problem(*dims)
                    options = case.options(problem) if case.options is not None else None
                    inputs = (0,) * (case.inputs or len(problem.inputs))
                    case.implementation.run((recorder,), problem, Arguments(inputs, 0, options))
    return recorder.wanted


# -- The profile -----------------------------------------------------------------------------------


def fitted(measured: list[Measured], links: dict[str, Any]) -> dict[ModelKey, dict[str, Any]]:
    """The models of samples; by ``links``, link models of a profile, those of several devices leave
    out what is moved."""
    constants = profile.Profile({"name": "", "devices": {}, "links": links})
    models: dict[ModelKey, dict[str, Any]] = {}
    for one in measured:
        try:
            models[one.key] = fit.model(*one, constants)
        except Exception as error:
            leave_out(one.case, one.place.name, error)
    return models


def _content(
    quick: bool,
    merged: bool,
    base: dict[str, Any],
    costs: overheads.Overheads,
    measured: list[Measured],
) -> dict[str, Any]:
    """The content of a profile: what was measured, and where it is ``merged`` what stays of the one
    before."""
    conservative = profile.shipped("conservative").data
    stays: dict[str, Any] = {"models": {}, "links": {}, "host": {}}
    if merged:
        stays = base or conservative
    links = {**stays["links"], **costs.links}
    made = {ModelKey.parse(key): model for key, model in stays["models"].items()}
    made |= fitted(measured, links)
    try:
        made |= derived(made)
    except Exception as error:
        leave_out("derived models", "all", error)
    return {
        "schema_version": profile.SCHEMA_VERSION,
        "name": "measured",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick and bool(stays.get("quick", True)),
        "units": profile.UNITS,
        "fingerprint": inventory.fingerprint(),
        "devices": {
            name: {key: value for key, value in info.items() if key != "set_aside"}
            for name, info in inventory.devices().items()
        },
        "links": links,
        "host": {
            "pack": costs.pack or stays["host"].get("pack") or conservative["host"]["pack"],
            "dispatch": {**stays["host"].get("dispatch", {}), **costs.dispatch},
        },
        "models": {str(key): model for key, model in made.items()},
    }
