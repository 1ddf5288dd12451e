"""Whose threads run the loops."""

import os
import subprocess
import sys

import pytest
from numba.core import config
from numba.np.ufunc import parallel

from hetero.kernels.cpu import layer

needs_tbb = pytest.mark.skipif(layer.installed() is None, reason="the package tbb is not here")

LAYERS = """
import os, sys
import numpy as np
first = sys.argv[1]
if first == "numba":
    import numba
    numba.get_num_threads()
import hetero
assert "numba" not in sys.modules or first == "numba"
from hetero.kernels.cpu import layer, vectors
from numba.np.ufunc import parallel
x = np.ones(1 << 20)
assert vectors.norm(x) == 1024.0
print(parallel.threading_layer(), layer.describe())
child = os.fork()
if child == 0:
    os._exit(0 if vectors.norm(x) == 1024.0 else 3)
assert os.waitpid(child, 0)[1] == 0
assert vectors.norm(x) == 1024.0
"""


def _layer(first="hetero", **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_THR")}
    done = subprocess.run(
        [sys.executable, "-c", LAYERS, first],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr
    running, _, told = done.stdout.strip().partition(" ")
    return running, told


@needs_tbb
def test_loops_run_on_tbb_also_after_a_fork():
    assert _layer() == ("tbb", "TBB")


@needs_tbb
def test_the_users_layer_stays():
    assert _layer(NUMBA_THREADING_LAYER="omp") == ("omp", "omp, as Numba's configuration says")


@needs_tbb
def test_threads_that_run_already_stay():
    running, told = _layer("numba")
    # Numba finds no TBB where pip put it, unless the system's loader looks there.
    assert running == "tbb" or "before" in told


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


def test_another_systems_line_says_why(unstarted):
    unstarted.setattr(layer, "_LIBRARY", "libnosuch.so.12")
    unstarted.setattr(layer, "_PACKAGE", "no-such-package")
    unstarted.setattr(layer, "_COMES_FOR", ("another", "system"))
    assert "does not come for" in layer.describe()
