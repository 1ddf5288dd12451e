"""`hetero.calibrate`: measure this machine once and store the results."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hetero import devices as backends
from hetero import paths, profile, registry
from hetero.calibration import fit, links, measure, samples, sizes
from hetero.calibration.measure import leaving_out
from hetero.calibration.samples import Bench, Samples, prepared
from hetero.calibration.sizes import FULL, QUICK, Case, Dims, Place, grid
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable, one_of, readable
from hetero.host import loops
from hetero.imports import load
from hetero.pricing import pricing
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import BLAS, Arguments
from hetero.registry.models import ModelKey

Show = Callable[[float, str], object]
_EARLY = 0.02  # of the whole, before which the time left is not shown
_TRIED = 1 << 22  # bytes of the operands, at most, of a solve that is made once before all

_DONE = "done"  # the last stage

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
        Coarser grids and less exact: under 10 seconds on two cores instead of 20, compiling the
        CPU's loops apart.
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
    processes kept the machine busy, a warning says so. The log has the seconds of each stage at
    INFO.

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
    with _alone():
        inventory.place(path)  # this fails before anything is measured
        base = profile.held(path) if only else None
        if only and base is None:
            log.warning("all else is conservative until 'hetero calibrate' measures it")
        content = _measure(quick, devices, progress, only, base)
        measured = profile.parse(profile.encode(content))
    measured.save(path)
    profile.set_current(measured)
    return measured


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process of a user calibrate at a time."""
    text = "another calibration is running on this machine: waiting for its end"
    with contextlib.ExitStack() as stack:
        if (folder := paths.private_folder()) is not None:
            # Several machines may share the folder.
            lock = folder / f"calibrating-{os.uname().nodename}.lock"
            try:
                stack.enter_context(paths.locked(lock, functools.partial(log.warning, text)))
            except OSError as error:
                log.info("calibrating without a lock against others: %s", error)
        yield


class _Schedule:
    """How far it is, by the number of steps, and the seconds of each stage so far."""

    def __init__(self, show: Show | None, steps: int) -> None:
        self._show, self._steps = show or (lambda fraction, text: None), steps
        self._start = self._since = time.perf_counter()
        self._stage, self._done = "", 0
        self.stages: dict[str, float] = {}

    def begin(self, stage: str, text: str = "", steps: int = 1) -> None:
        """End the current step, and begin one, which is shown as ``text``."""
        now = time.perf_counter()
        if stage != self._stage:
            if self._stage:
                before = self.stages.get(self._stage, 0.0)
                self.stages[self._stage] = round(before + now - self._since, 3)
                log.info("calibration, %s: %s", self._stage, readable(now - self._since))
            self._stage, self._since = stage, now
        if not self._done:  # what is compiled is compiled once
            self._start = now
        fraction = 1.0 if stage == _DONE else min(self._done / self._steps, 0.99)
        self._done += steps
        if _EARLY < fraction < 1.0:
            left = (now - self._start) * (1.0 - fraction) / fraction
            text = f"{text or stage}, {readable(left)} left"
        self._show(fraction, text or stage)


def _measure(
    quick: bool,
    devices: list[str] | None,
    progress: Show | None,
    only: tuple[str, ...],
    base: profile.Profile | None,
) -> dict[str, Any]:
    """The content of a profile of this machine: what is measured, all or what ``only`` names, and
    what stays of ``base``."""
    conservative = profile.shipped("conservative")
    if profile.held() is None:  # else a line would say so, and ask for what is under way
        profile.set_current(conservative)
    before, budget = measure.reading(), QUICK if quick else FULL
    places, cases = _places(devices), []
    for operation, place in itertools.product(registry.operations(), places):
        if len(place.devices) < 2 or not quick:  # by links alone calls in ranges are priced
            with leaving_out(f"{operation.name} on {place.name}"):
                cases += sizes.cases(operation.name, place, quick)
    if only:
        known = set().union(*(case.names for case in cases))
        functions = {o.name: o.function for o in registry.operations()}
        for name in sorted(set(only) - known):
            raise ValueError(one_of("only", sorted({functions.get(n, n) for n in known}), name))
        cases = [case for case in cases if case.names & set(only)]
        places = [place for place in places if any(case.place is place for case in cases)]
    schedule = _Schedule(progress, len(cases) + len(places) + 1)
    measured: list[tuple[Case, Samples]] = []

    def take(some: Iterable[Case]) -> None:
        measured.extend(take_all(some, budget.point, schedule.begin))

    # What needs kernels of ours comes last.
    clocked = sorted((case for case in cases if case.clocked), key=lambda case: case.estimated)
    stays = (base or conservative).data
    try:
        compile_first(cases, schedule.begin, lambda: take(clocked))
        found, host = links.measured(places, budget, only, stays, schedule.begin)
        take(case for case in cases if not case.clocked)
    finally:
        sizes.forget_numbers()
    schedule.begin("fitting")
    models = {ModelKey.parse(key): model for key, model in stays["models"].items() if only}
    models |= fitted(measured, found)
    with leaving_out("derived models"):
        models |= fit.derived(models)
    load = measure.load(before, measure.reading()) | {
        "samples": sum(len(found.seconds) for _, found in measured),
        "left": sum(len(found.doubtful) for _, found in measured),
    }
    if not profile.is_trusted(load):
        log.warning(
            "other work ran during the calibration: %s; it cannot be trusted: calibrate again when "
            "nothing else runs",
            measure.described(load),
        )
    schedule.begin(_DONE)
    return {
        "schema_version": profile.SCHEMA_VERSION,
        "name": "measured",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": quick and bool(not only or stays.get("quick", True)),
        "units": profile.UNITS,
        "fingerprint": inventory.fingerprint(),
        "devices": {
            name: {key: value for key, value in info.items() if key != "set_aside"}
            for name, info in inventory.devices().items()
        },
        "links": found,
        "host": host,
        "models": {str(key): model for key, model in models.items()},
        "load": load,
        "stages": schedule.stages,
    }


def take_all(
    cases: Iterable[Case], point: float, begin: Callable[[str, str], object]
) -> list[tuple[Case, Samples]]:
    """Samples of all cases that can be measured, of ``point`` seconds each; ``begin(stage, text)``
    is called before each case."""
    benches: dict[str, Bench] = {}
    measured, before = [], None
    for case in cases:
        row, place = case.row, case.place
        begin(f"{row.operation} on {place.name}", str(case))
        if not place.devices and row.method != BLAS and row is not before:
            measure.wait_until_idle()  # threads of BLAS spin
        before = row
        alone = len(place.devices) == 1  # so that its operands can be made
        with leaving_out(case), place.devices[0].active() if alone else contextlib.nullcontext():
            bench = benches.setdefault(place.name, Bench(place.devices))
            measured.append((case, samples.take(case, bench, point)))
    return measured


def fitted(measured: list[tuple[Case, Samples]], links: dict[str, Any]) -> dict[ModelKey, Any]:
    """The models of samples; by ``links``, link models of a profile, those of several devices leave
    out what is moved."""
    known = profile.Profile({"name": "", "devices": {}, "links": links})
    models: dict[ModelKey, Any] = {}
    for case, found in measured:
        with leaving_out(case):
            first = case.first and models.get(case.key._replace(layout=case.first))
            models[case.key] = fit.model(case, found, known, first)
    return models


# -- What is measured ------------------------------------------------------------------------------


def _places(devices: list[str] | None) -> list[Place]:
    """The CPU, each device that is requested, or all in use, and all equal devices together."""
    for name, info in inventory.devices().items():
        if name in devices if devices is not None else not info.get("is_host_cpu"):
            inventory.believed(name)  # removes broken devices from the list below
    infos = inventory.devices()
    if devices is None:
        left_out = ("is_host_cpu", "same_as", "set_aside")
        devices = [name for name, info in infos.items() if not any(map(info.get, left_out))]
    names = dict.fromkeys([CPU, *devices])
    for name in names:
        if name not in infos:
            reason = f": it is broken, {why}" if (why := inventory.broken().get(name)) else ""
            raise DeviceNotAvailable(one_of("device", infos, name) + reason)
    places = {name: (infos[name], [name] * (name != CPU)) for name in names}
    for info in pricing.groups(infos).values():
        if info["members"][0] in names and not info.get("is_host_cpu"):
            places[info["constants"]] = info, info["members"]
    return [
        Place(name, info, tuple(map(backends.get, members)))
        for name, (info, members) in places.items()
    ]


# -- Compiling -------------------------------------------------------------------------------------


def compile_first(
    cases: list[Case], begin: Callable[[str, str, int], object], meanwhile: Callable[[], object]
) -> None:
    """Compile on all cores what cases need: the CPU's loops, and a GPU's kernels; those of tables
    while ``meanwhile()`` measures what other work on the host does not disturb."""
    if any(case.row.loops is not None for case in cases):

        def compiling(fraction: float, text: str = "compiling") -> None:
            begin("compiling loops", f"{fraction:.0%} of the loops, {text}", 0)

        compiling(0.0)
        loops.ensure(loops.every(), compiling)
    by_device: dict[Device, list[Case]] = {}
    for case in cases:
        if len(case.place.devices) == 1:
            by_device.setdefault(case.place.devices[0], []).append(case)
    Threads = load("concurrent.futures").ThreadPoolExecutor
    with Threads(max(len(by_device), 1)) as threads:
        for device, own in by_device.items():
            begin(f"compiling kernels of {device.name}", "compiling", 0)
            threads.submit(device.compile_ahead, kernels_of(device, own))
        meanwhile()
        if by_device:
            begin("compiling kernels", "", 0)
    devices = [device for device in by_device if device.is_cuda]
    solves = [case for device in devices for case in by_device[device] if case.steps is not None]
    # Each compiles its kernels one after the other, those of one case mostly the same ones.
    turns = itertools.zip_longest(*(grid(case.axes) for case in solves))
    with Threads(os.cpu_count() or 1) as threads:
        for case, dims in itertools.chain.from_iterable(zip(solves, t, strict=True) for t in turns):
            if dims is not None:
                threads.submit(_solve_once, case, dims)


def _solve_once(case: Case, dims: Dims) -> None:
    """Make a step of a solve, if it is not too large."""
    devices = case.place.devices
    with contextlib.suppress(Exception), devices[0].active():  # reported when it is measured
        if sum(operand.nbytes for operand in case.problem(*dims).inputs) <= _TRIED:
            prepared(case, dims, Bench(devices))(1)


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
            for dims in case.knots.values():
                with contextlib.suppress(Exception):  # reported when the case is measured
                    problem = case.problem(*dims)
                    options = case.options(problem) if case.options is not None else None
                    inputs = (0,) * (len(problem.inputs) if options is None else 1)
                    case.row.run((recorder,), problem, Arguments(inputs, 0, options))
    return recorder.wanted
