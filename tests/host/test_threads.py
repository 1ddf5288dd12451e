"""Whose threads run the loops."""

import os
from pathlib import Path
from types import SimpleNamespace

import processes
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
    unset = dict.fromkeys(key for key in os.environ if "NUMBA_THREADING" in key)
    done = processes.python("-c", PROGRAM, **unset)
    assert done.stdout == "tbb TBB\n", done.stderr
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
    processes.python("-c", SILENT_FORK, timeout=120, NUMBA_THREADING_LAYER=threads_of)
