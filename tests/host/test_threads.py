"""Whose threads run the loops, and what a fork's child does without them."""

import os

import processes
import pytest

from hetero.host import threads

PROGRAM = """
import ctypes, os
import numba, numpy as np
from hetero.host import threads
from hetero.kernels.cpu import vectors

x, A = np.ones(1 << 20), np.ones((600, 600))

def loop():
    A @ A
    assert vectors.norm(x) == 1024.0

loop()
for fork in os.fork, ctypes.PyDLL(None).fork:  # Python does not know of the second one
    child = fork()
    if child == 0:
        loop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loop()
print(numba.threading_layer(), threads.describe())
"""


@pytest.mark.skipif(not threads._has_tbb(), reason="the package tbb is not here")
@pytest.mark.parametrize("chosen", [None, "omp"])
def test_loops_run_on_tbb_unless_another_layer_is_chosen(chosen):
    unset = dict.fromkeys(key for key in os.environ if "NUMBA_THREADING" in key)
    unset["PYTHONWARNINGS"] = "ignore::DeprecationWarning"  # which says "fork" from Python 3.12 on
    done = processes.python("-c", PROGRAM, timeout=120, **unset | {"NUMBA_THREADING_LAYER": chosen})
    assert done.stdout == ("omp OpenMP\n" if chosen else "tbb TBB\n"), done.stderr
    assert "fork" not in done.stderr


FORKS = """
import faulthandler, os, signal, threading, time
import numba
from hetero.host import threads

lines = "\\n".join(f"    x = x * {k}.5 + (x if x > {k} else {k} - x)" for k in range(80))
space = {}
exec(f"def slow(x):\\n{lines}\\n    return x", space)
thread = threading.Thread(target=lambda: numba.njit(space["slow"])(1.0))
thread.start()
time.sleep(0.1)
assert thread.is_alive()
child = os.fork()
if child == 0:
    faulthandler.register(signal.SIGALRM, chain=True)  # says where it waits, and ends
    signal.alarm(20)
    numba.njit(lambda x: x + 1)(1)
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_while_another_thread_compiles():
    assert processes.python("-c", FORKS).stdout.split() == ["0"]
