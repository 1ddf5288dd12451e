"""`hetero.calibrate`: measure this machine once and store what was found."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import time
from collections.abc import Callable
from typing import Any

from hetero import devices as backends
from hetero import inventory, planner, pricing, profile, registry
from hetero.calibration import compiling, convolutions, fit, probes, solves, workbench
from hetero.errors import DeviceError, DeviceNotAvailable
from hetero.problem import DEVICE_DTYPES

# Largest extent of a matrix, by kind of device.
_LARGEST_QUICK = {
    "cpu": {"matvec": 8192, "matmul": 1024},
    "opencl": {"matvec": 512, "matmul": 256},
    "cuda": {"matvec": 16384, "matmul": 8192},
}
_LARGEST_FULL = {
    "cpu": {"matvec": 8192, "matmul": 2048},
    "opencl": {"matvec": 1024, "matmul": 512},
    "cuda": {"matvec": 16384, "matmul": 4096},
}


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
        Only these, such as ``["cpu", "cuda:0"]``; the CPU is always measured. Default: all, but one
        of several equal GPUs, and no OpenCL device that is this machine's CPU.
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
        If the profile cannot be written.

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
    data = measure_machine(quick, devices, progress)
    found = profile.parse(profile.encode(data))
    found.save(path)
    profile.set_current(found)
    return found


def measure_machine(
    quick: bool, devices: list[str] | None, progress: Callable[[float, str], None] | None
) -> dict[str, Any]:
    """The content of a profile of this machine."""
    effort = probes.QUICK if quick else probes.FULL
    infos = inventory.devices()
    names = _chosen(devices, infos)
    products = effort.total + effort.device_total * (len(names) - 1)
    phases = [(_tasks(names, infos, effort, quick), products)]
    if not quick:
        phases.append(([("compiling the CPU's loops", _compiling, 1.0)], 1.0))
    phases += [(tasks, effort.filters) for tasks in _filter_tasks(names, infos, effort, quick)]
    phases += [(tasks, effort.solves) for tasks in _all_solve_tasks(names, infos, effort, quick)]
    number, total = 0, sum(len(tasks) for tasks, _ in phases)
    models: dict[str, Any] = {}
    links: dict[str, Any] = {}
    host: dict[str, Any] = {"dispatch": {}}
    for tasks, budget in phases:
        end = time.perf_counter() + budget
        left = sum(weight for _, _, weight in tasks)
        for text, task, weight in tasks:
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
            raise DeviceNotAvailable(
                f"devices must be among {', '.join(map(repr, infos))}, got {name!r}"
            )
    return [planner.CPU, *(name for name in devices if name != planner.CPU)]


Task = Callable[[dict[str, Any], dict[str, Any], dict[str, Any], float], None]


def _tasks(
    names: list[str], infos: dict[str, dict[str, Any]], effort: probes.Effort, quick: bool
) -> list[tuple[str, Task, float]]:
    """What to measure, in order, each with a text for the progress bar."""
    tasks: list[tuple[str, Task, float]] = []

    def pack(models: dict, links: dict, host: dict, share: float) -> None:
        host["pack"] = probes.pack(effort)

    tasks.append(("copies in host memory", pack, 1.0))
    for name in names:
        info = infos[name]
        device = None if name == planner.CPU else backends.get(name)
        largest = (_LARGEST_QUICK if quick else _LARGEST_FULL)[info["kind"]]
        if device is not None:

            def link(
                models: dict, links: dict, host: dict, share: float, device: Any = device
            ) -> None:
                with device.active():
                    links[device.name] = probes.links(device, effort)
                host["dispatch"][device.name] = probes.dispatch(device, effort)

            tasks.append((f"links of {name}", link, 1.0))
        bench = functools.cache(functools.partial(workbench.Bench, device))
        for operation in registry.operations():
            for implementation in registry.lookup(operation):
                if implementation.kind != info["kind"] or implementation.run is None:
                    continue
                if operation in (*solves.OPERATIONS, convolutions.OPERATION):
                    continue
                for subject in probes.subjects(implementation, name, effort, largest):
                    largest_dims = tuple(axis[-1] for axis in subject.axes)
                    if implementation.excludes(subject.problem(largest_dims), info):
                        continue
                    tasks.append(
                        (
                            f"{operation} {implementation.method} {subject.dtype} on {name}",
                            _measuring(subject, bench, device, effort, name),
                            0.1 if subject.reference else 1.0,
                        )
                    )
    return tasks


def _measuring(
    subject: probes.Subject,
    bench: Callable[[], workbench.Bench],
    device: Any,
    effort: probes.Effort,
    name: str,
) -> Task:
    def task(models: dict, links: dict, host: dict, share: float) -> None:
        with device.active() if device is not None else contextlib.nullcontext():
            measured = probes.measure_subject(subject, bench(), effort, share)
        implementation = subject.implementation
        key = [name, implementation.operation, implementation.method, subject.dtype, subject.layout]
        if subject.reference is None:
            models["|".join(key)] = fit.surface(subject.axes, *measured)
        elif (reference := models.get("|".join([*key[:-1], subject.reference]))) is not None:
            models["|".join(key)] = fit.surface_beside(reference, *measured)

    return task


def _filter_tasks(
    names: list[str], infos: dict[str, dict[str, Any]], effort: probes.Effort, quick: bool
) -> list[list[tuple[str, Task, float]]]:
    """The convolutions on each device."""
    found: list[list[tuple[str, Task, float]]] = []
    for name in names:
        info = infos[name]
        device = None if name == planner.CPU else backends.get(name)
        mine = [
            implementation
            for implementation in registry.lookup(convolutions.OPERATION)
            if implementation.kind == info["kind"]
        ]
        if quick:

            def estimating(
                models: dict,
                links: dict,
                host: dict,
                share: float,
                mine: Any = mine,
                name: str = name,
                device: Any = device,
            ) -> None:
                of_method = convolutions.estimate(device)
                for implementation in mine:
                    for dtype in DEVICE_DTYPES:
                        key = (name, implementation.operation, implementation.method, dtype, "*")
                        models["|".join(key)] = of_method(implementation.method)

            found.append([(f"convolutions on {name}", estimating, 1.0)])
            continue
        bench = functools.cache(functools.partial(convolutions.FilterBench, device))
        largest = _LARGEST_FULL[info["kind"]]["matvec"]
        found.append(
            [
                (
                    f"{subject.implementation.operation} {subject.implementation.method} "
                    f"{subject.dtype} on {name}",
                    _measuring_filter(subject, bench, device, effort, name),
                    1.0,
                )
                for implementation in mine
                for subject in convolutions.subjects(implementation, info, largest)
            ]
        )
    return found


def _measuring_filter(
    subject: convolutions.Subject,
    bench: Callable[[], convolutions.FilterBench],
    device: Any,
    effort: probes.Effort,
    name: str,
) -> Task:
    def task(models: dict, links: dict, host: dict, share: float) -> None:
        with device.active() if device is not None else contextlib.nullcontext():
            model = convolutions.measure_subject(subject, bench(), name, effort, share)
        key = (name, convolutions.OPERATION, subject.implementation.method, subject.dtype, "*")
        models["|".join(key)] = model

    return task


def _all_solve_tasks(
    names: list[str], infos: dict[str, dict[str, Any]], effort: probes.Effort, quick: bool
) -> list[list[tuple[str, Task, float]]]:
    """The solves on each device, and on each group of devices."""
    found: list[list[tuple[str, Task, float]]] = []
    for name in names:
        info = infos[name]
        used = None if name == planner.CPU else [backends.get(name)]
        mine = [
            implementation
            for operation in solves.OPERATIONS
            for implementation in registry.lookup(operation)
            if implementation.kind == info["kind"]
        ]
        if quick:
            found.append([(f"solves on {name}", _estimating(mine, name, used), 1.0)])
            continue
        found.append([])
        for implementation in mine:
            found[-1] += _solve_tasks(implementation, name, info, used, effort)
    if quick:
        return found
    for info in pricing.groups(infos).values():
        used = [backends.get(member) for member in info["members"]]
        if used[0].name not in names or info.get("is_host_cpu"):
            continue
        found.append([])
        for operation in solves.OPERATIONS:
            for implementation in registry.lookup(operation):
                if implementation.kind == info["kind"] and implementation.shared:
                    where = info["constants"]
                    found[-1] += _solve_tasks(implementation, where, info, used, effort)
    return found


def _compiling(models: dict, links: dict, host: dict, share: float) -> None:
    compiling.compile_ahead()


def _estimating(
    implementations: list[registry.Implementation], name: str, used: list[Any] | None
) -> Task:
    def task(models: dict, links: dict, host: dict, share: float) -> None:
        found = solves.estimate(used and used[0])
        for implementation in implementations:
            for dtype in DEVICE_DTYPES:
                key = (name, implementation.operation, implementation.method, dtype, "*")
                models["|".join(key)] = found

    return task


def _solve_tasks(
    implementation: registry.Implementation,
    name: str,
    info: dict[str, Any],
    used: list[Any] | None,
    effort: probes.Effort,
) -> list[tuple[str, Task, float]]:
    alone = used[0] if used is not None and len(used) == 1 else None

    def measuring(subject: solves.Subject) -> Task:
        def task(models: dict, links: dict, host: dict, share: float) -> None:
            with alone.active() if alone is not None else contextlib.nullcontext():
                model = solves.measure_subject(subject, used, effort, share)
            key = (name, operation, implementation.method, subject.dtype, subject.layout)
            models["|".join(key)] = model

        return task

    operation = implementation.operation
    return [
        (f"{operation} {implementation.method} {s.layout} {s.dtype} on {name}", measuring(s), 1.0)
        for s in solves.subjects(implementation, info)
        if used is None or len(used) == 1 or _shared(s)
    ]


def _shared(subject: solves.Subject) -> bool:
    largest = subject.problem(*(axis[-1] for axis in subject.axes))
    return subject.implementation.shared is not None and subject.implementation.shared(largest)
