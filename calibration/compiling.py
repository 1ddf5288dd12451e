"""Compiling what will be measured before that, several at a time.

One after another the CPU's loops take half a minute, and so do a GPU's kernels. What is compiled is
left in caches on disk; whatever fails here is compiled when it is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any

from hetero.calibration import sampling
from hetero.calibration.rehearsal import Rehearsal
from hetero.devices import cubin, loop_compiler, loops
from hetero.devices.base import Device
from hetero.devices.storage import Storage
from hetero.errors import HeteroError
from hetero.runtime.cases import Case, Passes, Place, SampleGrid, grid
from hetero.runtime.registry import Arguments


def compile_ahead(
    portions: Iterable[Any],
    quick: bool,
    told: Callable[[int], None] | None = None,
    beside: bool = False,
) -> loop_compiler.Processes | None:
    """Compile what cases with `Case.ahead` need, before anything is measured.

    Parameters
    ----------
    portions : iterable of `hetero.calibration.portions.Portion`
    quick : bool
        Whether they are those of a quick calibration.
    told : callable, optional
        Called with the number of the CPU's loops that are not compiled yet.
    beside : bool, optional
        Whether these are not waited for, and everything else comes first.

    Returns
    -------
    Processes or None
        That compile them yet.
    """
    found: dict[str, tuple[Place, list[Case]]] = {}
    for _, place, cases in portions:
        found.setdefault(place.name, (place, []))[1].extend(cases)
    loops_needed = loop_compiler.Processes(_loops(found.values()), beside)
    rehearsals = []
    try:
        for place, cases in found.values():
            if len(place.devices) == 1 and place.kind == "cuda":
                rehearsals.append(Rehearsal(place, cases, quick))
                _kernels(place.devices[0], [case for case in cases if case.ahead])
        if not beside:
            loops_needed.wait(told)
    except BaseException:
        loops_needed.stop()
        raise
    finally:
        for rehearsal in rehearsals:
            rehearsal.wait()
    return loops_needed if beside else None


def _loops(found: Iterable[tuple[Place, list[Case]]]) -> list[str]:
    """The names of the CPU's loops that cases need, and of those that any of them may use."""
    on_cpu = [case for place, cases in found if not place.devices for case in cases]
    names = loops.served() if on_cpu else []
    for case in on_cpu:
        problem, needed = case.problem, case.implementation.loops
        if problem is not None and needed is not None:
            names += needed(problem(*case.largest if case.axes else case.smallest))
    return sorted(set(names))


class _Listing:
    """Stands in for a device: notes the kernels that it is asked for, and does nothing else."""

    run_launches = Device.run_launches
    capturing = True  # what is made for filters is not to be kept

    def __init__(self, device: Device) -> None:
        self._device = device
        self.wanted: dict[tuple[str, cubin.Defines], None] = {}
        self._storage = Storage()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def build(self, text: str, kernel: str, defines: cubin.Defines) -> None:
        self.wanted[text, defines] = None

    def storage(self) -> Storage:
        return self._storage

    def allocate(self, nbytes: int) -> tuple[int, None]:
        return 0, None

    def upload(self, *arguments: Any) -> None: ...

    def fill(self, *arguments: Any) -> None: ...

    def launch(self, *arguments: Any) -> None: ...

    def compile_ahead(self, *arguments: Any) -> None: ...


def _kernels(device: Device, cases: list[Case]) -> None:
    """Leave the kernels of cases in the cache on disk, compiled on all cores."""
    listing = _Listing(device)
    for case in cases:
        for dims in _sizes(case):
            with contextlib.suppress(ValueError, HeteroError):
                problem = case.problem(*dims)
                options = case.options(problem) if case.options is not None else None
                inputs = (0,) * len(problem.inputs[: case.inputs])
                case.implementation.run((listing,), problem, Arguments(inputs, 0, options))

    compile_kernels(device, listing.wanted)


def compile_kernels(device: Device, wanted: Iterable[tuple[str, cubin.Defines]]) -> None:
    """Leave kernels, given by source and macros, in the cache on disk, compiled on all cores."""
    # Not above: whatever imports this for the first time when the interpreter ends could not.
    from concurrent.futures import ThreadPoolExecutor

    def compiled(one: tuple[str, cubin.Defines]) -> None:
        with contextlib.suppress(HeteroError):  # who measures it will say so
            device.compiled(*one)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, dict.fromkeys(wanted)))


def _sizes(case: Case) -> list[tuple[int, ...]]:
    """All that will be measured of a case."""
    if isinstance(case.how, Passes):
        return [*case.how.knots.values(), *case.how.held_out.values()]
    if isinstance(case.how, SampleGrid):
        between = itertools.islice(sampling.between_knots(case), case.how.held_out)
        return [*grid(case.axes), *between]
    return []
