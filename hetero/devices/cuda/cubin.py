"""Compiled kernels: made by NVRTC (or nvcc), kept in a cache of our own that is checked on reading.

The cache's folder must be the user's alone, which keeps out code that others put there. Each file's
digest is of its name, which stands for source and options, and its content, made with the user's
secret key: neither a changed file nor one for another kernel is taken, wherever it came from.

NVRTC comes first because it compiles in tens of milliseconds, in this process; nvcc takes the
better part of a second.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hetero import paths
from hetero.errors import KernelCompileError
from hetero.host import disk_cache
from hetero.imports import load

_KIND = "cubin"  # of things in the cache

log = logging.getLogger("hetero")

Defines = tuple[tuple[str, int | str], ...]


def compiler() -> str | None:
    """Which compiler there is: "NVRTC 13.0", "nvcc (path)", or None."""
    nvrtc = _nvrtc_version()
    if nvrtc:
        return f"NVRTC {nvrtc}"
    nvcc = shutil.which("nvcc")
    return f"nvcc ({nvcc})" if nvcc else None


def cubin(text: str, arch: str, defines: Defines) -> bytes:
    """Machine code for one architecture, such as "sm_90", from the cache where it is there.

    Raises
    ------
    KernelCompileError
        With the compiler's own words.
    """
    name = _name(text, arch, defines)
    code = disk_cache.read(_KIND, name)
    if code is None:
        code = _compile(text, arch, _options(defines))
        disk_cache.write(_KIND, name, code)
    return code


def keep(text: str, arch: str, defines: Defines) -> None:
    """Leave in the cache what will be asked of `cubin`.

    Whatever fails here fails again, and is reported, where it is asked for.
    """
    if paths.private_folder(_KIND) is not None:  # else it would be compiled twice
        with contextlib.suppress(KernelCompileError):
            cubin(text, arch, defines)


def make_ahead(wanted: Iterable[tuple[str, str, Defines]]) -> None:
    """`keep` several, compiled at the same time."""
    if paths.private_folder(_KIND) is None:
        return
    missing = [one for one in dict.fromkeys(wanted) if disk_cache.read(_KIND, _name(*one)) is None]
    if len(missing) < 2:
        return
    # Not above: whatever imports this for the first time when the interpreter ends could not.
    ThreadPoolExecutor = load("concurrent.futures").ThreadPoolExecutor
    with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool:
        list(pool.map(lambda one: keep(*one), missing))


def _name(text: str, arch: str, defines: Defines) -> str:
    """A file's name, by all that the code depends on."""
    parts = (text, arch, *_options(defines), str(compiler()))
    return f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin"


def _options(defines: Defines) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in defines)


@functools.cache
def _nvrtc_version() -> str | None:
    try:
        nvrtc = load("cuda.bindings.nvrtc")
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # package or library missing: both mean there is no NVRTC
        return None
    return f"{major}.{minor}" if int(status) == 0 else None


def _compile(text: str, arch: str, options: tuple[str, ...]) -> bytes:
    if _nvrtc_version():
        return nvrtc_compile(text, arch, options)[0]
    if not shutil.which("nvcc"):
        raise KernelCompileError(
            "there is neither NVRTC nor nvcc; pip install cuda-bindings nvidia-cuda-nvrtc"
        )
    with tempfile.TemporaryDirectory(prefix="hetero-") as folder:
        source, code = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        source.write_text(text, "utf-8")
        command = ["nvcc", "-cubin", f"-arch={arch}", *options, "-o", str(code), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            log.debug("nvcc: %s", done.stderr)
            return code.read_bytes()
        except (OSError, subprocess.CalledProcessError) as error:
            words = getattr(error, "stderr", None) or error
            raise KernelCompileError(f"nvcc failed for {arch}: {words}") from error


def nvrtc_compile(text: str, arch: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Compile with NVRTC: (machine code, the compiler's log)."""
    nvrtc = load("cuda.bindings.nvrtc")

    def check(result: tuple) -> tuple:
        if int(result[0]) != 0:
            raise KernelCompileError(f"NVRTC: {result[0]!r}")
        return result[1:]

    (program,) = check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    try:
        flags = [o.encode() for o in (f"--gpu-architecture={arch}", *options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        (size,) = check(nvrtc.nvrtcGetProgramLogSize(program))
        words = bytearray(size)
        check(nvrtc.nvrtcGetProgramLog(program, words))
        message = words.rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            raise KernelCompileError(f"NVRTC failed for {arch}: {message or status!r}")
        (size,) = check(nvrtc.nvrtcGetCUBINSize(program))
        code = bytearray(size)
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code), message
    finally:
        nvrtc.nvrtcDestroyProgram(program)
