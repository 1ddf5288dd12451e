"""The cache of compiled CUDA kernels is believed only where nobody else can have written it."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

from hetero import paths
from hetero.devices.cuda import compiler
from hetero.errors import KernelCompileError


def test_a_kernel_is_compiled_once_and_looked_up_once_ahead(monkeypatch, tmp_path):
    """Every fit of k-means asks for its files: reading them took most of its set-up."""
    seen, names, read = [], [], paths.cached

    def compile_(text, arch, options):
        seen.append(text)
        return f"code of {text}".encode()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_compile", compile_)
    monkeypatch.setattr(compiler, "version", lambda: "a compiler")
    monkeypatch.setattr(compiler, "kernel_text", lambda text, dialect: text)
    device = SimpleNamespace(kind="cuda", arch="sm_90", _ahead=set())
    ahead = functools.partial(compiler.Compiling.compile_ahead, device)
    wanted = [(text, (("N", 4),)) for text in "abb"]
    ahead(wanted)
    assert sorted(seen) == ["a", "b"]
    found = [compiler.cubin(text, "sm_90", (("N", 4),)) for text in "abac"]
    assert found == [b"code of a", b"code of b", b"code of a", b"code of c"]
    assert sorted(seen) == ["a", "b", "c"]
    monkeypatch.setattr(paths, "cached", lambda *a: names.append(a) or read(*a))
    ahead(wanted)
    assert not names
    ahead([*wanted, ("c", ())])
    assert len(names) == 1


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compiler, "version", lambda: None)
    with pytest.raises(KernelCompileError, match="pip install cuda-bindings nvidia-cuda-nvrtc"):
        compiler._compile("", "sm_90", ())
