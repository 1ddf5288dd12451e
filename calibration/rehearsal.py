"""What is to be measured on a CUDA device runs once before, so that its kernels are in the cache.

Which kernels a solve needs, or a convolution by transforms, depends on its sizes and on how it
goes, so that only running it tells. One after another they take twenty seconds to compile: here
each family has a process of its own, beside those that compile the CPU's loops. Whatever fails here
is compiled when it is measured.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from hetero import devices, disk_cache, kernels
from hetero.calibration import budgets, solving
from hetero.calibration.portions import all_cases
from hetero.calibration.workbench import Bench
from hetero.devices import cubin
from hetero.errors import HeteroError
from hetero.runtime import inventory, registry
from hetero.runtime.cases import Case, Passes, Place, SampleGrid, TimedSolves, grid

_ONE = "from hetero.calibration import rehearsal; rehearsal.run({!r}, {!r}, {!r})"
_KIND = "cubin"  # of things in the cache


class Rehearsal:
    """Processes that run what `calibration.compiling` cannot list the kernels of.

    Parameters
    ----------
    place : Place
        A CUDA device.
    cases : list of Case
    quick : bool
        Whether the cases are those of a quick calibration.
    """

    def __init__(self, place: Place, cases: list[Case], quick: bool) -> None:
        names = {family(case) for case in cases if not isinstance(case.how, SampleGrid)}
        names -= {family(case) for case in cases if case.ahead and isinstance(case.how, Passes)}
        found = [name for name in sorted(names) if not _is_done(place, name, quick)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._running = [
            subprocess.Popen(
                [sys.executable, "-c", _ONE.format(place.name, name, quick)],
                env=environment,
                **quiet,
            )
            for name in found
        ]

    def wait(self) -> None:
        """Until all have ended."""
        for process in self._running:
            process.wait()


def family(case: Case) -> str:
    """Cases whose kernels one process compiles: of all dtypes, as they share much."""
    row = case.implementation
    return f"{row.operation} {row.method} {case.layout}"


def run(name: str, wanted: str, quick: bool) -> None:
    """Do each problem of a family once, on the device of that name."""
    device = devices.get(name)
    place = Place(name, inventory.devices()[name], (device,))
    budget = budgets.QUICK if quick else budgets.FULL
    operations = [o for o in registry.operations() if o.name == wanted.split()[0]]
    with device.active():
        bench = Bench(place.devices)
        for _, _, cases in all_cases(operations, [place], budget, []):
            for case in cases:
                if family(case) == wanted:
                    with contextlib.suppress(HeteroError):  # who measures it will say so
                        _do(case, bench)
    disk_cache.write(_KIND, _mark(place, wanted, quick), b"")


def _do(case: Case, bench: Bench) -> None:
    if isinstance(case.how, TimedSolves):
        for dims in grid(case.axes):
            solve = solving.prepared(case, dims, bench)
            for count in solving.counts(case, dims[0]):
                solve(count)  # once: others rehearse on the same device, and wait for each other
    else:
        for dims in (*case.how.knots.values(), *case.how.held_out.values()):
            bench.waiting(case, case.problem(*dims))()


def _is_done(place: Place, wanted: str, quick: bool) -> bool:
    """Whether a family's kernels are in the cache: all, unless some were taken out of it."""
    return disk_cache.read(_KIND, _mark(place, wanted, quick)) is not None


def _mark(place: Place, wanted: str, quick: bool) -> str:
    """The file in the cache that says that kernels of these sources are compiled."""
    key = wanted, quick, place.info["name"], place.info.get("arch"), cubin.compiler()
    return f"ahead-{hashlib.sha256(repr((key, _sources())).encode()).hexdigest()[:40]}"


@functools.cache
def _sources() -> str:
    """A digest of all kernels and of what plans their launches."""
    found = hashlib.sha256()
    for path in sorted(Path(kernels.__file__).parent.rglob("*")):
        if path.suffix in (".cu", ".py", ".json"):
            found.update(path.read_bytes())
    return found.hexdigest()
