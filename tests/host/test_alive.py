"""Forks, signals, interrupts and what a sandbox denies: nothing hangs and nothing is half done.

What could hang runs in processes of its own, which are ended after a time.
"""

from __future__ import annotations

import re
from pathlib import Path

import processes
import pytest

import hetero
from hetero import calibration, kernels, locks


def test_locks_are_made_in_one_place():
    """One made elsewhere, also inside an object, would stay taken in a forked child."""
    # In Python 3.11 a cached property takes a lock of its class.
    made = re.compile(r"\b(R?Lock|Condition|Semaphore|cached_property)\b")
    for package in (hetero, kernels, calibration):
        for file in Path(package.__file__).parent.rglob("*.py"):
            if file != Path(locks.__file__):
                found = made.search(file.read_text(encoding="utf-8"))
                assert not found, f"{file} has a {found[0]}: take hetero.locks.new()"


INTERRUPTED = """
import signal, sys, numpy as np, hetero
sent, raised = [], []

def interrupt(event, arguments):
    if event == "import" and arguments[0] == "numba.core.types" and not sent:
        sent.append(event)
        signal.raise_signal(signal.SIGINT)

sys.addaudithook(interrupt)
for _ in range(3):
    try:
        result = hetero.convolve2d(np.ones((300, 300)), np.ones((9, 9)), method="direct")
    except KeyboardInterrupt:
        raised.append("here")
assert sent and len(raised) == 1, raised
assert result[8, 8] == 81.0
"""


def test_an_interrupt_in_the_imports_of_a_first_call():
    """It is raised once, and what was being imported can be used afterwards."""
    processes.python("-c", INTERRUPTED)


DENIED = """
import ctypes, os, sys, unittest.mock, numpy as np, scipy.signal, hetero
if sys.argv[1] == "cores":
    os.sched_getaffinity = unittest.mock.Mock(side_effect=PermissionError)
elif ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE
    sys.exit(print("no such call"))
image, b = np.random.default_rng(0).random((300, 300)), np.ones(900)
for taps in (image[:5, :5], image[:40, :40]):
    assert np.allclose(hetero.convolve2d(image, taps), scipy.signal.convolve2d(image, taps))
infinite, taps, A = image.copy(), image[:5, :4], hetero.Poisson((30, 30))
infinite[3, 4] = np.inf
expected = scipy.signal.convolve2d(infinite, taps)
assert np.allclose(hetero.convolve2d(infinite, taps), expected, equal_nan=True)
for matrix, M in ((A, None), (A.tocsr(), None), (A, "multigrid")):
    iterates = []
    x, info = hetero.solve_cg(matrix, b, rtol=1e-8, M=M, callback=iterates.append)
    assert info == 0 and np.linalg.norm(A.tocsr() @ x - b) <= 1e-8 * np.linalg.norm(b)
assert len(iterates) == 1, "the inverse itself stands in for a cycle"
u, info = hetero.solve_poisson(image, return_info=True)
assert info["method"] == "dst" and info["converged"]
assert np.allclose(hetero.Poisson(image.shape) @ u.ravel(), image.ravel())
assert hetero.kmeans(image, 3, random_state=0)[2]["method"] == "products"
print(hetero.plan("solve_poisson", image), hetero.machine().brief(), sep="\\n")
"""


@pytest.mark.parametrize("what", ["code", "cores"])
def test_what_a_sandbox_denies_is_done_by_numpy_and_scipy(what):
    printed = processes.python("-c", DENIED, what).stdout
    if printed == "no such call\n":
        pytest.skip("Linux before 6.3")
    why = {"code": "make memory executable", "cores": "sched_getaffinity"}[what]
    lines = [line.split() for line in printed.splitlines() if why in line]
    assert [line[0] for line in lines if "on" in line] == ["multigrid", "jacobi"]
    assert [line[:3] for line in lines if "compiled" in line] == [["compiled", "loops:", "none,"]]
