"""OpenCL's runtimes, with Intel's for CPUs where pip installed it, and programs kept on disk.

OpenCL's loader learns of a runtime from an .icd file in a folder: /etc/OpenCL/vendors, or what
``OCL_ICD_VENDORS`` names. The package ``intel-opencl-rt`` puts its library where Python's other
data is, with an .icd file that names a place of the vendor's own making, so the loader never finds
it. For the moment in which the loader looks, it is shown a folder with the right file, and with
links to the machine's own. Where the user names a folder, that one alone counts.

Programs are built from source once, and kept as machine code for the next process: a CPU's runtime
takes 0.1 to 2 seconds for a program, and 3 ms for one that was kept. PyOpenCL's own cache is
unchecked pickles in a folder that others may read; here it is `hetero.paths`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hetero import paths
from hetero.imports import load

with contextlib.suppress(OSError):  # there may be none, and then none is needed
    tempfile.gettempdir()  # Python looks for it under a lock of its own; now, a fork waits for that
_FOLDERS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")  # the user's word to the loader
_SYSTEM = Path("/etc/OpenCL/vendors")
_KIND = "opencl"  # of things in the cache
_CPU = Path("/proc/cpuinfo")
log = logging.getLogger("hetero")


def pyopencl() -> Any:
    """PyOpenCL. Where hetero is the first to import it, it keeps no pickles on disk: they take
    longer than what they save, and where their file is damaged no kernel can be launched."""
    with _environment("PYOPENCL_NO_CACHE", os.environ.get("PYOPENCL_NO_CACHE", "1")):
        return load("pyopencl")


def platforms() -> list[Any]:
    """Every OpenCL platform, as PyOpenCL gives them; the loader looks for them only once."""
    with _shown(installed()):
        return load("pyopencl").get_platforms()


def installed() -> Path | None:
    """The library of Intel's CPU runtime as pip installed it, None if it did not."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("intel-opencl-rt") or ():
            path = Path(str(file.locate())).resolve()
            if file.name.startswith("libintelocl.so.") and path.is_file():
                return path
    return None


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _shown(library: Path | None) -> Iterator[None]:
    """Let the loader find a library, unless the user names the folder to look in."""
    with contextlib.ExitStack() as stack:
        if library is not None and not any(os.environ.get(name) for name in _FOLDERS):
            with contextlib.suppress(OSError):  # nowhere to write: then without it
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-icd-"))
                Path(folder, "intel.icd").write_bytes(os.fsencode(library) + b"\n")
                for file in _SYSTEM.glob("*.icd"):
                    Path(folder, f"system-{file.name}").symlink_to(file)
                stack.enter_context(_environment(_FOLDERS[0], folder))
        yield


# -- Programs


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
