"""What was taken and what was not as a page for a browser, in the style of `hetero report`'s."""

from __future__ import annotations

from html import escape
from typing import Any

from hetero import paths
from hetero.accel.notes import HEAD
from hetero.evaluation.page import markup

_WORDS = (0, 1, 6)  # columns that hold no numbers


def page(command: list[str], installed: Any) -> str:
    """The whole page, which loads nothing."""
    book = installed.session.book
    rows = book.table()
    first, *advice = book.sums()
    taken = [row for row in rows if row[-1].startswith("taken")]
    left = [row for row in rows if not row[-1].startswith("taken")]
    none = markup.paragraph("None.")
    sections = {
        "Taken": markup.table("Longest first.", HEAD, taken, _WORDS) if taken else none,
        "Left alone": markup.table("Longest first.", HEAD, left, _WORDS) if left else none,
        "To gain more": markup.items(map(escape, advice)) if advice else none,
        "Not caught": markup.items(map(escape, installed.missed))
        if installed.missed
        else markup.paragraph("No module had imported a function by name before."),
    }
    return markup.document(" ".join(command), markup.paragraph(first), sections)


def write(file: str, command: list[str], installed: Any) -> None:
    """Write the page to a file."""
    paths.replace_file(paths.Path(file), page(command, installed).encode())
