"""One call at a time: is it worth looking at, what does its plan say, who computes it.

Every caught call becomes an `Attempt`. Until loading hetero pays (`Loading`) all are the plain
library's. From then on the plan decides, and what was measured of the same call overrules it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from hetero.accel.loading import Loading
from hetero.accel.patching import is_failure, unseen
from hetero.imports import load
from hetero.times import readable

# Seconds that a call is expected to take, to be looked at. With 0 in the environment each call is,
# and is taken unless its plan is the plain library's.
LEAST = 1e-3
# A size's first calls are the plain library's, to measure it, if they take less than these seconds.
# The very first one of a process may have loaded something, so that one tells nothing.
MEASURED, SAMPLES = 0.1, 2
_MARGIN = 1.05  # times the plain library's time, from which a call is left to it
_PATIENCE = 3  # failures in a row, after which hetero leaves calls of that size alone
_NOT_FINITE = "not-finite", "NaN, infinity or no convergence, which the plain library reports"
_LIBRARIES = ("numpy", "scipy", "sklearn", "skimage", "hetero")  # no lines of a script
# Reason -> what a script, or its user, can change to gain more; nothing for others: docs/accel.md.
ADVICE = {
    "would-take": "leave --dry-run out",
    "start": "run the script again, which has hetero at once where such calls took long enough",
    "first": "make calls of the same size again: the first two of each are measured as they are",
    "no-device": "take a machine with a GPU; `hetero advise` says what one would do",
    "copies": "use operands again without writing to them, so that copies stay on the device",
    "dtype": "give arrays of float32 or float64",
    "type": "give plain NumPy arrays, and no class of your own",
    "option": "leave the option out",
}
_MOST = 4096  # rows of a table; the oldest is given up
_HEAD = ("line", "call", "calls", "time", "saved", "reason")


class Attempt(NamedTuple):
    """A call that hetero could do."""

    what: str  # shapes and dtypes
    seconds: float  # expected of the plain library, roughly
    obstacle: tuple[str, str] | None = None  # (code, text): why it is that library's in any case
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

    def __str__(self) -> str:
        return f"{self.line}: {self.function} {self.what}: {self.code}: {self.text}"

    def cells(self) -> list[str]:
        """As `_HEAD` names them."""
        gain = readable(self.saved) if self.saved else "not known" * (self.code == "taken")
        call, seconds = f"{self.function} {self.what}", readable(self.seconds)
        cells = self.line, call, str(self.calls), seconds, gain, f"{self.code}: {self.text}"
        return [cell.replace("|", "/") for cell in cells]


class Book:
    """All notes of an installation, summed by line, call and reason."""

    def __init__(self) -> None:
        self.last: Note | None = None
        self.calls: Counter[str] = Counter()  # by reason, also of rows that were given up
        self._rows: dict[tuple[Any, ...], Note] = {}
        self._saved, self._began = 0.0, time.perf_counter()

    def add(self, note: Note) -> bool:
        """Count a call; whether it is the first of its line, call and reason."""
        key, none = note[:4], note._replace(seconds=0.0, saved=0.0, calls=0)
        *_, seconds, saved, calls = _row_of(self._rows, key, lambda: none)
        sums = seconds + note.seconds, saved + note.saved, calls + 1
        self._rows[key] = Note(*note[:5], *sums)
        self.calls[note.code] += 1
        self._saved += note.saved
        self.last = note
        return calls == 0

    def rows(self) -> list[Note]:
        """The rows, those that took most time first."""
        return sorted([*self._rows.values()], key=lambda row: -row.seconds)

    def table(self) -> str:
        """The rows as a table in Markdown."""
        return "\n".join(f"| {' | '.join(x)} |" for x in (_HEAD, *(r.cells() for r in self.rows())))

    def sums(self) -> list[str]:
        """What it comes to, and what to change to gain more, in sentences."""
        taken, whole = self.calls["taken"], readable(time.perf_counter() - self._began)
        left = self.calls.total() - taken
        found = f"{calls_in_words(taken)} taken, {left} left alone, in {whole}"
        if self._saved:
            about = f"about {readable(abs(self._saved))} {'lost' if self._saved < 0 else 'saved'}"
            found += f"; {about}, by the least time of such a call without hetero"
        more = [(code, calls_in_words(self.calls[code])) for code in ADVICE if self.calls[code]]
        return [found, *(f"{code}, {n}: to gain more, {ADVICE[code]}" for code, n in more)]

    def __str__(self) -> str:
        return load("hetero.terminal").aligned("\n".join([self.table(), *self.sums()]))


class _Known:
    """Of one function and size: the least seconds by the plain library and by hetero, and the
    number of calls that each did; failures in a row, and what is done about them."""

    def __init__(self) -> None:
        self.plain = self.taken = math.inf
        self.samples = self.calls = self.failures = 0
        self.obstacle: tuple[str, str] | None = None


class Session:
    """What one installation knows and has seen.

    ``verbose`` prints the first note of each line, call and reason on the standard error; ``dry``
    leaves all calls to the plain libraries; ``recording`` notes also what nothing can be done
    about.
    """

    def __init__(self, verbose: bool = False, dry: bool = False, recording: bool = False) -> None:
        self._known: dict[str, _Known] = {}
        self.book = Book()
        self.verbose, self.dry, self.recording = verbose, dry, recording or verbose
        self.eager = os.environ.get("HETERO_ACCEL_LEAST") == "0"
        self.least = 0.0 if self.eager else LEAST
        self.loading = Loading(self.eager or dry)
        self._thread = threading.local()

    def looks(self, seconds: float) -> bool:
        """Whether a call is to be looked at that is expected to take this long: none within a call
        of hetero's, what that calls is the plain library's; and none after `uninstall`."""
        return seconds >= self.least and not getattr(self._thread, "inside", False)

    def waits(self) -> bool:
        """Whether the plain library computes a call, and nothing else is asked: loading hetero does
        not pay, and nobody reads notes. The call is counted."""
        if self.recording or self.loading.pays():
            return False
        self.book.calls["start"] += 1
        return True

    @unseen
    def run(self, function: str, attempt: Attempt, plain: Callable[[], Any]) -> Any:
        """The result of a call, by whoever computes it."""
        known, guess = _row_of(self._known, f"{function} {attempt.what}", _Known), attempt.seconds
        if attempt.obstacle is None and self.waits():
            return self.by_library(function, guess, plain, known)[0]
        loading, plan, result, saved = self.loading, None, None, 0.0
        code, text = attempt.obstacle or known.obstacle or ("", "")
        if not (code or loading.pays()):
            code, text = "start", str(loading)
        if not code:
            expected = known.plain if known.samples else loading.expected(function, guess)
            try:
                if not loading.is_loaded:
                    self._timed(loading.load)
                with _on_host():
                    plan, _ = self._timed(attempt.plan)
                    code, text = self._verdict(plan, attempt, known, expected)
                    if code == "taken":
                        result, seconds = self._timed(lambda: attempt.compute(plan))
                        code, text = _NOT_FINITE if result is None else (code, text)
            except Exception as error:  # whatever failed, the plain library says what is wrong
                if not is_failure(error):
                    raise
                code, text = "failed", f"{type(error).__name__}: {error}"
        if code == "taken":
            known.calls, known.failures = known.calls + 1, 0
            if known.calls > 1:  # the first one may have loaded or compiled something
                known.taken = min(known.taken, seconds)
            loading.spent += expected
            loading.gained += expected - seconds
            if known.samples > 1:  # a first call alone may have loaded something, too
                saved = known.plain - seconds
        else:
            # An operand that comes again is moved once earlier calls have lost the time of a move.
            if code in ("plain-is-fastest", "copies") and plan.kept:
                load("hetero.moving.keeping").count(plan)
            if attempt.obstacle is None:
                result, seconds = self.by_library(function, guess, plain, known)
            else:  # what it calls itself may be taken
                result, seconds = self._timed(plain, inside=False)
            if code in ("failed", "not-finite"):  # and the call is no wrong one
                known.failures += 1
                known.obstacle = (code, text) if known.failures >= _PATIENCE else None
            text = text.replace("HERE", readable(seconds))
        note = Note(function, attempt.what, line_of_script(), code, text, seconds, saved)
        if self.book.add(note) and self.verbose:
            print(f"hetero.accel: {note}", file=sys.stderr)
        return result

    @unseen
    def _timed(self, function: Callable[[], Any], inside: bool = True) -> tuple[Any, float]:
        """A result and its seconds; nothing that it calls is looked at, where it is inside."""
        before = getattr(self._thread, "inside", False)
        self._thread.inside = inside or before
        begin = time.perf_counter()
        try:
            return function(), time.perf_counter() - begin
        finally:
            self._thread.inside = before

    @unseen
    def by_library(
        self, function: str, guess: float, plain: Callable[[], Any], known: _Known | None = None
    ) -> tuple[Any, float]:
        """The plain library's result and its seconds, which are counted."""
        result, seconds = self._timed(plain)
        self.loading.count(function, guess, seconds)
        if known is not None:
            known.plain, known.samples = min(known.plain, seconds), known.samples + 1
        return result, seconds

    def _verdict(
        self, plan: Any, attempt: Attempt, known: _Known, expected: float
    ) -> tuple[str, str]:
        """(code, text) of a plan; ``expected``: seconds by the plain library."""
        chosen = plan.chosen
        if attempt.is_plain(chosen):
            every = [c for part in plan.leaves() for c in part.candidates if c.device != "cpu"]
            others = [c for c in every if c.reason is None and c.seconds is not None]
            if not others:
                text = "measured HERE; nothing is faster on this CPU, and there is no GPU"
                return "plain-is-fastest", text
            best = min(others, key=lambda c: c.seconds)
            is_held_up = best.seconds - copies_of(best) < (chosen.seconds or math.inf)
            text = f"measured HERE without hetero, {price_of(best)}"
            return "copies" if is_held_up else "plain-is-fastest", text
        seconds, price = chosen.seconds, price_of(chosen)
        if not (self.eager or known.samples >= SAMPLES or expected >= MEASURED):
            return "first", f"{price}, which takes over after {SAMPLES} calls"
        if known.calls > 3:
            price = f"{readable(known.taken)} by {chosen.method} on {chosen.device}"
            seconds = known.taken
        elif seconds is None or attempt.iterates:
            seconds = 0.0  # nothing to compare
        elif plan.kept:
            seconds -= copies_of(chosen)  # which later calls do not pay
        basis = "measured" if known.samples else "expected"
        text = f"{basis} {readable(expected)} without hetero, {price}"
        if seconds > _MARGIN * expected and not self.eager:
            return "slower", text
        return "would-take" if self.dry else "taken", text


def _row_of(table: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """A row of a table that holds `_MOST`: made where there is none, for the oldest one."""
    if key not in table and len(table) >= _MOST:
        oldest, *_ = table  # at once, for other threads add rows
        table.pop(oldest, None)
    return table.setdefault(key, make())


def _on_host() -> Any:
    """A block in which results are on the host, as the plain library's are, whatever `use` says."""
    use = load("hetero.calling.planner").use
    is_asked = load("hetero.moving.results").wanted()
    return use(results="host") if is_asked else contextlib.nullcontext()


def copies_of(candidate: Any) -> float:
    """Seconds of a candidate's copies to devices and back."""
    return candidate.terms.get("upload", 0.0) + candidate.terms.get("download", 0.0)


def price_of(candidate: Any) -> str:
    """A candidate's prediction in words."""
    seconds, copies = candidate.seconds, copies_of(candidate)
    price = "not priced" if seconds is None else f"predicted {readable(seconds)}"
    price += f" by {candidate.method} on {candidate.device}"
    return price + f" with {readable(copies)} of copies" * bool(copies)


def calls_in_words(number: int) -> str:
    """A number of calls: "1 call", "2 calls"."""
    return f"{number} call{'s' * (number != 1)}"


def line_of_script() -> str:
    """The innermost line that runs and is of none of the libraries."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    folders = "<frozen ", *(os.path.dirname(f) + os.sep for f in files if f)
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(folders):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


def shapes(*arrays: Any) -> str:
    """Shapes and dtypes: "512x512, 9x9 float64"."""
    sizes = ", ".join("x".join(map(str, a.shape)) for a in arrays)
    return f"{sizes} {'/'.join(dict.fromkeys(_name(a.dtype) for a in arrays))}"


_name = functools.lru_cache(64)(str)  # of a dtype, which takes NumPy 2 us
