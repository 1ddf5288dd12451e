"""Which threads run the loops: TBB's, where pip installed it and the user chose no others.

A loop that is cut into 16 parts for 16 threads waits for the last thread to begin. Where another
library's idle threads spin on the cores, as OpenBLAS's do for some milliseconds, that takes a time
slice of the scheduler. With TBB, threads take parts when they arrive, and the caller does the rest.
Numba prefers TBB, but looks for its library only where the system's loader does, and pip puts it
elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from importlib import metadata
from pathlib import Path

from hetero.host import loops
from hetero.imports import load

__all__ = ["describe", "prepare"]

_PACKAGE = "tbb"
_LIBRARY = "libtbb.so.12"
_COMES_FOR = ("Linux", "x86_64")
_LEAST = 12060  # the oldest interface of TBB that Numba takes
_TBB_FIRST = ("tbb", "threadsafe", "forksafe", "safe")  # settings for which Numba prefers TBB
_loaded: list[ctypes.CDLL] = []


def prepare() -> None:
    """Load TBB from pip's folder, so that Numba uses it when it starts its threads.

    Nothing is done where threads were started, where the user chose a layer without TBB, and where
    a TBB is loaded.
    """
    if _running() is None and _is_wanted() and not _is_loaded() and not _loaded:
        path = installed()
        if path is not None:
            with contextlib.suppress(OSError):
                _loaded.append(ctypes.CDLL(str(path)))


def describe() -> str:
    """The layer that runs the loops, or will, and why where it is not TBB."""
    if (denied := loops.obstacle()) is not None:
        return f"none, because {denied}: NumPy and SciPy compute in their place"
    prepare()
    layer = _running()
    if layer == "tbb":
        return "TBB"
    if not _is_wanted():
        return f"{layer or _choice()}, as Numba's configuration says"
    if layer is not None and (_loaded or installed()):
        return f"{layer}, because Numba's threads were started before hetero's loops"
    obstacle = _obstacle()
    if obstacle is None:
        return "TBB"
    return f"{layer or 'OpenMP or Numba itself'}, because {obstacle}"


def installed() -> Path | None:
    """TBB's library as pip installed it, None if it did not."""
    try:
        files = metadata.files(_PACKAGE) or ()
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _LIBRARY:
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    return None


def _running() -> str | None:
    """The threading layer that was started in this process."""
    numba = load("numba")

    try:
        return numba.threading_layer()
    except ValueError:
        return None


def _choice() -> str:
    numba = load("numba")

    return str(numba.config.THREADING_LAYER).lower()


def _is_wanted() -> bool:
    """Whether Numba is to take TBB before others."""
    numba = load("numba")

    choice = _choice()
    if choice == "default":
        return str(next(iter(numba.config.THREADING_LAYER_PRIORITY), "")) == "tbb"
    return choice in _TBB_FIRST


def _is_loaded() -> bool:
    try:
        ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD)
    except (OSError, TypeError):
        return False
    return True


def _obstacle() -> str | None:
    """Why Numba cannot take TBB."""
    if load("importlib.util").find_spec("numba.np.ufunc.tbbpool") is None:
        return "this Numba was built without TBB"
    try:
        library = _loaded[0] if _loaded else ctypes.CDLL(_LIBRARY)
        version = library.TBB_runtime_interface_version()
    except (OSError, AttributeError) as error:
        path = installed()
        if path is None and (here := (platform.system(), platform.machine())) != _COMES_FOR:
            return f"TBB is not there, and its package does not come for {' on '.join(here)}"
        if path is None:
            return f"TBB is not installed: pip install {_PACKAGE}"
        return f"{path} cannot be loaded: {error}"
    if version < _LEAST:
        return f"TBB is too old: its interface is {version}, Numba takes {_LEAST} and later"
    return None
