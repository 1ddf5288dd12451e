"""Compiling what will be measured before that, several at a time.

One after another the CPU's loops take half a minute, and so do a GPU's kernels. What is compiled is
left in caches on disk; whatever fails here is compiled when it is measured.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from hetero.calibration.solves import FAMILIES
from hetero.devices import cubin
from hetero.devices.base import Device
from hetero.devices.storage import Storage
from hetero.errors import HeteroError
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Arguments, Implementation

_SOLVES = "from hetero.calibration import solves; solves.compile_family({!r}, {!r})"
_FILTERS = "from hetero.calibration import convolutions; convolutions.compile_for({!r})"


def compile_ahead() -> None:
    """Compile what a full calibration measures on the CPU."""
    waiting = [_SOLVES.format(family, dtype) for family in FAMILIES for dtype in DEVICE_DTYPES]
    waiting += [_FILTERS.format(dtype) for dtype in DEVICE_DTYPES]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            command = [sys.executable, "-c", waiting.pop(0)]
            running.append(subprocess.Popen(command, env=environment, **quiet))
        running[0].wait()
        running = [process for process in running if process.poll() is None]


class _Listing:
    """Stands in for a device: notes the kernels that it is asked for, and does nothing else."""

    run_steps = Device.run_steps
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


def compile_kernels(
    device: Device, works: Iterable[tuple[Implementation, Problem, Arguments]]
) -> None:
    """Leave the kernels of own implementations in the cache on disk, compiled on all cores.

    Parameters
    ----------
    device : Device
        Of kind "cuda".
    works : iterable of (Implementation, Problem, Arguments)
    """
    listing = _Listing(device)
    for implementation, problem, arguments in works:
        assert implementation.run is not None
        with contextlib.suppress(ValueError, HeteroError):
            implementation.run((listing,), problem, arguments)

    # Not above: whatever imports this for the first time when the interpreter ends could not.
    from concurrent.futures import ThreadPoolExecutor

    def compiled(wanted: tuple[str, cubin.Defines]) -> None:
        with contextlib.suppress(HeteroError):  # who measures it will say so
            device.compiled(*wanted)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, listing.wanted))
