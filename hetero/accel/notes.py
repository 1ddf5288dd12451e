"""What was taken and what was left alone: a note of each call, and their sum as a table."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hetero.imports import load
from hetero.times import readable

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
MOST = 4096  # rows of a table; the oldest is given up
HEAD = ("line", "call", "calls", "time", "saved", "reason")
_LIBRARIES = ("numpy", "scipy", "sklearn", "skimage", "hetero")


class Note(NamedTuple):
    """One call."""

    function: str  # its name, such as "scipy.signal.fftconvolve"
    what: str  # shapes and dtypes
    line: str  # "script.py:12"
    code: str  # the reason
    text: str  # with its figures
    seconds: float  # measured
    saved: float = 0.0  # of what such a call takes without hetero, where that is known

    def __str__(self) -> str:
        return f"{self.line}: {self.function} {self.what}: {self.code}: {self.text}"


class Book:
    """All notes of an installation, summed by line, call and reason."""

    def __init__(self) -> None:
        self.last: Note | None = None
        self.calls: Counter[str] = Counter()  # by reason, also of rows that were given up
        self._rows: dict[tuple[str, ...], list[Any]] = {}  # calls, seconds, saved, text
        self._saved, self._began = 0.0, time.perf_counter()

    def add(self, note: Note) -> bool:
        """Count a call; whether it is the first of its line, call and reason."""
        key = note.line, f"{note.function} {note.what}", note.code
        row = row_of(self._rows, key, lambda: [0, 0.0, 0.0, ""])
        row[:] = row[0] + 1, row[1] + note.seconds, row[2] + note.saved, note.text
        self.calls[note.code] += 1
        self._saved += note.saved
        self.last = note
        return row[0] == 1

    def table(self) -> list[list[str]]:
        """Rows as `HEAD` names their columns, those that took most time first."""
        rows = []
        for key, row in sorted([*self._rows.items()], key=lambda item: -item[1][1]):
            (line, call, code), (calls, seconds, saved, text) = key, row
            gain = readable(saved) if saved else "not known" * (code == "taken")
            rows.append([line, call, str(calls), readable(seconds), gain, f"{code}: {text}"])
        return rows

    def sums(self) -> list[str]:
        """What it comes to, and what to change to gain more, in sentences."""
        taken, whole = self.calls["taken"], readable(time.perf_counter() - self._began)
        found = (
            f"{calls_in_words(taken)} taken, {self.calls.total() - taken} left alone, in {whole}"
        )
        if self._saved:
            about = f"about {readable(abs(self._saved))} {'lost' if self._saved < 0 else 'saved'}"
            found += f"; {about}, by the least time of such a call without hetero"
        return [found] + [
            f"{code}, {calls_in_words(self.calls[code])}: to gain more, {advice}"
            for code, advice in ADVICE.items()
            if self.calls[code]
        ]

    def __str__(self) -> str:
        cells = ([cell.replace("|", "/") for cell in row] for row in (HEAD, *self.table()))
        table = [f"| {' | '.join(row)} |" for row in cells]
        return load("hetero.terminal").aligned("\n".join([*table, *self.sums()]))


def row_of(table: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """A row of a table that holds `MOST`: made where there is none, for the oldest one."""
    if key not in table and len(table) >= MOST:
        oldest, *_ = table  # at once, for other threads add rows
        table.pop(oldest, None)
    return table.setdefault(key, make())


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


def shapes(arrays: Iterable[Any]) -> str:
    """Shapes and dtypes: "512x512, 9x9 float64"."""
    arrays = tuple(arrays)
    sizes = ", ".join("x".join(map(str, a.shape)) for a in arrays)
    return f"{sizes} {'/'.join(dict.fromkeys(_name(a.dtype) for a in arrays))}"


_name = functools.lru_cache(64)(str)  # of a dtype, which takes NumPy 2 us
