"""Progress of a command: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable
from itertools import groupby

Progress = Callable[[float, str], None]

_WIDTH = 30
_BETWEEN = 10.0  # seconds from one line to the next, at least
_ERASE = "\x1b[K"  # what is behind, to the end of the line
_drawn: list[Progress] = []  # the bar, while it is on the screen


def bar(fraction: float, text: str) -> None:
    """Draw a progress bar in place, of a fraction from 0 to 1 and a text."""
    filled = round(_WIDTH * min(max(fraction, 0.0), 1.0))
    room = max(shutil.get_terminal_size((80, 24)).columns - _WIDTH - 4, 20)
    done = fraction >= 1.0
    line = f"\r[{'#' * filled:.<{_WIDTH}}] {text[:room]}{_ERASE}"
    print(line, end="\n" * done, file=sys.stderr, flush=True)
    _drawn[:] = [] if done else [bar]


class Lines:
    """Progress without a terminal: a line now and then on the standard error."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _BETWEEN

    def __call__(self, fraction: float, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _BETWEEN
            print(f"hetero: {fraction:.0%} done, {text}", file=sys.stderr, flush=True)


def progress_bar() -> Progress | None:
    """`bar` on a terminal, None elsewhere."""
    return bar if sys.stderr.isatty() else None


def clear() -> None:
    """Erase the bar from the screen, so that other text has the line to itself."""
    if _drawn:
        _drawn.clear()
        print(f"\r{_ERASE}", end="", file=sys.stderr, flush=True)


def line(text: str) -> None:
    """Print to the standard output, above the bar."""
    clear()
    print(text, flush=True)


class LogHandler(logging.StreamHandler):
    """Log records on the standard error, each on a line of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        clear()
        super().emit(record)


def part(progress: Progress | None, start: float, end: float) -> Progress | None:
    """Progress of a part, from one fraction of the whole to another."""
    if progress is None:
        return None
    return lambda fraction, text: progress(start + (end - start) * min(fraction, 1.0), text)


def aligned(text: str) -> str:
    """A text with its Markdown tables as columns of equal width, numbers to the right."""
    lines = []
    for is_table, part in groupby(text.split("\n"), lambda line: line.startswith("|")):
        if not is_table:
            lines += part
            continue
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part]
        rows = [row for row in rows if set("".join(row)) != {"-"}]
        right = [all(_is_figure(cell) for cell in column[1:]) for column in zip(*rows, strict=True)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.rjust(width) if figures else cell.ljust(width)
                for cell, width, figures in zip(row, widths, right, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_figure(cell: str) -> bool:
    return not cell or cell[0].isdigit()
