"""The OpenCL platforms of this process, with Intel's CPU runtime where pip installed it.

OpenCL's loader learns of a runtime from an .icd file in a folder: /etc/OpenCL/vendors, or what
``OCL_ICD_VENDORS`` names. The package ``intel-opencl-rt`` puts its library where Python's other
data is, with an .icd file that names a place of the vendor's own making, so the loader never finds
it. For the moment in which the loader looks, it is shown a folder with the right file, and with
links to the machine's own. Where the user names a folder, that one alone counts.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from hetero import paths
from hetero.imports import load

_PACKAGE = "intel-opencl-rt"
_FOLDERS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")  # the user's word to the loader
_SYSTEM = Path("/etc/OpenCL/vendors")


def platforms() -> list[Any]:
    """Every OpenCL platform, as PyOpenCL gives them; the loader looks for them only once."""
    cl = load("pyopencl")
    _keep_to_ourselves()
    with _shown(installed()):
        return cl.get_platforms()


def obstacle() -> str | None:
    """Why Intel's runtime cannot work as it is installed, a sentence or None."""
    library = installed()
    if library is not None and " " in str(library):
        return f"Intel's runtime does not work in a folder with a space in its path: {library}"
    return None


def _keep_to_ourselves() -> None:
    """Let PyOpenCL keep its pickles in a folder that is this user's alone.

    Launching kernels needs a module that makes a folder in the user's cache as it is imported, and
    fails where it cannot.
    """
    if "pyopencl.invoker" in sys.modules:
        return
    folder = paths.private_folder("pyopencl")
    if folder is None:
        try:
            folder = tempfile.mkdtemp(prefix="hetero-pyopencl-")
        except OSError:  # then the first launch fails, and says why
            return
        atexit.register(_remove, folder, os.getpid())
    with _environment("XDG_CACHE_HOME", str(folder)):
        load("pyopencl.invoker")


def _remove(folder: str, owner: int) -> None:
    """Remove a folder at the end of the process that made it; not at the end of a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


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


def installed() -> Path | None:
    """The library of Intel's CPU runtime as pip installed it, None if it did not."""
    try:
        files = metadata.files(_PACKAGE) or ()
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith("libintelocl.so."):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    return None


@contextlib.contextmanager
def _shown(library: Path | None) -> Iterator[None]:
    """Let the loader find a library, unless the user names the folder to look in."""
    if library is None or any(os.environ.get(name) for name in _FOLDERS):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-icd-"))
            Path(folder, "intel.icd").write_bytes(os.fsencode(library) + b"\n")
            for file in _SYSTEM.glob("*.icd"):
                Path(folder, f"system-{file.name}").symlink_to(file)
        except OSError:  # nowhere to write: then without it
            yield
            return
        with _environment("OCL_ICD_VENDORS", folder):
            yield
