"""OpenCL programs: built from source once, and kept on disk as machine code for the next process.

A CPU's runtime takes 0.1 to 2 seconds for a program, and 3 ms for one that was kept. PyOpenCL's own
cache is unchecked pickles in a folder that others may read; here it is `hetero.paths`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import warnings
from pathlib import Path
from typing import Any

from hetero import paths
from hetero.imports import load

_KIND = "opencl"  # of things in the cache
_CPU = Path("/proc/cpuinfo")

log = logging.getLogger("hetero")


def built(context: Any, device: Any, text: str, options: list[str]) -> Any:
    """A program of PyOpenCL's for the one device of a context, from the cache where it is there.

    Raises
    ------
    pyopencl.Error
        With the compiler's own words; and whatever else PyOpenCL stumbles over.
    """
    cl = load("pyopencl")

    def loaded(code: bytes) -> Any:
        kept = cl.Program(context, [device], [code])
        return kept.build(options=options, cache_dir=False)

    with warnings.catch_warnings():
        # PyOpenCL warns of every compiler that says anything at all.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        name = _name(device, text, options)
        code = None if name is None else paths.cached(_KIND, name)
        if code is not None:
            try:
                return loaded(code)
            except Exception as error:  # the driver's word on its own code is final: built again
                log.info("the kept program %s cannot be used: %s", name, cause(error))
        program = cl.Program(context, text).build(options=options, cache_dir=False)
        try:
            (code,) = program.get_info(cl.program_info.BINARIES)
            if name is not None and code:
                paths.cache(_KIND, name, code)
            return loaded(code)  # with the program go some MB that its compiler holds
        except Exception as error:  # a runtime that gives no code, or takes none
            log.info("the program %s cannot be kept: %s", name, cause(error))
    return program


def _name(device: Any, text: str, options: list[str]) -> str | None:
    """A file's name, by all that the code depends on; None where that is not known."""
    cl = load("pyopencl")
    platform = device.platform
    instructions = _instructions() if device.type & cl.device_type.CPU else ""
    if instructions is None:
        return None
    parts = (
        *(text, *options, os.environ.get("PYOPENCL_BUILD_OPTIONS", "")),
        *(platform.vendor, platform.name, platform.version),
        *(device.vendor, device.name, device.version, device.driver_version, instructions),
    )
    return f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.program"


@functools.cache
def _instructions() -> str | None:
    """What the CPU can execute, as Linux lists it: CPUs of one name, in a home directory of many
    machines, need not have the same. None where it is not known."""
    try:
        lines = _CPU.read_text().splitlines()
    except OSError:
        return None
    found = {line for line in lines if line.startswith(("flags", "Features"))}
    return "\n".join(sorted(found)) or None


def cause(error: Exception) -> str:
    """The line of a compiler's output that tells why, or what kind of error it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() and "BUILD_PROGRAM" not in line]
    return f"{type(error).__name__}: {[*telling, *lines, 'no message'][0][:160]}"
