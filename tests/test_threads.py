"""Whose threads run the loops, and how long those of BLAS spin beside them."""

import os
import subprocess
import sys

import pytest
from numba.core import config
from numba.np.ufunc import parallel

from hetero.kernels.cpu import blas_timeout, layer

needs_tbb = pytest.mark.skipif(layer.installed() is None, reason="the package tbb is not here")


@pytest.fixture
def unstarted(monkeypatch):
    """As if Numba had not started threads."""
    monkeypatch.setattr(parallel, "_threading_layer", None)
    monkeypatch.setattr(config, "THREADING_LAYER", "default")
    monkeypatch.setattr(layer, "_loaded", [])
    monkeypatch.setattr(layer, "_is_loaded", lambda: False)
    return monkeypatch


def test_it_is_said_that_tbb_is_not_installed(unstarted):
    unstarted.setattr(layer, "_PACKAGE", "no-such-package")
    unstarted.setattr(layer, "_LIBRARY", "libnosuch.so.12")
    assert layer.describe().endswith("TBB is not installed: pip install no-such-package")


def test_it_is_said_that_tbb_cannot_be_loaded(unstarted, tmp_path):
    damaged = tmp_path / "libtbb.so.12"
    damaged.write_bytes(b"no library")
    unstarted.setattr(layer, "_LIBRARY", "libnosuch.so.12")
    unstarted.setattr(layer, "installed", lambda: damaged)
    assert f"because {damaged} cannot be loaded" in layer.describe()


def test_an_old_tbb_is_not_used(unstarted):
    class Old:
        @staticmethod
        def TBB_runtime_interface_version():
            return 12050

    unstarted.setattr(layer, "_loaded", [Old])
    assert "too old: its interface is 12050" in layer.describe()


@pytest.mark.parametrize("choice", ["omp", "workqueue"])
def test_nothing_is_loaded_where_the_user_wants_another(unstarted, choice):
    unstarted.setattr(config, "THREADING_LAYER", choice)
    unstarted.setattr(layer, "installed", lambda: pytest.fail("looked for TBB"))
    assert layer.describe() == f"{choice}, as Numba's configuration says"


def test_threads_that_run_already_stay(unstarted):
    unstarted.setattr(parallel, "_threading_layer", "omp")
    unstarted.setattr(layer, "installed", lambda: "libtbb.so.12")
    unstarted.setattr(layer.ctypes, "CDLL", lambda path: pytest.fail(f"loaded {path}"))
    assert layer.describe() == "omp, because Numba's threads were started before hetero's loops"


def test_another_systems_line_says_why(unstarted):
    unstarted.setattr(layer, "_LIBRARY", "libnosuch.so.12")
    unstarted.setattr(layer, "_PACKAGE", "no-such-package")
    unstarted.setattr(layer, "_COMES_FOR", ("another", "system"))
    assert "does not come for" in layer.describe()


# -- BLAS ----------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading, time
import numpy as np
import hetero
assert "numba" not in sys.modules
from hetero.kernels.cpu import blas_timeout, layer, vectors
from numba.np.ufunc import parallel

A, x = np.ones((600, 600)), np.ones(1 << 20)

def idle():
    assert (A @ A)[0, 0] == 600.0
    begin = time.process_time()
    time.sleep(0.1)
    return time.process_time() - begin

before, hold = idle(), threading.Event()
for name in sys.argv[1:]:
    threading.Thread(target=hold.wait, name=name, daemon=True).start()
assert vectors.norm(x) == 1024.0
after = min(idle() for _ in range(5))
child = os.fork()
if child == 0:  # BLAS's threads are started anew; its loops run unthreaded
    assert vectors.norm(x) == 1024.0
    os._exit(0 if sys.argv[1:] or min(idle() for _ in range(5)) < 0.002 else 3)
assert os.waitpid(child, 0)[1] == 0
assert vectors.norm(x) == 1024.0
assert "OPENBLAS_THREAD_TIMEOUT" not in os.environ
told = layer.describe(), blas_timeout.describe()["numpy"]
print(before, after, parallel.threading_layer(), *told, sep="|")
"""


def _run(*threads):
    """A program with other threads: seconds of BLAS's idle ones after a product, before and after
    the first loop; the loops' layer; and what is told of both."""
    left_out = ("TIMEOUT", "NUMBA_THREADING")
    kept = {key: x for key, x in os.environ.items() if not any(part in key for part in left_out)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *threads],
        env={**kept, "OPENBLAS_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr
    before, after, *told = done.stdout.strip().split("|")
    return float(before), float(after), *told


def _known():
    return [x for x in blas_timeout.libraries() if blas_timeout.owner(x["filepath"]) == "numpy"]


@needs_tbb
@pytest.mark.skipif(
    sys.platform != "linux" or any(map(blas_timeout.obstacle, _known())) or not _known(),
    reason="NumPy's BLAS is not one that is known",
)
def test_loops_and_blas_in_one_program():
    before, after, running, layer_told, told = _run()
    assert running == "tbb"
    assert layer_told == "TBB"
    assert told == "2^16 cycles"
    assert after < 0.002 < 0.01 < before
    _, after, *_, told = _run("somebody")
    assert "another thread (somebody) could have been in BLAS" in told
    assert after > 0.01


def test_blas_is_left_alone_where_the_user_says_so(monkeypatch):
    monkeypatch.setenv("HETERO_BLAS_TIMEOUT", "0")
    assert blas_timeout._reason() == "as it was: HETERO_BLAS_TIMEOUT says so"


def test_the_users_own_timeout_stays(monkeypatch):
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    assert blas_timeout._reason() == "as it was: OPENBLAS_THREAD_TIMEOUT is set"


def test_our_own_threads_are_never_in_blas(monkeypatch):
    import threading

    hold = threading.Event()
    threading.Thread(target=hold.wait, name="hetero-something", daemon=True).start()
    threading.Thread(target=hold.wait, name="else", daemon=True).start()
    others = blas_timeout.others()
    hold.set()
    assert "else" in others
    assert "hetero-something" not in others


KNOWN = {
    "user_api": "blas",
    "internal_api": "openblas",
    "threading_layer": "pthreads",
    "prefix": "libscipy_openblas",
    "version": "0.3.31.188.0",
    "filepath": "/site-packages/numpy.libs/libscipy_openblas64_-1.so",
}


@pytest.mark.parametrize(
    ("different", "told"),
    [
        ({"internal_api": "mkl"}, "mkl is not OpenBLAS"),
        ({"internal_api": "blis"}, "blis is not OpenBLAS"),
        ({"threading_layer": "openmp"}, "its threads are openmp's"),
        ({"prefix": "libopenblas"}, "others than NumPy and SciPy may call it"),
        ({"version": "0.3.26"}, "OpenBLAS 0.3.26 was not tried"),
        ({"version": "0.3.35"}, "OpenBLAS 0.3.35 was not tried"),
        ({"version": "0.4.0.1"}, "OpenBLAS 0.4.0.1 was not tried"),
        ({"version": None}, "OpenBLAS None was not tried"),
    ],
)
def test_an_unknown_blas_is_left_alone(different, told, monkeypatch):
    library = {**KNOWN, **different}
    monkeypatch.setattr(blas_timeout, "libraries", lambda: [library])
    monkeypatch.setattr(blas_timeout, "_reason", lambda: None)
    monkeypatch.setattr(blas_timeout, "_told", {})
    monkeypatch.setattr(blas_timeout, "_restart", lambda path: pytest.fail(path))
    blas_timeout.shorten()
    assert blas_timeout.describe() == {"numpy": f"as it was: {told}"}


def test_a_known_blas_is_restarted_once(monkeypatch):
    started = []
    monkeypatch.setattr(blas_timeout, "libraries", lambda: [KNOWN])
    monkeypatch.setattr(blas_timeout, "_reason", lambda: None)
    monkeypatch.setattr(blas_timeout, "_told", {})
    monkeypatch.setattr(blas_timeout, "_restart", lambda path: started.append(path) or "done")
    blas_timeout.shorten()
    blas_timeout.shorten()
    assert started == [KNOWN["filepath"]]


@pytest.mark.parametrize(
    ("given", "exponent"), [("", 16), ("0", 0), ("20", 20), ("3", 0), ("31", 0), ("off", 0)]
)
def test_the_timeout_is_the_users(given, exponent, monkeypatch, caplog):
    blas_timeout._parsed.cache_clear()
    monkeypatch.setenv("HETERO_BLAS_TIMEOUT", given)
    assert blas_timeout._exponent() == exponent
    assert ("must be 0 or from 4 to 30" in caplog.text) == (given in ("3", "31", "off"))
