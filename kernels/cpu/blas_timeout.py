"""How long OpenBLAS's idle threads spin before they sleep: shortly, so that loops get their cores.

After each product they look for more work for 2^28 clock cycles, 0.1 s, at the cost of whoever
wants those cores. OpenBLAS reads another number from its environment when it starts its threads.
Here they are ended and started anew, once, before the first loop runs; a fork ends them in the
same way. Nobody may be in BLAS meanwhile. Only NumPy and SciPy call the copies of OpenBLAS that
their wheels bring, and from Python's threads, so this is done to those copies alone, and only
while no other thread runs Python. Elsewhere, and in versions that were not tried, nothing is done.

``HETERO_BLAS_TIMEOUT`` is the power of two, 4 to 30, or 0 to leave BLAS alone.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import sys
import threading
from typing import Any

__all__ = ["describe", "is_due", "is_short", "libraries", "others", "owner", "shorten"]

OPTION = "HETERO_BLAS_TIMEOUT"
EXPONENT = 16  # 2^16 cycles, 20 to 30 us: longer than from one product to the next in a loop
_SHORT = 20  # 2^20 cycles, 0.5 ms: what comes after a product is hardly disturbed
OWN = "hetero-"  # how the names of our threads begin; they never call BLAS
_USERS = ("OPENBLAS_THREAD_TIMEOUT", "GOTO_THREAD_TIMEOUT")  # the user's word to OpenBLAS
_TRIED = ((0, 3, 27), (0, 3, 34))  # first and last version
_LATE = "scipy.linalg._fblas"  # what brings SciPy's copy, if anything does
_CALLS = ("openblas_read_env", "blas_thread_shutdown_", "blas_thread_init")

log = logging.getLogger("hetero")
_told: dict[str, str] = {}  # library -> what was done to it
_state = {"scipy": False}


def shorten() -> None:
    """Have the idle threads of every known BLAS in this process sleep early, if it is safe."""
    _state["scipy"] = _LATE in sys.modules
    reason = _reason()
    for library in libraries():
        path = library["filepath"]
        if path not in _told:
            _told[path] = reason or obstacle(library) or _restart(path)


def is_due() -> bool:
    """Whether a BLAS has come since `shorten` was called."""
    return not _state["scipy"] and _LATE in sys.modules


def is_short() -> bool:
    """Whether the idle threads of NumPy's copy sleep early."""
    done = [told for path, told in _told.items() if owner(path) == "numpy"]
    return any(told.startswith("2^") for told in done) and _exponent() <= _SHORT


def describe() -> dict[str, str]:
    """What was done to each BLAS of this process, or will be before the first loop runs."""
    told, reason = dict(_told), _reason()
    for library in libraries():
        will = reason or obstacle(library) or f"2^{_exponent()} cycles from the first loop on"
        told.setdefault(library["filepath"], will)
    return {owner(path): text for path, text in told.items()}


def obstacle(library: dict[str, Any]) -> str | None:
    """Why this library, as threadpoolctl describes it, is left alone."""
    if library.get("internal_api") != "openblas":
        return f"as it was: {library.get('internal_api')} is not OpenBLAS"
    if library.get("threading_layer") != "pthreads":
        return f"as it was: its threads are {library.get('threading_layer')}'s"
    if library.get("prefix") != "libscipy_openblas":
        return "as it was: others than NumPy and SciPy may call it"
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", str(library.get("version")))
    found = tuple(map(int, version.groups())) if version else ()
    if not _TRIED[0] <= found <= _TRIED[1]:
        return f"as it was: OpenBLAS {library.get('version')} was not tried"
    return None


def libraries() -> list[dict[str, Any]]:
    """Every BLAS of this process, as threadpoolctl describes it."""
    import threadpoolctl

    return [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]


def owner(path: str) -> str:
    """Whose copy a library is: "numpy", "scipy", or its file's name."""
    folder, name = os.path.split(path)
    package, dot, _ = os.path.basename(folder).partition(".libs")
    return package if dot else name


def _exponent() -> int:
    """The power of two that the user asks for; 0 where nothing is to be done."""
    return _parsed(os.environ.get(OPTION, ""))


@functools.cache
def _parsed(given: str) -> int:
    if not given.strip():
        return EXPONENT
    number = int(given) if given.strip().isdecimal() else -1
    if number and not 4 <= number <= 30:
        log.warning("%s must be 0 or from 4 to 30, got %r: BLAS is left alone", OPTION, given)
        return 0
    return number


def _reason() -> str | None:
    """Why every BLAS of this process is left alone."""
    for name in _USERS:
        if os.environ.get(name):
            return f"as it was: {name} is set"
    if not _exponent():
        return f"as it was: {OPTION} says so"
    if sys.platform != "linux":
        return f"as it was: not tried on {sys.platform}"
    beside = others()
    if beside:
        return (
            f"as it was: another thread ({beside[0]}) could have been in BLAS; "
            f"set {_USERS[0]}={_exponent()} before Python starts"
        )
    return None


def others() -> list[str]:
    """Other threads that run Python, by name; our own that never call BLAS are none."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    running = (set(sys._current_frames()) | set(names)) - {threading.get_ident()}
    beside = [names.get(ident) or "without a name" for ident in running]
    return [name for name in beside if not name.startswith(OWN)]


def _restart(path: str) -> str:
    """End the threads of an OpenBLAS and start them with the new timeout.

    The GIL is held all the while, so that no other thread can come to be.
    """
    try:
        library = ctypes.PyDLL(path)
        read_environment, end, start = (getattr(library, name) for name in _CALLS)
    except (OSError, AttributeError) as error:
        return f"as it was: {error}"
    exponent = _exponent()
    os.environ[_USERS[0]] = str(exponent)
    try:
        read_environment()
    finally:
        os.environ.pop(_USERS[0], None)
    end()
    start()
    return f"2^{exponent} cycles"
