"""Compiling in processes of low priority, ahead of measuring.

One after another the CPU's loops take a minute to compile, and so do a GPU's kernels. That does not
disturb what a GPU times by its own clock: first library calls, which need nothing compiled, then
hetero's kernels as soon as they are compiled. What the host times is measured when all is compiled.
Results go to caches on disk; what fails here is compiled when it is measured.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hetero import kernels, registry
from hetero.calibration.ahead import kernel_compiler
from hetero.devices.cuda import cubin, library
from hetero.devices.kinds import traits
from hetero.host import disk_cache
from hetero.host.compiled import loop_compiler, loops
from hetero.imports import in_child
from hetero.ops.cases import Case, Place

# It skips the orderly end of interpreter and CUDA context, which takes half a second.
_COMMAND = (
    "import os; from hetero.calibration.ahead import kernel_compiler; "
    "kernel_compiler.compile_asked(); os._exit(0)"
)


def begin() -> Compilation:
    """Begin with what every calibration needs, before the devices are known.

    These are all loops, and where there may be a GPU a spare process that gets its kernels later.
    """
    registry.operations()  # registers their loops
    names, may_be = loops.every(), library.is_here()
    is_new = not all(map(loops.is_ready, names))
    made = Compilation(loop_compiler.Processes(names, measuring=may_be, early=True))
    try:
        if is_new and may_be:
            made.spare = _process()
    except BaseException:  # Ctrl-C, or the system has no room for another process
        made.stop()
        raise
    return made


def compile_ahead(
    worklist: Iterable[Any],
    quick: bool,
    measuring: bool = False,
    begun: Compilation | None = None,
) -> Compilation:
    """Begin to compile what cases need.

    Parameters
    ----------
    worklist : iterable of `hetero.calibration.worklist.WorkItem`
    quick : bool
        Whether they are those of a quick calibration.
    measuring : bool, optional
        Whether something is measured meanwhile.
    begun : Compilation, optional
        The result of `begin`; it is ended if this fails.
    """
    by_place: dict[str, tuple[Place, list[Case]]] = {}
    for _, place, cases in worklist:
        by_place.setdefault(place.name, (place, []))[1].extend(cases)
    names = _loops(by_place.values())
    made = begun or Compilation(loop_compiler.Processes(names, measuring))
    try:
        if begun is not None:
            begun.ask(names)
        for place, cases in by_place.values():
            if len(place.devices) == 1 and traits(place.kind).own_clock:
                made.add(Kernels(place, cases, quick, made.taken()))
        made.end_spare()
    except BaseException:
        made.stop()
        raise
    return made


class Compilation:
    """Processes that compile loops, and kernels, while something else is done.

    Parameters
    ----------
    loops : loop_compiler.Processes
    """

    def __init__(self, loops: loop_compiler.Processes) -> None:
        self._loops = loops
        self._kernels: list[Kernels] = []
        self.spare: subprocess.Popen[str] | None = None

    def ask(self, names: Iterable[str]) -> None:
        """Compile these loops as well; all are known now."""
        self._loops.ask(names)

    def taken(self) -> subprocess.Popen[str] | None:
        """Take the spare process, if there is one."""
        spare, self.spare = self.spare, None
        return spare

    def end_spare(self) -> None:
        """End the spare process if nothing has taken it."""
        if (spare := self.taken()) is not None:
            _end(spare)

    def add(self, one: Kernels) -> None:
        """Add the process of a device's kernels."""
        self._kernels.append(one)

    def look(self) -> None:
        """Note which processes have ended, and begin others."""
        self._loops.look()

    def wait_for_own_clock(self, name: str) -> None:
        """Wait for the kernels that a device of this name times by its own clock."""
        self._loops.look()
        for one in self._kernels:
            if one.name == name:
                one.wait_for_first()

    def wait(self, report: Callable[[int], None] | None = None) -> None:
        """Wait until all have ended; ``report`` gets the number of loops left when it changes."""
        loops.load_packages()  # meanwhile: it takes a second the first time
        self._loops.wait(report)
        for one in self._kernels:
            one.wait()

    def stop(self) -> None:
        """End those that still run, and begin no others."""
        self._loops.stop()
        self.end_spare()
        for one in self._kernels:
            one.stop()


class Kernels:
    """A process that compiles the kernels of what is measured on a CUDA device.

    None is begun where the cache has the mark that all of them are compiled.

    Parameters
    ----------
    place : Place
    cases : iterable of Case
    quick : bool
    process : subprocess.Popen, optional
        One that was begun for this; it is ended where it is not needed.
    """

    def __init__(
        self,
        place: Place,
        cases: Iterable[Case],
        quick: bool,
        process: subprocess.Popen[str] | None = None,
    ) -> None:
        self.name = place.name
        self.process = process
        names = sorted({str(case) for case in cases})
        mark = _mark(place, names, quick)
        if disk_cache.read(kernel_compiler.KIND, mark) is not None:
            if process is not None:
                self.stop()
            self.process = None
            return
        self.process = process or _process()
        asked = {"place": place.name, "cases": names, "quick": quick, "mark": mark}
        with contextlib.suppress(BrokenPipeError), self.process.stdin as file:
            json.dump(asked, file)

    def wait_for_first(self) -> None:
        """Wait for the kernels that the device times by its own clock, or the process's end."""
        if self.process is not None and not self.process.stdout.closed:
            self.process.stdout.readline()
            self.process.stdout.close()

    def wait(self) -> None:
        """Wait until all is compiled."""
        if self.process is not None:
            self.wait_for_first()
            self.process.wait()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            _end(self.process)


def _process() -> subprocess.Popen[str]:
    """A process that compiles what it will be asked for."""
    return subprocess.Popen(
        in_child(_COMMAND),
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for those who wait
    )


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()  # another signal may be ignored
    process.wait()
    for file in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            file.close()


def _mark(place: Place, names: list[str], quick: bool) -> str:
    """Name of the cached file that marks the kernels of these cases as compiled."""
    card = [place.info.get(name) for name in ("name", "arch", "multiprocessors")]
    key = *card, cubin.compiler(), names, quick, _sources()
    return f"ahead-{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}"


@functools.cache
def _sources() -> str:
    """A digest of all kernels and of the modules that plan their launches."""
    digest = hashlib.sha256()
    for path in sorted(Path(kernels.__file__).parent.rglob("*")):
        if path.suffix in (".cu", ".py", ".json"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _loops(work: Iterable[tuple[Place, list[Case]]]) -> list[str]:
    """The names of the CPU's loops that cases need, and of those that any of them may use."""
    on_cpu = [case for place, cases in work if not place.devices for case in cases]
    names = loops.served() if on_cpu else []
    for case in on_cpu:
        problem, needed = case.problem, case.implementation.loops
        if problem is not None and needed is not None:
            names += needed(problem(*case.largest if case.axes else case.smallest))
    return sorted(set(names))
