"""Compiling the CPU's loops before they are measured, several at a time.

One after another they take half a minute. Each process leaves what it compiled in Numba's cache on
disk; whatever fails here is compiled when it is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys

from hetero.calibration.solves import FAMILIES
from hetero.problem import DEVICE_DTYPES

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
