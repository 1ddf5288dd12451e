"""Compiling what will be measured before that, several at a time.

One after another the CPU's loops take half a minute, and so do a GPU's kernels. What is compiled is
left in caches on disk; whatever fails here is compiled when it is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from hetero import disk_cache
from hetero.calibration import budgets, sampling
from hetero.calibration.workbench import Bench
from hetero.devices import cubin
from hetero.devices.base import Device
from hetero.devices.storage import Storage
from hetero.errors import HeteroError
from hetero.runtime import inventory, registry
from hetero.runtime.cases import Case, Passes, Place, SampleGrid, TimedSolves, grid
from hetero.runtime.registry import Arguments

_SHARED = 1 << 16  # elements that are worth several threads
_ONE = "from hetero.calibration import compiling; compiling.compile_here({!r})"


def compile_ahead(portions: Iterable[Any]) -> None:
    """Compile what cases with `Case.ahead` need, before anything is measured.

    Parameters
    ----------
    portions : iterable of `hetero.calibration.loop.Portion`
    """
    found: dict[str, tuple[Place, list[Case]]] = {}
    for _, place, cases in portions:
        ahead = [case for case in cases if case.ahead]
        found.setdefault(place.name, (place, []))[1].extend(ahead)
    names = {case.ahead for place, cases in found.values() if not place.devices for case in cases}
    running = _Loops([name for name in sorted(names) if not _is_done(name)])
    try:
        for place, cases in found.values():
            if len(place.devices) == 1 and place.kind == "cuda":
                _kernels(place.devices[0], cases)
    finally:
        running.wait()


class _Loops:
    """Processes that compile the CPU's loops, one for each name.

    Parameters
    ----------
    names : list of str
        The first ones are begun at once, as many as there are cores.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._running: list[subprocess.Popen[bytes]] = []
        self._begin()

    def _begin(self) -> None:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        while self._names and len(self._running) < (os.cpu_count() or 1):
            command = [sys.executable, "-c", _ONE.format(self._names.pop(0))]
            self._running.append(subprocess.Popen(command, env=environment, **quiet))

    def wait(self) -> None:
        """Until all have ended."""
        while self._running:
            self._running[0].wait()
            self._running = [process for process in self._running if process.poll() is None]
            self._begin()


def _is_done(name: str) -> bool:
    """Whether the loops of that name are in the cache: all, unless some were taken out of it."""
    from hetero.kernels.cpu import numba_cache  # which loads Numba

    return disk_cache.read(numba_cache.KIND, _mark(name), numba_cache.root()) is not None


def _mark(name: str) -> str:
    """The file in the cache that says that loops of these sources are compiled for this CPU."""
    from hetero.kernels.cpu import numba_cache

    here = inventory.devices()["cpu"]
    digest = hashlib.sha256(repr((name, numba_cache.VERSIONS, here)).encode())
    for source in sorted(Path(numba_cache.__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return f"ahead-{digest.hexdigest()[:40]}"


def compile_here(name: str) -> None:
    """Compile what the CPU's cases of that name need, by running each on two problems.

    Small ones and larger ones run other loops.
    """
    from hetero.kernels.cpu import numba_cache

    place = Place("cpu", inventory.devices()["cpu"])
    bench = Bench()
    for operation in registry.operations():
        with contextlib.suppress(Exception):  # who measures it will say so
            for case in import_module(operation.cases).cases(place, budgets.FULL):
                if case.ahead != name:
                    continue
                for dims in _small_and_larger(case):
                    if isinstance(case.how, TimedSolves):
                        sampling.solves(case, dims, (1,), bench, budgets.QUICK)
                    else:
                        bench.waiting(case, case.problem(*dims))()
    disk_cache.write(numba_cache.KIND, _mark(name), b"", numba_cache.root())


def _small_and_larger(case: Case) -> list[tuple[int, ...]]:
    """The smallest problem of a case, and one that all threads share."""
    if case.axes is None:
        knots = sorted(case.how.knots.values())
        return [case.smallest, next((dims for dims in knots if dims[0] ** 2 >= _SHARED), knots[-1])]
    size = next((n for n in case.axes[0] if n >= _SHARED), case.axes[0][-1])
    return [case.smallest, (size, *(axis[0] for axis in case.axes[1:]))]


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

    # Not above: whatever imports this for the first time when the interpreter ends could not.
    from concurrent.futures import ThreadPoolExecutor

    def compiled(wanted: tuple[str, cubin.Defines]) -> None:
        with contextlib.suppress(HeteroError):  # who measures it will say so
            device.compiled(*wanted)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, listing.wanted))


def _sizes(case: Case) -> list[tuple[int, ...]]:
    """All that will be measured of a case."""
    if isinstance(case.how, Passes):
        return [*case.how.knots.values(), *case.how.held_out.values()]
    return grid(case.axes) if isinstance(case.how, SampleGrid) else []
