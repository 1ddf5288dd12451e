"""OpenBLAS's idle threads sleep while hetero does long work, which needs their cores.

After each product they busy-wait for more work for 2^28 clock cycles, 0.1 s, and other threads wait
for those cores. The number of cycles is a variable that they read in each round. Here it is small
during long work, and is restored afterwards: spinning threads go to sleep at once, and the next
product wakes them. For work of `LONG` or more that pays on any host, although on a virtual machine
the product that wakes sleeping threads may take some milliseconds more. Nothing else of BLAS is
touched: another thread may be in it, and its product is computed as always.

The variable has no symbol. `blas_probe` finds its offset, in a process of its own, and it is used
only where it holds a plausible value. That is done to the copies that NumPy's and SciPy's wheels
bring, in versions that were tried; every other BLAS is left alone.

``HETERO_BLAS_TIMEOUT`` is the power of two meanwhile, 4 to 30, or 0 to leave BLAS alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hetero.host import blas_probe
from hetero.host.blas import libraries, owner
from hetero.times import readable

__all__ = [
    "asleep",
    "asleep_in_loops",
    "describe",
    "find",
    "for_loop",
    "is_due",
    "obstacle",
    "restore_spin",
    "shares_loops",
    "shorten_spin",
    "spin_is_shortened",
    "wait_until_idle",
]

OPTION = "HETERO_BLAS_TIMEOUT"
LONG = 3e-3  # seconds of work, on a machine that was not calibrated
_PATIENT = 0.01  # seconds: work at least this long waits for `find`
EXPONENT = 10  # 2^10 cycles, half a microsecond
_REST = 0.001  # seconds within which spinning threads read the new value
_SHORT = 20  # 2^20 cycles, 0.5 ms: what comes after a product is hardly disturbed
_USERS = ("OPENBLAS_THREAD_TIMEOUT", "GOTO_THREAD_TIMEOUT")  # the user's word to OpenBLAS
_TRIED = ((0, 3, 27), (0, 3, 34))  # first and last version
_LATE = "scipy.linalg._fblas"  # the module that loads SciPy's copy
_SECONDS = 20.0  # timeout of `blas_probe`, which takes milliseconds

log = logging.getLogger("hetero")
_status: dict[str, str] = {}  # library -> what is done to it
_state = {"looked": False, "scipy": False}
_finding = threading.Lock()


class _Asked(threading.local):
    """Expected seconds of the enclosing work, and whether a multi-threaded loop has run in it;
    per Python thread.
    """

    seconds: float | None = None
    met: bool = False


_asked = _Asked()
# Of each variable: its memory, its value during long work, and its value otherwise.
_words: list[tuple[memoryview, int, int]] = []


@contextlib.contextmanager
def asleep(seconds: float = _PATIENT) -> Iterator[None]:
    """A context in which the idle threads of BLAS sleep, for work of this duration.

    Finding the variable takes 30 ms, once: shorter work does not wait for that.
    """
    _look(seconds)
    shorten_spin()
    try:
        yield
    finally:
        restore_spin()


@contextlib.contextmanager
def asleep_in_loops(seconds: float) -> Iterator[None]:
    """As `asleep`, from the first multi-threaded loop on.

    Loops on the calling thread alone leave BLAS's cores free, and the next product starts faster
    with threads that spin.
    """
    before, _asked.seconds = _asked.seconds, seconds
    try:
        yield
    finally:
        _asked.seconds = before
        restore_spin()


def for_loop() -> None:
    """Called where a multi-threaded loop begins: within `asleep_in_loops`, shortens the spin."""
    if _asked.seconds is not None:
        _asked.met = True
        _look(_asked.seconds)
        shorten_spin()


def shares_loops(function: Callable[[], object]) -> bool:
    """Call a function; whether one of its loops was multi-threaded."""
    _asked.met = False
    with asleep_in_loops(0.0):
        function()
    return _asked.met


def _look(seconds: float) -> None:
    """Find the variables if that is due; in the background where the work is short."""
    if is_due():
        find() if seconds >= _PATIENT else _find_in_background()


def wait_until_idle() -> None:
    """Wait until the idle threads of BLAS sleep, which they do until the next product."""
    with asleep():
        time.sleep(_REST)


def shorten_spin() -> None:
    """Let idle threads of BLAS sleep at once, until `restore_spin`."""
    for word, short, _ in _words:
        word[0] = short


def restore_spin() -> None:
    """Let them spin as before, from their next product on."""
    for word, _, before in _words:
        word[0] = before


def find() -> None:
    """Look for the variable in every BLAS of this process that was not looked at yet."""
    with _finding:  # each variable is read once, before anything has changed it
        _state.update(looked=True, scipy=_LATE in sys.modules)
        reason = _reason()
        for library in libraries():
            path = library["filepath"]
            if path not in _status:
                _status[path] = reason or obstacle(library) or _set_up(path)


def _find_in_background() -> None:
    """`find` in a thread of its own, unless one runs."""
    if _finding.acquire(blocking=False):
        _finding.release()
        with contextlib.suppress(RuntimeError):  # no more threads: a later call tries again
            threading.Thread(target=find, name="hetero-blas", daemon=True).start()


def is_due() -> bool:
    """Whether `find` is to be called: not yet done, or a BLAS has come since."""
    return not _state["looked"] or (not _state["scipy"] and _LATE in sys.modules)


def spin_is_shortened() -> bool:
    """Whether the threads of NumPy's BLAS sleep while hetero works, or will from now on."""
    every = _status if _state["looked"] else _expected()
    statuses = [text for path, text in every.items() if owner(path) == "numpy"]
    return any(text.startswith("2^") for text in statuses) and _exponent() <= _SHORT


def describe(least: float = LONG) -> dict[str, str]:
    """Status of each BLAS of this process, as it is or will be from the first long work on.

    Parameters
    ----------
    least : float
        Seconds of the work from which on it is long.
    """
    during = f" during work of {readable(least)} or longer"
    statuses = _assumed() | _status
    return {owner(path): f"{x}{during}" if x == _cycles() else x for path, x in statuses.items()}


@functools.cache
def _expected() -> dict[str, str]:
    """`_assumed` as of the first request."""
    return _assumed()


def _assumed() -> dict[str, str]:
    """The expected status of each BLAS, before `find` has run."""
    reason = _reason()
    return {x["filepath"]: reason or obstacle(x) or _cycles() for x in libraries()}


def _cycles() -> str:
    return f"2^{_exponent()} cycles"


def obstacle(library: dict[str, Any]) -> str | None:
    """Why this library, as threadpoolctl describes it, is left alone."""
    if library.get("internal_api") != "openblas":
        return f"as it was: {library.get('internal_api')} is not OpenBLAS"
    if library.get("threading_layer") != "pthreads":
        return f"as it was: its threads are {library.get('threading_layer')}'s"
    if library.get("prefix") != "libscipy_openblas":
        return "as it was: others than NumPy and SciPy may call it"
    version = re.match(r"(\d+)\.(\d+)\.(\d+)", str(library.get("version")))
    numbers = tuple(map(int, version.groups())) if version else ()
    if not _TRIED[0] <= numbers <= _TRIED[1]:
        return f"as it was: OpenBLAS {library.get('version')} was not tried"
    return None


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
    return None


def _set_up(path: str) -> str:
    """Have `shorten_spin` set the variable of a library; gives its status."""
    path = os.path.realpath(path)
    distance = _distance(path)
    if distance is None:
        return "as it was: it is unknown how long its threads spin"
    parts = blas_probe.mapped(path)
    address = parts[0][0] + distance if parts else 0
    if not any(begin <= address < end and is_writable for begin, end, is_writable in parts):
        return "as it was: its variables lie elsewhere than in another process"
    variable = (ctypes.c_char * blas_probe.WORD).from_address(address)
    word = memoryview(variable).cast("B").cast("I")
    if word[0] not in {1 << exponent for exponent in range(4, 31)}:
        return f"as it was: {word[0]} is no number of cycles that it could spin"
    _words.append((word, 1 << _exponent(), word[0]))
    return _cycles()


def _distance(path: str) -> int | None:
    """What `blas_probe` prints of a library."""
    names = ("LD_LIBRARY_PATH", "PATH")  # no variable that BLAS reads
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", blas_probe.__file__, path],
            env={name: os.environ[name] for name in names if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.info("no variable for the spin of the threads of %s: %s", path, error)
        return None


def _after_fork() -> None:
    global _finding
    _finding = threading.Lock()  # another thread may have held it,
    restore_spin()  # or been in a loop


os.register_at_fork(after_in_child=_after_fork)
