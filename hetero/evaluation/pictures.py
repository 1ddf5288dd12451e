"""Pictures of curves, by matplotlib where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INSTALL = "a picture needs matplotlib, the extra 'plot': pip install matplotlib"
_USUAL = "png"


def figure(width: float = 8.0, height: float = 5.0) -> Any | None:
    """An empty figure of so many inches, which no screen shows; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def check(path: str) -> None:
    """Raise ValueError, before anything is measured, for a kind of file that matplotlib does not
    write; nothing without matplotlib."""
    found = figure(1.0, 1.0)
    if found is None:
        return
    kinds = found.canvas.get_supported_filetypes()
    if _kind(path) not in kinds:
        raise ValueError(
            f"a picture's file must end in one of {', '.join('.' + kind for kind in sorted(kinds))}"
            f", got {path!r}"
        )


def save(made: Any, path: str) -> None:
    """Write a figure to a file, whose name tells the kind; PNG where it does not."""
    made.savefig(path, format=_kind(path))


def _kind(path: str) -> str:
    return Path(path).suffix[1:].lower() or _USUAL
