"""The OpenCL platforms of this process, with Intel's CPU runtime where pip installed it.

OpenCL's loader learns of a runtime from an .icd file in a folder: /etc/OpenCL/vendors, or what
``OCL_ICD_VENDORS`` names. The package ``intel-opencl-rt`` puts its library where Python's other
data is, with an .icd file that names a place of the vendor's own making, so the loader never finds
it. For the moment in which the loader looks, it is shown a folder with the right file, and with
links to the machine's own. Where the user names a folder, that one alone counts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hetero.imports import load

with contextlib.suppress(OSError):  # there may be none, and then none is needed
    tempfile.gettempdir()  # Python looks for it under a lock of its own; now, a fork waits for that
_FOLDERS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")  # the user's word to the loader
_SYSTEM = Path("/etc/OpenCL/vendors")


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
