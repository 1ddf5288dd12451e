"""What compilers made for tests, kept for later runs while nothing that it is made of changes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from hetero import kernels, paths


def remembered(make: Callable[[], bytes], *made_of: object) -> bytes:
    """What ``make()`` gives, or gave in another run of all that it is made of.

    Parameters
    ----------
    make : callable
    *made_of : objects
        Texts, options and the compiler's version; what has another `repr` is made anew.
    """
    name = hashlib.sha256(repr(made_of).encode()).hexdigest()
    found = paths.cached("compiled", name)
    if found is None:
        found = make()
        paths.cache("compiled", name, found)
    return found


@cache
def gpp_version():
    return subprocess.run(["g++", "-v"], capture_output=True, check=True).stderr


def library(text: str, *options: str) -> ctypes.CDLL:
    """C++ compiled for the CPU; a skip where there is no compiler."""
    if not shutil.which("g++"):
        pytest.skip("no g++ to compile kernels for the CPU")
    command = ["g++", "-w", "-std=c++17", "-shared", "-fPIC", *options, "-o", "made.so", "text.cpp"]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.so"

        def make() -> bytes:
            (Path(folder) / "text.cpp").write_text(text)
            subprocess.run(command, cwd=folder, check=True)
            return made.read_bytes()

        made.write_bytes(remembered(make, text, command, gpp_version()))
        return ctypes.CDLL(str(made))


@cache
def nvrtc_version():
    from cuda.bindings import nvrtc

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("nvidia-cuda-nvrtc")
    return nvrtc.nvrtcVersion()


def compile_cuda(launch, arch):
    """Compile for a GPU; return the bytes of spilled registers that the assembler reports."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    text = kernels.kernel_text(launch.source, "cuda")
    options = [f"-D{name}={value}" for name, value in launch.defines]
    options += [f"--gpu-architecture={arch}", "--ptxas-options=-v"]

    def make():
        _, program = nvrtc.nvrtcCreateProgram(text.encode(), launch.source.encode(), 0, None, None)
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(program)
        assert int(status) == 0, f"{launch} {arch}: {log.decode()}"
        return log

    log = remembered(make, text, options, nvrtc_version()).decode()
    spilled = re.findall(r"(\d+) bytes spill stores", log)
    assert spilled, f"no report in {log!r}"
    return sum(map(int, spilled))


def spilling(launches, arch):
    """Those of some launches, compiled at the same time, that spill registers."""
    launches = [*launches]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        spilled = pool.map(lambda launch: compile_cuda(launch, arch), launches)
        return [launch for launch, size in zip(launches, spilled, strict=True) if size]
