"""One call at a time: is it worth looking at, what does its plan say, who computes it.

Every caught call becomes an `Attempt`. Until attempts have taken some time (`LOADING`), or one of
them is expected to, all are the plain library's. Then hetero is loaded, and from then on the plan
decides, and what was measured of the same call overrules it.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

from hetero.accel.notes import Book, Note, line_of_script
from hetero.accel.patching import unseen
from hetero.imports import load
from hetero.times import readable

# Seconds that a call is expected to take, to be looked at. With 0 in the environment each call is,
# and is taken unless its plan is the plain library's.
LEAST, ENVIRONMENT = 1e-3, "HETERO_ACCEL_LEAST"
# Without and with a GPU: seconds of calls after which hetero is loaded, and what loading, the first
# context and its end take about. A GPU saves nearly all of a call's time, other loops half of it.
LOADING = {False: (1.0, 1.0), True: (0.3, 0.6)}
MEASURED = 0.1  # seconds: a shorter call's first one is the plain library's, to measure that
_MARGIN = 1.05  # times the plain library's time, measured, from which it is left to it again
_PATIENCE = 3  # failures in a row, after which hetero leaves calls of that size alone
_NOT_SCIPYS = "NaN, infinity or no convergence, which is the plain library's to report"


class Attempt(NamedTuple):
    """A call that hetero could do.

    Attributes
    ----------
    what : str
        Shapes and dtypes.
    seconds : float
        Expected of the plain library, roughly.
    obstacle : (code, text) or None
        Why it is the plain library's in any case.
    plan, compute : callable
        ``plan()`` gives hetero's plan, ``compute(plan)`` the result; None where that must be the
        plain library's.
    own : tuple of str
        The methods on the CPU that are the plain library's way.
    operands : tuple of array
        Those that may stay on a device.
    again : bool
        Whether calls before count: what is known of operands decides.
    """

    what: str
    seconds: float
    obstacle: tuple[str, str] | None = None
    plan: Callable[[], Any] = lambda: None
    own: tuple[str, ...] = ()
    compute: Callable[[Any], Any] = lambda plan: None
    operands: tuple[Any, ...] = ()
    again: bool = False

    def is_plain(self, candidate: Any) -> bool:
        """Whether a candidate of the plan is the plain library's way."""
        return candidate.device == "cpu" and candidate.method in self.own


class _Known:
    """Of one function and size: the least seconds by the plain library and by hetero, the number
    of calls that hetero did, and why it does no more."""

    def __init__(self) -> None:
        self.plain = self.taken = math.inf
        self.calls = self.failures = 0
        self.obstacle: tuple[str, str] | None = None

    def count(self, seconds: float) -> None:
        """Count a call that hetero did."""
        self.calls, self.failures = self.calls + 1, 0
        if self.calls > 1:  # the first one may have loaded or compiled something
            self.taken = min(self.taken, seconds)


class Session:
    """What one installation knows and has seen.

    Parameters
    ----------
    verbose : bool
        Print the first note of each line, call and reason on the standard error.
    dry : bool
        Decide, and leave all calls to the plain libraries.
    recording : bool
        Note also what nothing can be done about.
    watcher : callable, optional
        ``watcher(call, attempt, line, seconds, iterations)`` sees each call; none is taken.
    """

    def __init__(
        self, verbose: bool = False, dry: bool = False, recording: bool = False, watcher: Any = None
    ) -> None:
        self.book = Book()
        self.verbose, self.dry, self.watcher = verbose, dry, watcher
        self.recording = recording or verbose or watcher is not None
        self.iterations = 0  # of a solve that the watcher is to see
        asked = os.environ.get(ENVIRONMENT, "")
        self.least = float(asked) if asked.replace(".", "", 1).isdecimal() else LEAST
        self.eager = self.least == 0
        self.loading = LOADING[False][0] * (not self.eager)
        self._spent, self._is_loaded = 0.0, False
        self._known: dict[tuple[str, str], _Known] = {}
        self._thread = threading.local()

    def looks(self, seconds: float) -> bool:
        """Whether a call is to be looked at that is expected to take this long."""
        return seconds >= self.least and not self.is_inside()

    def is_inside(self) -> bool:
        """Whether this thread is in a call of hetero's: what that calls is the plain library's.

        After `uninstall` every call is.
        """
        return self.least == math.inf or getattr(self._thread, "inside", False)

    @unseen
    def run(self, function: str, attempt: Attempt, plain: Callable[[], Any]) -> Any:
        """The result of a call, by whoever computes it."""
        if self.watcher is not None:
            result, seconds = self._timed(plain)
            more, self.iterations = getattr(result, "n_iter_", self.iterations), 0
            call = f"{function} {attempt.what}"
            self.watcher(call, attempt, line_of_script(), seconds, more)
            return result
        known = self._known.setdefault((function, attempt.what), _Known())
        plan, (code, text) = None, attempt.obstacle or known.obstacle or ("", "")
        if not code and not self._load(attempt.seconds):
            code = "start"
            text = f"hetero is loaded after {readable(self.loading)} of such calls, "
            text += f"{readable(self._spent)} so far"
        if not code:
            try:
                plan, _ = self._timed(attempt.plan)
                code, text = self._verdict(plan, attempt, known)
                if code == "taken":
                    result, seconds = self._timed(lambda: attempt.compute(plan))
                    if result is not None:
                        least = known.plain
                        if least == math.inf:
                            least = _plain_seconds(plan, attempt)
                        known.count(seconds)
                        self._note(function, attempt, code, text, seconds, least, _moved(plan))
                        return result
                    code, text = "not-finite", _NOT_SCIPYS
            except Exception as error:  # whatever it is, the plain library says what is wrong
                code, text = "failed", f"{type(error).__name__}: {error}"
        # An operand that comes again is moved once earlier calls have lost the time of a move.
        is_lost = plan is not None and plan.kept
        lost = load("hetero.moving.ski_rental").counted(plan) if is_lost else nullcontext()
        with lost:  # what a call with an obstacle calls itself may be taken
            result, seconds = self._timed(plain, inside=attempt.obstacle is None)
        if attempt.obstacle is None:
            self._spent += seconds
            known.plain = min(known.plain, seconds)
        if code in ("failed", "not-finite"):  # and the call is no wrong one
            known.failures += 1
            known.obstacle = (code, text) if known.failures >= _PATIENCE else None
        self._note(function, attempt, code, text.replace("HERE", readable(seconds)), seconds)
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

    def _load(self, seconds: float) -> bool:
        """Whether hetero is loaded; it is now, where this call's seconds make it worth that.

        The calling thread waits: while another thread imports, the script and BLAS lose more time.
        """
        if not self._is_loaded and self._spent + seconds >= self.loading:
            self._timed(_loads)
            self._is_loaded = True
        return self._is_loaded

    def _verdict(self, plan: Any, attempt: Attempt, known: _Known) -> tuple[str, str]:
        """(code, text) of a plan."""
        chosen, plain = plan.chosen, f"measured {readable(known.plain)} without hetero"
        if attempt.is_plain(chosen):
            return _why_plain(plan)
        way = f"{chosen.method} on {chosen.device}"
        price = "not priced" if chosen.seconds is None else f"predicted {readable(chosen.seconds)}"
        price += f" by {way}"
        if copies := _copies(chosen):
            price += f" with {readable(copies)} of copies"
        if not (self.eager or attempt.again):
            if known.plain == math.inf and attempt.seconds < MEASURED:
                return "first", f"{price}, from the next call on"
            if known.calls > 3 and known.taken > _MARGIN * known.plain:
                return "slower", f"{plain}, {readable(known.taken)} by {way}"
        measured = f"{plain}, " if known.plain < math.inf else ""
        return "would-take" if self.dry else "taken", f"{measured}{price}"

    def _note(self, function: str, attempt: Attempt, *rest: Any) -> None:
        note = Note(function, attempt.what, line_of_script(), *rest)
        if self.book.add(note) and self.verbose:
            print(f"hetero.accel: {note}", file=sys.stderr)


def _loads() -> None:
    """Load what plans need, and look for devices."""
    with suppress(Exception):  # of a broken installation: the first plan says so
        load("hetero.ops")
        load("hetero.profile.inventory").devices()


def _copies(candidate: Any) -> float:
    return candidate.terms.get("upload", 0.0) + candidate.terms.get("download", 0.0)


def _why_plain(plan: Any) -> tuple[str, str]:
    """(code, text) of a plan that is the plain library's way."""
    every = [c for part in plan.leaves() for c in part.candidates if c.device != "cpu"]
    others = [c for c in every if c.reason is None and c.seconds is not None]
    if not others:
        text = "measured HERE; nothing is faster on this CPU, and there is no GPU"
        return "plain-is-fastest", text
    best = min(others, key=lambda c: c.seconds)
    copies = _copies(best)
    text = f"measured HERE without hetero, predicted {readable(best.seconds)} by {best.method} on "
    text += f"{best.device} with {readable(copies)} of copies"
    is_held_up = best.seconds - copies < (plan.chosen.seconds or math.inf)
    return "copies" if is_held_up else "plain-is-fastest", text


def _plain_seconds(plan: Any, attempt: Attempt) -> float | None:
    """What the plan expects of the plain library; None where it has no price."""
    priced = (c.seconds for c in plan.candidates if c.reason is None and attempt.is_plain(c))
    return next((seconds for seconds in priced if seconds is not None), None)


def _moved(plan: Any) -> int:
    """Bytes that go to devices and back."""
    total = 0
    for part in plan.leaves():
        device, problem = part.chosen.device, part.problem
        if device != "cpu":
            total += problem.output.nbytes
            total += sum(o.nbytes for o in problem.inputs if device not in o.copies)
    return total


def planned(operation: str, *operands: Any, **options: Any) -> Any:
    """The plan of an operation's call."""
    return load("hetero.ops").plan(operation, *operands, **options)


def wrapped(
    session: Session, name: str, original: Any, recognise: Callable[..., Any], least: int = 0
) -> Any:
    """A function in the place of ``original``: calls that ``recognise`` knows may be hetero's.

    ``recognise(looks, *args, **options)`` gives an `Attempt`, or None where a call is no matter of
    hetero's; whatever it raises, the original is called. Where the first two arguments' sizes have
    a smaller product than ``least``, it is not asked: that takes 1 us, a small filter 20.
    """
    looks, small, least = session.looks, session.book.small, 0 if session.eager else least

    @functools.wraps(original)
    @unseen
    def function(*args: Any, **options: Any) -> Any:
        attempt = None
        try:
            if not least or len(args) < 2 or args[0].size * args[1].size >= least:
                attempt = recognise(looks, *args, **options)
        except Exception:  # a wrong argument: the original says so
            pass
        if attempt is None:
            small[name] += 1
            return original(*args, **options)
        return session.run(name, attempt, functools.partial(original, *args, **options))

    return function
