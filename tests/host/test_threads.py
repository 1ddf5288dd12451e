"""Whose threads run the loops."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from numba.core import config
from numba.np.ufunc import parallel

from hetero.host import threading_layer

needs_tbb = pytest.mark.skipif(
    threading_layer.installed() is None, reason="the package tbb is not here"
)


@pytest.fixture
def unstarted(monkeypatch):
    """As if Numba had not started threads."""
    monkeypatch.setattr(parallel, "_threading_layer", None)
    monkeypatch.setattr(config, "THREADING_LAYER", "default")
    monkeypatch.setattr(threading_layer, "_loaded", [])
    monkeypatch.setattr(threading_layer, "_is_loaded", lambda: False)
    return monkeypatch


OLD = SimpleNamespace(TBB_runtime_interface_version=lambda: 12050)
NONE = {"_PACKAGE": "no-such-package", "_LIBRARY": "libnosuch.so.12"}
DAMAGED = Path(__file__)  # no library
REASONS = [
    (NONE, "TBB is not installed: pip install no-such-package"),
    ({**NONE, "_COMES_FOR": ("another", "system")}, "does not come for"),
    ({"_LIBRARY": "libnosuch.so.12", "installed": lambda: DAMAGED}, "cannot be loaded"),
    ({"_loaded": [OLD]}, "too old: its interface is 12050"),
    (
        {"_running": lambda: "omp", "installed": lambda: DAMAGED},
        "omp, because Numba's threads were started before hetero's loops",
    ),
]


@pytest.mark.parametrize(("changes", "said"), REASONS, ids=[said[:15] for _, said in REASONS])
def test_why_loops_do_not_run_on_tbb(unstarted, changes, said):
    for name, value in changes.items():
        unstarted.setattr(threading_layer, name, value)
    assert said in threading_layer.describe()


@pytest.mark.parametrize("choice", ["omp", "workqueue"])
def test_nothing_is_loaded_where_the_user_wants_another(unstarted, choice):
    unstarted.setattr(config, "THREADING_LAYER", choice)
    unstarted.setattr(threading_layer, "installed", lambda: pytest.fail("looked for TBB"))
    assert threading_layer.describe() == f"{choice}, as Numba's configuration says"


PROGRAM = """
import os
import numpy as np
from hetero.host import parts, threading_layer
from hetero.kernels.cpu import vectors
from numba.np.ufunc import parallel

x = np.ones(1 << 20)
assert vectors.norm(x) == 1024.0
child = os.fork()
if child == 0:  # its loops run unthreaded
    os._exit(0 if vectors.norm(x) == 1024.0 else 3)
assert os.waitpid(child, 0)[1] == 0
print(parallel.threading_layer(), threading_layer.describe())
"""


@needs_tbb
def test_loops_run_on_tbb():
    kept = {key: x for key, x in os.environ.items() if "NUMBA_THREADING" not in key}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "tbb TBB\n"), done.stderr
    assert "fork" not in done.stderr


# -- forks -----------------------------------------------------------------------------------------

SILENT_FORK = """
import ctypes, os
import numpy as np
from hetero.kernels.cpu import vectors

x, A = np.ones(1 << 20), np.ones((600, 600))

def loop():
    A @ A
    assert vectors.norm(x) == 1024.0

loop()
child = ctypes.PyDLL(None).fork()
if child == 0:
    loop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
loop()
"""


@pytest.mark.parametrize("threads_of", ["tbb", "omp"])
def test_a_fork_that_python_does_not_know_of(threads_of):
    """None of Python's functions for forks is called; the child has no threads."""
    done = subprocess.run(
        [sys.executable, "-c", SILENT_FORK],
        env={**os.environ, "NUMBA_THREADING_LAYER": threads_of},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# -- tasks -----------------------------------------------------------------------------------------


INTERRUPTED = """
import os, signal, threading, time
from hetero.host import threads


class Interrupt(Exception):
    pass


inside = [False]


def interrupt(*arguments):
    if inside[0]:
        raise Interrupt


signal.signal(signal.SIGALRM, interrupt)
threads.thread_count()
number, end = 0, time.monotonic() + 1.0
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0003)
while time.monotonic() < end:
    try:
        inside[0] = True
        for _ in range(50):
            threads.thread_count()
        inside[0] = False
    except Interrupt:
        inside[0] = False
        number += 1
signal.setitimer(signal.ITIMER_REAL, 0)
counted = threading.Event()


def count():
    threads.thread_count()
    counted.set()


threading.Thread(target=count, daemon=True).start()
os._exit(0 if number > 100 and counted.wait(20) else 1)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX alone has interval timers")
def test_interrupts_leave_no_lock_that_another_thread_waits_for():
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=60)
