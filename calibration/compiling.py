"""Compiling what will be measured before that, several at a time.

One after another the CPU's loops take a minute, and so do a GPU's kernels. What a GPU times by its
own clock comes first, and its kernels before that; all others, and the loops, are compiled beside
it by processes of lowest priority. What is compiled is left in caches on disk; whatever fails here
is compiled when it is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

from hetero.calibration import sampling
from hetero.calibration.rehearsal import Rehearsal
from hetero.devices import cubin, loop_compiler, loops
from hetero.devices.base import Device, kernel_text
from hetero.devices.storage import Storage
from hetero.errors import HeteroError
from hetero.runtime.cases import Case, Passes, Place, SampleGrid, grid
from hetero.runtime.registry import Arguments

_KERNELS = "from hetero.calibration import compiling; compiling.compile_listed()"


def compile_ahead(
    portions: Iterable[Any],
    quick: bool,
    told: Callable[[int], None] | None = None,
    beside: bool = False,
) -> Beside | None:
    """Compile what cases with `Case.ahead` need, before anything is measured.

    Parameters
    ----------
    portions : iterable of `hetero.calibration.portions.Portion`
    quick : bool
        Whether they are those of a quick calibration.
    told : callable, optional
        Called with the number of the CPU's loops that are not compiled yet.
    beside : bool, optional
        Whether loops, and kernels of what the host times, are not waited for.

    Returns
    -------
    Beside or None
        What compiles them yet.
    """
    found: dict[str, tuple[Place, list[Case]]] = {}
    for _, place, cases in portions:
        found.setdefault(place.name, (place, []))[1].extend(cases)
    left = Beside(loop_compiler.Processes(_loops(found.values()), beside))
    rehearsals = []
    try:
        for place, cases in found.values():
            if len(place.devices) == 1 and place.kind == "cuda":
                device, ahead = place.devices[0], [case for case in cases if case.ahead]
                rehearsals.append(Rehearsal(place, cases, quick))
                first = [c for c in ahead if not beside or isinstance(c.how, SampleGrid)]
                wanted = kernels_of(device, first)
                others = [one for one in kernels_of(device, ahead) if one not in wanted]
                left.add_kernels(device, others)
                compile_kernels(device, wanted, meanwhile=loops.load_packages)
        if not beside:
            left.wait(told)
    except BaseException:
        left.stop()
        raise
    finally:
        for rehearsal in rehearsals:
            rehearsal.wait()
    return left if beside else None


class Beside:
    """Processes that compile loops, and kernels, while something else is done.

    Parameters
    ----------
    loops : loop_compiler.Processes
    """

    def __init__(self, loops: loop_compiler.Processes) -> None:
        self._loops = loops
        self._kernels: list[subprocess.Popen[bytes]] = []

    def add_kernels(self, device: Device, wanted: Iterable[tuple[str, cubin.Defines]]) -> None:
        """Begin to compile kernels for a device."""
        asked = [(text, device.dialect, device.arch, defines) for text, defines in wanted]
        if not asked:
            return
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _KERNELS],
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for those who wait
        )
        self._kernels.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as file:
            file.write(json.dumps(asked).encode())

    def look(self) -> None:
        """Take note of those that have ended, and begin others."""
        self._loops.look()

    def wait(self, told: Callable[[int], None] | None = None) -> None:
        """Until all have ended; ``told`` gets the number of loops whenever it changes."""
        self._loops.wait(told)
        for process in self._kernels:
            process.wait()

    def stop(self) -> None:
        """End those that run yet, and begin no others."""
        self._loops.stop()
        for process in self._kernels:
            process.terminate()
            process.wait()


def compile_listed() -> None:
    """Compile the kernels that standard input names, in a process that is there for that."""
    if hasattr(os, "nice"):
        os.nice(19)
    cubin.make_ahead(
        (kernel_text(text, dialect), arch, tuple((name, value) for name, value in defines))
        for text, dialect, arch, defines in json.load(sys.stdin)
    )


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


def kernels_of(device: Device, cases: list[Case]) -> list[tuple[str, cubin.Defines]]:
    """The kernels that cases launch, by source and macros."""
    listing = _Listing(device)
    for case in cases:
        for dims in _sizes(case):
            with contextlib.suppress(ValueError, HeteroError):
                problem = case.problem(*dims)
                options = case.options(problem) if case.options is not None else None
                inputs = (0,) * len(problem.inputs[: case.inputs])
                case.implementation.run((listing,), problem, Arguments(inputs, 0, options))
    return list(listing.wanted)


def compile_kernels(
    device: Device,
    wanted: Iterable[tuple[str, cubin.Defines]],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Leave kernels, given by source and macros, in the cache on disk, compiled on all cores."""
    # Not above: whatever imports this for the first time when the interpreter ends could not.
    from concurrent.futures import ThreadPoolExecutor

    def compiled(one: tuple[str, cubin.Defines]) -> None:
        with contextlib.suppress(HeteroError):  # who measures it will say so
            device.compiled(*one)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(compiled, dict.fromkeys(wanted))
        meanwhile()
        list(done)


def _sizes(case: Case) -> list[tuple[int, ...]]:
    """All that will be measured of a case."""
    if isinstance(case.how, Passes):
        return [*case.how.knots.values(), *case.how.held_out.values()]
    if isinstance(case.how, SampleGrid):
        between = itertools.islice(sampling.between_knots(case), case.how.held_out)
        return [*grid(case.axes), *between]
    return []
