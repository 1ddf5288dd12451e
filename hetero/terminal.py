"""What commands show: progress, a bar on a terminal; messages; tables."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from itertools import groupby

from tqdm import tqdm

Progress = Callable[[float, str], object]

_FORMAT = "[{bar:30}] {desc}"
_shown: list[Bar] = []


class Bar(tqdm):
    """Progress from 0 to 1 on a terminal, with a text; text above it by `tqdm.write`."""

    monitor_interval = 0  # no thread that wakes up while calls are timed

    def __init__(self) -> None:
        super().__init__(total=1.0, bar_format=_FORMAT, ascii=".#", file=sys.stderr, leave=False)

    def __call__(self, fraction: float, text: str) -> None:
        self.n = min(max(fraction, 0.0), 1.0)
        self.set_description_str(text)


def silent(fraction: float, text: str) -> None:
    """Progress that nobody sees."""


def progress_bar() -> Progress:
    """A `Bar` on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return silent
    _shown.append(Bar())
    return _shown[-1]


def clear() -> None:
    """Erase the bars that are on the screen."""
    while _shown:
        _shown.pop().close()


def line(text: str) -> None:
    """Print to the standard output, above the bar."""
    tqdm.write(text)
    sys.stdout.flush()


class LogHandler(logging.StreamHandler):
    """Log records on the standard error, each on a line of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=self.stream)


def aligned(text: str) -> str:
    """A text with its Markdown tables as columns of equal width, numbers to the right."""
    lines = []
    for is_table, part in groupby(text.split("\n"), lambda line: line.startswith("|")):
        if not is_table:
            lines += part
            continue
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part]
        rows = [row for row in rows if set("".join(row)) != {"-"}]
        columns = [*zip(*rows, strict=True)]
        right = [all(not cell or cell[0].isdigit() for cell in one[1:]) for one in columns]
        widths = [max(map(len, one)) for one in columns]
        for row in rows:
            cells = [
                cell.rjust(width) if figures else cell.ljust(width)
                for cell, width, figures in zip(row, widths, right, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
