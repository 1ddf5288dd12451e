"""What a calibration measures, in order: tasks that fill in a profile's models and links."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from hetero import devices as backends
from hetero.calibration import compiling, convolutions, fit, overheads, probes, solves, workbench
from hetero.calibration.efforts import Effort
from hetero.runtime import planner, pricing, registry
from hetero.runtime.problem import DEVICE_DTYPES, Problem

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

_OWN_KERNELS = ("tiled", "direct", "separable")  # methods

Task = Callable[[dict[str, Any], dict[str, Any], dict[str, Any], float], None]


def products(
    names: list[str], infos: dict[str, dict[str, Any]], effort: Effort, quick: bool
) -> list[tuple[str, Task, float]]:
    """What to measure, in order, each with a text for the progress bar."""
    tasks: list[tuple[str, Task, float]] = []

    def pack(models: dict, links: dict, host: dict, share: float) -> None:
        host["pack"] = overheads.pack(effort)

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
                    links[device.name] = overheads.links(device, effort)
                host["dispatch"][device.name] = overheads.dispatch(device, effort)

            tasks.append((f"links of {name}", link, 1.0))
        shares: dict[tuple[str, str], float] = {}
        if info["kind"] == "cuda":
            tasks.append((f"calls on {name}", _measuring_shares(device, info, shares), 0.1))
        bench = functools.cache(functools.partial(workbench.Bench, device))
        for operation in [o.name for o in registry.operations()]:
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
                            _measuring(subject, bench, device, effort, name, info, shares),
                            0.1 if subject.reference else 1.0,
                        )
                    )
    return tasks


def _measuring_shares(
    device: Any, info: dict[str, Any], shares: dict[tuple[str, str], float]
) -> Task:
    """A task after the links of a device: what the host adds to its products."""

    def task(models: dict, links: dict, host: dict, share: float) -> None:
        if (dispatch := host["dispatch"].get(device.name)) is not None:
            shares.update(overheads.host_shares(device, info, dispatch["device"]))

    return task


def _measuring(
    subject: probes.Subject,
    bench: Callable[[], workbench.Bench],
    device: Any,
    effort: Effort,
    name: str,
    info: dict[str, Any],
    shares: dict[tuple[str, str], float],
) -> Task:
    def task(models: dict, links: dict, host: dict, share: float) -> None:
        implementation = subject.implementation
        host_share = shares.get((implementation.operation, implementation.method))
        with device.active() if device is not None else contextlib.nullcontext():
            *measured, host_share = probes.measure_subject(
                subject, bench(), effort, share, host_share
            )
        key = [name, implementation.operation, implementation.method, subject.dtype, subject.layout]

        def estimate(dims: tuple[int, ...]) -> float:
            return implementation.work(subject.problem(dims), info).estimate

        if subject.by_waves:
            model = fit.waves(subject.axes, *measured, host_share, estimate)
            models["|".join(key)] = model
        elif subject.reference is None:
            models["|".join(key)] = fit.surface(subject.axes, *measured)
        elif (reference := models.get("|".join([*key[:-1], subject.reference]))) is not None:
            models["|".join(key)] = fit.surface_beside(reference, *measured)

    return task


def filters(
    names: list[str], infos: dict[str, dict[str, Any]], effort: Effort, quick: bool
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
            and any(convolutions.subjects(implementation, info, 256))
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
        measured: dict[str, convolutions.Measurement] = {}
        once = [
            (
                f"{subject.implementation.operation} {subject.implementation.method} "
                f"{subject.dtype} on {name}",
                _measuring_filter(subject, bench, device, effort, name, measured),
                convolutions.weight(subject),
            )
            for implementation in mine
            for subject in convolutions.subjects(implementation, info, largest)
        ]
        found.append(once * convolutions.rounds(name))
    return found


def _measuring_filter(
    subject: convolutions.Subject,
    bench: Callable[[], convolutions.FilterBench],
    device: Any,
    effort: Effort,
    name: str,
    measured: dict[str, convolutions.Measurement],
) -> Task:
    """A task to be done as often as there are rounds; what they know is in the models each time.

    How much slower than the fastest call a typical one is, is one figure for a whole device: of
    each method alone it would be too uncertain to choose by.
    """
    method, dtype = subject.implementation.method, subject.dtype
    key = "|".join((name, convolutions.OPERATION, method, dtype, "*"))

    def task(models: dict, links: dict, host: dict, share: float) -> None:
        with device.active() if device is not None else contextlib.nullcontext():
            if key not in measured:
                measured[key] = convolutions.Measurement(subject, bench(), name, effort)
            measured[key].round(share)
        done = {other: m for other, m in measured.items() if m.slower()}
        slower = median([ratio for m in done.values() for ratio in m.slower()])
        models.update({other: m.model(slower) for other, m in done.items()})

    return task


def all_solves(
    names: list[str], infos: dict[str, dict[str, Any]], effort: Effort, quick: bool
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
            and any(convolutions.subjects(implementation, info, 256))
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


def compilations(
    names: list[str], infos: dict[str, dict[str, Any]], effort: Effort, quick: bool
) -> list[tuple[str, Task, float]]:
    """A task for each CUDA device: compile the kernels of its products and convolutions."""
    largest = (_LARGEST_QUICK if quick else _LARGEST_FULL)["cuda"]

    def works(name: str) -> Iterator[tuple[registry.Implementation, Problem, registry.Arguments]]:
        for operation in [o.name for o in registry.operations()]:
            for implementation in registry.lookup(operation):
                if implementation.kind != "cuda" or implementation.method not in _OWN_KERNELS:
                    continue
                if operation == convolutions.OPERATION:
                    if not quick:
                        most = largest["matvec"]
                        yield from convolutions.works(implementation, infos[name], name, most)
                elif operation not in solves.OPERATIONS:
                    yield from probes.works(implementation, name, effort, largest)

    def task(name: str) -> Task:
        def compiling_them(models: dict, links: dict, host: dict, share: float) -> None:
            compiling.compile_kernels(backends.get(name), works(name))

        return compiling_them

    return [
        (f"compiling kernels for {name}", task(name), 1.0)
        for name in names
        if infos[name]["kind"] == "cuda"
    ]


def compile_all(models: dict, links: dict, host: dict, share: float) -> None:
    """A task that measures nothing: compile the loops of the CPU before they are timed."""
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
    effort: Effort,
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
