"""What was taken and what was left alone: a note of each call, and their sum as a table."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from hetero.times import readable

# Reason code -> what a script, or its user, can change to gain more.
CODES = {
    "taken": "",
    "would-take": "leave --dry-run out",
    "plain-is-fastest": "",
    "slower": "",
    "first": "make calls of the same size again: the first of each is measured as it is",
    "start": "",
    "no-device": "take a machine with a GPU; `hetero advise` says what one would do",
    "copies": "use operands again without writing to them, so that copies stay on the device",
    "dtype": "give arrays of float32 or float64",
    "type": "give plain NumPy arrays, and no class of your own",
    "option": "leave the option out",
    "not-finite": "",
    "failed": "",
}
HEAD = ("line", "call", "calls", "time", "saved", "moved", "reason")
_LIBRARIES = ("numpy", "scipy", "sklearn", "skimage", "hetero")


class Note(NamedTuple):
    """One call.

    Attributes
    ----------
    function, what, line : str
        Its name, such as "scipy.signal.fftconvolve"; shapes and dtypes; "script.py:12".
    code, text : str
        The reason, one of `CODES`, and its figures.
    seconds : float
        Measured.
    plain : float or None
        Of a call that was taken: the plain library's seconds, measured or predicted.
    moved : int
        Bytes to devices and back.
    """

    function: str
    what: str
    line: str
    code: str
    text: str
    seconds: float
    plain: float | None = None
    moved: int = 0

    def __str__(self) -> str:
        return f"{self.line}: {self.function} {self.what}: {self.code}: {self.text}"


class Book:
    """All notes of an installation, summed by line, call and reason."""

    def __init__(self) -> None:
        self.last: Note | None = None
        self.small: Counter[str] = Counter()
        self._rows: dict[tuple[str, ...], list[Any]] = {}  # calls, seconds, plain, moved, text
        self._began = time.perf_counter()

    def add(self, note: Note) -> bool:
        """Count a call; whether it is the first of its line, call and reason."""
        key = note.line, f"{note.function} {note.what}", note.code
        is_new = key not in self._rows
        row = self._rows.setdefault(key, [0, 0.0, 0.0, 0, ""])
        plain = None if row[2] is None or note.plain is None else row[2] + note.plain
        row[:] = row[0] + 1, row[1] + note.seconds, plain, row[3] + note.moved, note.text
        self.last = note
        return is_new

    def table(self) -> list[list[str]]:
        """Rows as `HEAD` names their columns, those that took most time first."""
        rows = []
        for (line, call, code), (calls, seconds, plain, moved, text) in sorted(
            self._rows.items(), key=lambda item: -item[1][1]
        ):
            saved = "not known" if plain is None else readable(plain - seconds)
            bytes_ = f"{moved / 1e6:.3g} MB" if moved else ""
            saved = saved if code == "taken" else ""
            rows.append(
                [line, call, str(calls), readable(seconds), saved, bytes_, f"{code}: {text}"]
            )
        return rows

    def sums(self) -> list[str]:
        """What it comes to, and what to change to gain more, in sentences."""
        calls: Counter[str] = Counter()
        saved, unknown, moved = 0.0, 0, 0
        for (_, _, code), (count, seconds, plain, bytes_, _) in list(self._rows.items()):
            calls[code] += count
            moved += bytes_
            if code == "taken":
                saved, unknown = saved + (plain or seconds) - seconds, unknown + count * (not plain)
        whole = readable(time.perf_counter() - self._began)
        lines = [
            f"{_calls(calls['taken'])} taken, {calls.total() - calls['taken']} left alone, in "
            f"{whole}; about {readable(abs(saved))} {'lost' if saved < 0 else 'saved'}, "
            "by the least time of such a call without hetero"
            + f", {unknown} of the calls taken not compared" * bool(unknown)
            + f", {moved / 1e6:.4g} MB moved" * bool(moved)
        ]
        if small := self.small.total():
            lines.append(f"{_calls(small)} not looked at: too small, or nothing that hetero does")
        return lines + [
            f"{code}, {_calls(calls[code])}: to gain more, {advice}"
            for code, advice in CODES.items()
            if calls[code] and advice
        ]

    def __str__(self) -> str:
        rows = [HEAD, *self.table()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self.sums()])


def _calls(number: int) -> str:
    return f"{number} call{'s' * (number != 1)}"


def line_of_script() -> str:
    """The innermost line that runs and is of none of the libraries."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    folders, frame = (
        ("<frozen ", *(os.path.dirname(f) + os.sep for f in files if f)),
        sys._getframe(1),
    )
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
    return f"{sizes} {'/'.join(dict.fromkeys(str(a.dtype) for a in arrays))}"
