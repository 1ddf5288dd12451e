"""CUDA without a GPU: which package calls the driver and what is said where none can, compiled
kernels that are kept, and memory that is kept when it is freed."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType, SimpleNamespace

import pytest
from fakes import raising

from hetero.devices import cuda
from hetero.devices.cuda import compiler, context, driver
from hetero.errors import DeviceError, KernelCompileError

BINDINGS = "cuda.bindings.driver"


@pytest.fixture
def here(monkeypatch):
    """Modules that stand for packages, or an exception that their import raises. The choice among
    them is made anew."""
    packages = {}

    def load(name):
        if name.startswith("hetero."):
            return importlib.import_module(name)
        found = packages.get(name, ModuleNotFoundError(f"No module {name}", name=name))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.delenv("HETERO_DRIVER", raising=False)
    monkeypatch.setattr(cuda.driver, "libcuda", lambda: None)
    monkeypatch.setattr(cuda, "load", load)
    monkeypatch.setattr(cuda, "version", lambda package: "1.2")
    packages["pycuda"] = packages["pycuda.driver"] = ModuleType("pycuda.driver")
    packages[BINDINGS] = ModuleType(BINDINGS)
    cuda.chosen.cache_clear()
    yield packages
    cuda.chosen.cache_clear()


def is_absent(packages, name="pycuda"):
    packages["pycuda.driver"] = ModuleNotFoundError(f"No module {name}", name=name)


def test_pycuda_is_taken_where_it_is_installed_and_one_can_be_forced(here, monkeypatch):
    assert cuda.chosen() == (here["pycuda.driver"], "PyCUDA 1.2", None)
    for forced, name in (("bindings", "cuda-bindings 1.2"), ("pycuda", "PyCUDA 1.2")):
        monkeypatch.setenv("HETERO_DRIVER", forced)
        cuda.chosen.cache_clear()
        assert cuda.chosen().name == name
    cuda.chosen.cache_clear()
    is_absent(here)
    assert cuda.find()[0] == []


@pytest.mark.parametrize("name", ["libcurand", "pytools"])
def test_a_broken_pycuda_is_told(here, monkeypatch, name):
    """Its library is not there, or a module that it needs."""
    is_absent(here, name)
    monkeypatch.setattr(cuda.driver, "call", lambda *arguments: None)
    monkeypatch.setattr(cuda.driver, "given", lambda *arguments: 1)
    monkeypatch.setattr(cuda.driver, "Device", raising(DeviceError("fell over")))
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


def test_a_kernel_is_compiled_once(monkeypatch, tmp_path):
    """Ahead, with others, or when it is asked for."""
    seen = []

    def compile_(text, arch, options):
        seen.append(text)
        return f"code of {text}".encode()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_compile", compile_)
    monkeypatch.setattr(compiler, "version", lambda: "a compiler")
    monkeypatch.setattr(compiler, "kernel_text", lambda text, dialect: text)
    monkeypatch.setattr(compiler, "_ahead", set())
    device = SimpleNamespace(kind="cuda", arch="sm_90")
    ahead = functools.partial(compiler.Compiling.compile_ahead, device)
    wanted = [(text, (("N", 4),)) for text in "abb"]
    ahead(wanted)
    assert sorted(seen) == ["a", "b"]
    found = [compiler.cubin(text, "sm_90", (("N", 4),)) for text in "abac"]
    assert found == [b"code of a", b"code of b", b"code of a", b"code of c"]
    assert sorted(seen) == ["a", "b", "c"]


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compiler, "version", lambda: None)
    with pytest.raises(KernelCompileError, match="pip install cuda-bindings nvidia-cuda-nvrtc"):
        compiler._compile("", "sm_90", ())


def test_what_is_freed_or_given_back_meanwhile(monkeypatch):
    """Nothing is lost, and nothing that was given back is handed out.

    ``beside[0]()`` is what another thread does while memory is given back, ``live`` that which the
    driver has given.
    """
    made, live, beside = [], set(), [lambda: None]

    def given(function, size):
        made.append(1 << 20 << len(made))
        live.add(made[-1])
        return made[-1]

    def twice(function, address):
        live.remove(address)
        beside[0]()

    monkeypatch.setattr(driver, "given", given)
    monkeypatch.setattr(driver, "twice", twice)
    monkeypatch.setattr(driver, "call", lambda function: None)
    monkeypatch.setattr(driver, "free_memory", lambda: 1 << 40)
    pool = context.Pool(object, 0, SimpleNamespace())
    blocks = [pool.allocate(size) for size in (1000, 1000, 5000, 5000, 20000)]
    del blocks
    beside[0] = pool.trim
    assert pool.trim()
    assert pool.nbytes == pool.unused() == 0
    beside[0] = lambda: None
    blocks = [pool.allocate(1000) for _ in range(4)]
    held = [blocks.pop()]
    del blocks
    beside[0] = lambda: held and held.pop()
    pool.trim()
    assert pool.nbytes == pool.unused()
    assert pool.allocate(1000).address in live
