"""What a person at a terminal sees of a command while it runs: one line, drawn over itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

Progress = Callable[[float, str], None]

_WIDTH = 30
_drawn: list[Bar] = []


class Bar:
    """What is done now and how far it is; call it with a fraction from 0 to 1 and a text."""

    def __call__(self, fraction: float, text: str) -> None:
        filled = round(_WIDTH * min(max(fraction, 0.0), 1.0))
        bar = "#" * filled + "." * (_WIDTH - filled)
        done = fraction >= 1.0
        print(f"\r[{bar}] {text[:46]:<46}", end="\n" * done, file=sys.stderr, flush=True)
        _drawn[:] = [] if done else [self]


def progress_bar() -> Bar | None:
    """A bar on a terminal, None elsewhere."""
    return Bar() if sys.stderr.isatty() else None


def clear() -> None:
    """Take away the bar that is on the screen, so that other text has the line to itself."""
    if _drawn:
        _drawn.clear()
        print(f"\r{'':<{_WIDTH + 49}}\r", end="", file=sys.stderr, flush=True)


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
    """Progress of a part that goes from one fraction of the whole to another."""
    if progress is None:
        return None
    return lambda fraction, text: progress(start + (end - start) * min(fraction, 1.0), text)
