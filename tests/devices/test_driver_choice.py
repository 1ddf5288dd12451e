"""Which package calls the CUDA driver, and what is said where none can."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from fakes import raising

from hetero.devices import cuda

BINDINGS = "cuda.bindings.driver"


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """The choice is made in each test."""
    monkeypatch.delenv("HETERO_DRIVER", raising=False)
    cuda.chosen.cache_clear()
    yield
    cuda.chosen.cache_clear()


@pytest.fixture
def here(monkeypatch):
    """Modules that stand for packages, or an exception that their import raises."""
    packages = {}

    def load(name):
        if name.startswith("hetero."):
            return importlib.import_module(name)
        found = packages.get(name, ModuleNotFoundError(f"No module {name}", name=name))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cuda.driver, "libcuda", lambda: None)
    monkeypatch.setattr(cuda, "load", load)
    monkeypatch.setattr(cuda, "version", lambda package: "1.2")
    packages["pycuda"] = packages["pycuda.driver"] = ModuleType("pycuda.driver")
    packages[BINDINGS] = ModuleType(BINDINGS)
    return packages


def is_absent(packages, name="pycuda"):
    packages["pycuda.driver"] = ModuleNotFoundError(f"No module {name}", name=name)


def test_pycuda_is_taken_where_it_is_installed_and_one_can_be_forced(here, monkeypatch):
    assert cuda.chosen() == (here["pycuda.driver"], "PyCUDA 1.2", None)
    cuda.chosen.cache_clear()
    monkeypatch.setenv("HETERO_DRIVER", "bindings")
    assert cuda.chosen().name == "cuda-bindings 1.2"
    cuda.chosen.cache_clear()
    monkeypatch.setenv("HETERO_DRIVER", "pycuda")
    assert cuda.chosen().name == "PyCUDA 1.2"
    cuda.chosen.cache_clear()
    is_absent(here)
    assert cuda.find()[0] == []


@pytest.mark.parametrize("name", ["libcurand", "pytools"])
def test_a_broken_pycuda_is_told(here, monkeypatch, name):
    """Its library is not there, or a module that it needs."""
    is_absent(here, name)
    Device = raising(RuntimeError("fell over"))
    Device.count = lambda: 1
    monkeypatch.setattr(cuda.driver, "init", lambda: None)
    monkeypatch.setattr(cuda.driver, "Device", Device)
    monkeypatch.setattr(cuda.driver, "Error", RuntimeError)
    assert cuda.chosen().refused == f"No module {name}"
    _, missing = cuda.find()
    assert missing[0] == f"cuda: PyCUDA does not load; cuda-bindings 1.2 is used (No module {name})"


def test_what_is_missing_is_told(here, monkeypatch):
    def told():
        found, missing = cuda.find()
        assert found == []
        (sentence,) = missing
        return sentence

    is_absent(here)
    with monkeypatch.context() as patch:
        error = OSError("libcuda.so.1: cannot open shared object file")
        patch.setattr(cuda.driver, "libcuda", raising(error))
        assert "no NVIDIA driver; for an NVIDIA GPU install it (libcuda.so.1" in told()
    here[BINDINGS] = ModuleNotFoundError("No module named 'cuda'", name="cuda")
    assert "pip install cuda-bindings nvidia-cuda-nvrtc" in told()
    monkeypatch.setenv("HETERO_DRIVER", "cupy")
    assert told() == "cuda: HETERO_DRIVER must be one of pycuda, bindings, got 'cupy'"
