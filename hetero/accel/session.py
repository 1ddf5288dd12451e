"""One call at a time: is it worth looking at, what does its plan say, who computes it.

Every caught call becomes an `Attempt`. Until loading hetero pays (`Loading`) all are the plain
library's. From then on the plan decides, and what was measured of the same call overrules it.

A script that ends right after hetero was loaded loses what that takes, and its first run knows no
end. So that one loads hetero where it runs long enough for the loss to be small. What its calls
took is kept. A later run of the same script with the same arguments has hetero loaded for its first
call, where the last one's calls pay for that.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import importlib.util
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from hetero import tables
from hetero.errors import readable
from hetero.imports import load

# Seconds that a call is expected to take, to be looked at. With 0 in the environment each call is,
# and is taken unless its plan is the plain library's.
LEAST = 1e-3
# A size's first calls are the plain library's, to measure it, if they take less than these seconds.
# The very first one of a process may have loaded something, so that one tells nothing.
MEASURED, SAMPLES = 0.1, 2
_MARGIN = 1.05  # times the plain library's time, from which a call is left to it
_MOST = 4096  # sizes that are known, and rows of a table
# Without and with a GPU: seconds that loading hetero, the first plan, the first context and its end
# hold a script up; the part of such calls' time that is saved, where no run has measured it.
LOADING, SAVED = {False: 0.5, True: 1.0}, {False: 0.6, True: 0.9}
GAIN = 2.0  # times what loading takes, that calls must save
_LOSS = 0.03  # of a script's time, which loading may take where nothing is known of its end
_KEPT = 1.0  # seconds of calls from which a run is kept
_NOT_FINITE = "not-finite", "NaN, infinity or no convergence, which the plain library reports"
_LIBRARIES = ("numpy", "scipy", "sklearn", "skimage", "hetero")  # no lines of a script
# Packages that hetero computes with. `bdb` is none: it raises what ends a debugger's session.
_COMPUTING = (sys.stdlib_module_names - {"bdb"}) | {
    *("hetero", "kernels", "calibration", "numpy", "scipy", "sklearn", "numba", "llvmlite"),
    *("joblib", "threadpoolctl", "cuda", "pycuda", "pytools", "nvmath", "cupy", "torch", "cv2"),
    *("pyopencl", "cupy_backends"),
}
_HEAD = ["line", "call", "calls", "time", "saved", "reason"]


class Attempt(NamedTuple):
    """A call that hetero could do."""

    what: str  # shapes and dtypes
    seconds: float  # expected of the plain library, roughly
    obstacle: str = ""  # the code of why it is that library's in any case
    plan: Callable[[], Any] = lambda: None  # gives hetero's plan
    own: tuple[str, ...] = ()  # the methods on the CPU that are the plain library's way
    # The result by a plan; None where that must be the plain library's.
    compute: Callable[[Any], Any] = lambda plan: None
    operands: tuple[Any, ...] = ()  # those that may stay on a device
    # Its work is known only when it is done: prices are for another number of iterations.
    iterates: bool = False

    def is_plain(self, candidate: Any) -> bool:
        """Whether a candidate of the plan is the plain library's way."""
        return candidate.device == "cpu" and candidate.method in self.own


# -- What is noted ---------------------------------------------------------------------------------


class Note(NamedTuple):
    """A call; in a table all calls of one size from one line with one reason."""

    function: str  # its name, such as "scipy.signal.fftconvolve"
    what: str  # shapes and dtypes
    line: str  # "script.py:12"
    code: str  # the reason
    text: str  # with its figures; of the last call
    seconds: float  # measured
    saved: float = 0.0  # of what such a call takes without hetero, where that is known
    calls: int = 1

    def cells(self) -> list[str]:
        """Of a table, as `_HEAD` names them."""
        call, reason = f"{self.function} {self.what}", f"{self.code}: {self.text}".rstrip(": ")
        gain = readable(self.saved) if self.saved else "not known" * (self.code == "taken")
        return [self.line, call, str(self.calls), readable(self.seconds), gain, reason]

    def __str__(self) -> str:
        line, call, *_, reason = self.cells()
        return f"{line}: {call}: {reason}"


class Book:
    """All notes of an installation, summed by line, call and reason."""

    def __init__(self) -> None:
        self.last: Note | None = None
        # Function, size, line and code -> text, seconds, saved and calls, as in `Note`.
        self._rows: dict[tuple[str, ...], list[Any]] = {}
        self._began = time.perf_counter()

    def add(self, note: Note) -> bool:
        """Count a call; whether it is the first of its line, call and reason."""
        self.last, key = note, note[:4]
        if len(self._rows) >= _MOST and key not in self._rows:
            key = (note.function, "of other sizes", note.line, note.code)
        row = self._rows.setdefault(key, ["", 0.0, 0.0, 0])
        row[:] = note.text, row[1] + note.seconds, row[2] + note.saved, row[3] + 1
        return row[3] == 1

    def rows(self) -> list[Note]:
        """The rows, those that took most time first."""
        rows = [Note(*key, *row) for key, row in [*self._rows.items()]]
        return sorted(rows, key=lambda row: -row.seconds)

    def table(self) -> str:
        """The rows as a table in Markdown."""
        rows = [_HEAD, *(row.cells() for row in self.rows())]
        return "\n".join(f"| {' | '.join(x.replace('|', '/') for x in row)} |" for row in rows)

    def sums(self) -> list[str]:
        """What it comes to, and what to change to gain more, in sentences."""
        rows, whole = self.rows(), readable(time.perf_counter() - self._began)
        taken = sum(row.calls for row in rows if row.code == "taken")
        left, saved = sum(row.calls for row in rows) - taken, sum(row.saved for row in rows)
        found = f"{taken} call{'s' * (taken != 1)} taken, {left} left alone, in {whole}; about "
        found += f"{readable(abs(saved))} {'lost' if saved < 0 else 'saved'}, by the least time of "
        found += "such a call without hetero"
        return [found, "What each reason means: docs/accel.md"]

    def __str__(self) -> str:
        return load("hetero.terminal").aligned("\n".join([self.table(), *self.sums()]))


def line_of_script() -> str:
    """The innermost line that runs and is of none of the libraries."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    folders = "<frozen ", *(os.path.dirname(f) + os.sep for f in files if f)
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith(folders):
            return f"{os.path.basename(file)}:{line}"
    return "?"


def shapes(*arrays: Any) -> str:
    """Shapes and dtypes: "512x512, 9x9 float64"."""
    sizes = ", ".join("x".join(map(str, a.shape)) for a in arrays)
    return f"{sizes} {'/'.join(dict.fromkeys(str(a.dtype) for a in arrays))}"


def copies_of(candidate: Any) -> float:
    """Seconds of a candidate's copies to devices and back."""
    return candidate.terms.get("upload", 0.0) + candidate.terms.get("download", 0.0)


def price_of(candidate: Any) -> str:
    """A candidate's prediction in words."""
    seconds, copies = candidate.seconds, copies_of(candidate)
    price = "not priced" if seconds is None else f"predicted {readable(seconds)}"
    price += f" by {candidate.method} on {candidate.device}"
    return price + f" with {readable(copies)} of copies" * bool(copies)


# -- When hetero is loaded ------------------------------------------------------------------------


class Loading:
    """Whether loading hetero pays, by the calls of this run and the last one, or ``at_once``."""

    def __init__(self, at_once: bool) -> None:
        self._began = time.perf_counter()
        # Seconds of calls that are enough, None before one was looked at; when the script will have
        # run so long that its end can't take back much.
        self.enough, self._due = 0.0 if at_once else None, 0.0
        # Seconds of all calls, as if each were the plain library's, and of the last run's; what
        # hetero saves of them; the fraction that it is expected to save.
        self.spent = self._before = self.gained = self._share = 0.0
        self._is_guess = False  # whether the plain library was not measured in some

    def pays(self) -> bool:
        """Whether hetero is there, or is worth loading now."""
        inventory = sys.modules.get("hetero.profile.inventory")
        if inventory is not None and inventory.looked():  # by a script that uses hetero itself, too
            return True
        if self.enough is None:
            self._look()
        return self.spent >= self.enough and time.perf_counter() >= self._due

    def count(self, seconds: float, gained: float | None = None, is_guess: bool = False) -> None:
        """Count a call: the plain library's seconds, maybe a guess, and of these what hetero
        gained, None where it is not loaded."""
        self.spent += seconds
        self.gained += self._share * seconds if gained is None else gained
        self._is_guess |= is_guess

    def _look(self) -> None:
        """Find out what is enough, by what is here and what the last run took."""
        with_device = has_device()
        loading, self._share = LOADING[with_device], SAVED[with_device]
        self.enough, self._due = GAIN * loading / self._share, self._began + loading / _LOSS
        file = getattr(sys.modules["__main__"], "__file__", None)
        if not (file and os.path.isfile(file)):  # a notebook, or the standard input
            return
        paths = load("hetero.paths")
        cache = paths.cache_directory()
        # After profiles were written or loops compiled, calls may gain otherwise.
        folders = [f for f in (cache / "profiles", cache / "loops") if any(f.glob("*"))]
        changes = [folder.stat().st_mtime for folder in folders]
        script = repr((file, sys.argv[1:], with_device, changes)).encode()
        name = load("hashlib").blake2b(script, digest_size=16).hexdigest()
        if kept := paths.cached("accel", name):
            self._before, gained = map(float, kept.split())
            self._share = gained / self._before
            if gained >= GAIN * loading:
                self.enough = self._due = 0.0
        atexit.register(self._keep, name, os.getpid())

    def _keep(self, name: str, process: int) -> None:
        """Keep what the calls took and gained at the end of the process, if that is not little."""
        if self.spent <= (0.0 if self._before else _KEPT) or os.getpid() != process:  # a fork of it
            return
        if self._is_guess and self._before:  # the last run measured what this one did without
            self.gained += self._before - self.spent
            self.spent = self._before
        load("hetero.paths").cache("accel", name, f"{self.spent} {self.gained}".encode())


@functools.cache
def has_device() -> bool:
    """Whether the system has nodes of devices that a package here can use; nothing is loaded for
    the answer."""
    if glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"):
        return True
    return bool(glob.glob("/dev/dri/renderD*")) and importlib.util.find_spec("pyopencl") is not None


# -- Who computes a call ---------------------------------------------------------------------------


def unseen(function: Any) -> Any:
    """The function itself; `warnings.warn` counts its frame no more than those of an import.

    So a warning is one of the line that calls what the function stands for.
    """
    code = function.__code__
    function.__code__ = code.replace(
        co_filename=f"<frozen importlib._bootstrap: {code.co_filename}>"
    )
    return function


def is_failure(error: Exception) -> bool:
    """Whether an error within a call of hetero's is one of hetero's, and not of the script.

    A signal handler, a debugger or another thread raises its own in the middle of a call. Then
    other code than hetero's is in the traceback, or defines the error's class.
    """
    frames = (frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [type(error).__module__, *(names.get("__name__", "") for names in frames)]
    return _COMPUTING.issuperset(name.partition(".")[0] for name in modules)


@unseen
def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """A result and its seconds."""
    begin = time.perf_counter()
    return function(), time.perf_counter() - begin


class _Known:
    """Of one function and size: the least seconds by the plain library and by hetero, and the
    number of calls that each did; those count as hetero's in which it failed."""

    def __init__(self, name: str) -> None:
        self.plain = self.taken = math.inf
        self.samples = self.calls = 0


# Whether this is within a call of hetero's: nothing that it calls is looked at.
inside: ContextVar[bool] = ContextVar("inside", default=False)


class Session:
    """What one installation knows and has seen.

    ``verbose`` prints the first note of each line, call and reason on the standard error; ``dry``
    leaves all calls to the plain libraries; ``recording`` notes also what nothing can be done
    about.
    """

    def __init__(self, verbose: bool = False, dry: bool = False, recording: bool = False) -> None:
        self._known = functools.lru_cache(_MOST)(_Known)
        self.book = Book()
        self.verbose, self.dry, self.recording = verbose, dry, recording or verbose
        self.eager = os.environ.get("HETERO_ACCEL_LEAST") == "0"
        self.least = 0.0 if self.eager else LEAST
        self.loading = Loading(self.eager or dry)

    @unseen
    def run(self, function: str, attempt: Attempt, plain: Callable[[], Any]) -> Any:
        """The result of a call, by whoever computes it."""
        if attempt.obstacle:  # what it calls itself may be taken
            result, seconds = timed(plain)
            self.note(Note(function, attempt.what, "", attempt.obstacle, "", seconds))
            return result
        known, saved = self._known(f"{function} {attempt.what}"), 0.0
        with tables.setting(inside, True):
            expected = known.plain if known.samples else attempt.seconds
            code, text, result, ours = self._by_hetero(attempt, known, expected)
            seconds = ours
            if code != "taken":
                result, seconds = timed(plain)
                known.plain, known.samples = min(known.plain, seconds), known.samples + 1
                self.loading.count(seconds, None if code == "start" else -ours)
                ours += seconds * bool(ours)
            else:
                self.loading.count(expected, expected - seconds, not known.samples)
                if known.samples > 1:  # a first call alone may have loaded something, too
                    saved = known.plain - seconds
            known.calls += bool(ours)
            if ours and known.calls > 1:  # the first one may have loaded or compiled something
                known.taken = min(known.taken, ours)
        self.note(Note(function, attempt.what, "", code, text, seconds, saved))
        return result

    def note(self, note: Note) -> None:
        """Enter a call into the book; without its line, which takes 10 us to find, while hetero is
        not loaded and nobody reads notes."""
        if self.recording or note.code != "start":
            note = note._replace(line=line_of_script())
        if self.book.add(note) and self.verbose and sys.stderr:
            with contextlib.suppress(Exception):  # it may be closed
                print(f"hetero.accel: {note}", file=sys.stderr)

    @unseen
    def _by_hetero(
        self, attempt: Attempt, known: _Known, expected: float
    ) -> tuple[str, str, Any, float]:
        """(code, text, result, seconds where hetero was to compute it); a result where the code is
        "taken"."""
        if not self.loading.pays():
            return "start", "", None, 0.0
        if known.calls > 3 and known.taken > _MARGIN * expected and not self.eager:
            text = f"{readable(expected)} without hetero, measured {readable(known.taken)}"
            return "slower", text, None, 0.0
        use, begin = contextlib.nullcontext(), time.perf_counter()
        try:
            load("hetero.ops.functions")  # in another thread it and BLAS lose more time
            if load("hetero.calling.planner").wanted():  # but the plain library's are on the host
                use = load("hetero.calling.planner").use(results="host")
            with use:
                plan = attempt.plan()
                code, text = self._verdict(plan, attempt, known, expected)
                if code == "taken":
                    begin = time.perf_counter()
                    result = attempt.compute(plan)
                    code, text = _NOT_FINITE if result is None else (code, text)
                    return code, text, result, time.perf_counter() - begin
            # An operand that comes again is moved once earlier calls have lost the time of a move.
            if code == "plain-is-fastest" and plan.kept:
                load("hetero.moving.keeping").count(plan)
            return code, text, None, 0.0
        except Exception as error:  # whatever failed, the plain library says what is wrong
            if not is_failure(error):
                raise
            text = f"{type(error).__name__}: {error}"
            return "failed", text, None, time.perf_counter() - begin

    def _verdict(
        self, plan: Any, attempt: Attempt, known: _Known, expected: float
    ) -> tuple[str, str]:
        """(code, text) of a plan; ``expected``: seconds by the plain library."""
        chosen = plan.chosen
        seconds, text = chosen.seconds, price_of(chosen)
        if attempt.is_plain(chosen):
            return "plain-is-fastest", text
        if not (self.eager or known.samples >= SAMPLES or expected >= MEASURED):
            return "first", f"{text}, which takes over after {SAMPLES} calls"
        if seconds is None or attempt.iterates or known.calls > 3:
            seconds = 0.0  # nothing to compare
        elif plan.kept:
            seconds -= copies_of(chosen)  # which later calls do not pay
        guessed = "" if known.samples else "guessed "
        text = f"{guessed}{readable(expected)} without hetero, {text}"
        if seconds > _MARGIN * expected and not self.eager:
            return "slower", text
        return "would-take" if self.dry else "taken", text


current: Session | None = None  # while something is installed


def looks(seconds: float) -> bool:
    """Whether a call is to be looked at that is expected to take this long: none within a call of
    hetero's, and none after `uninstall`."""
    return current is not None and seconds >= current.least and not inside.get()
