"""What was taken and what was not as a page for a browser, in the style of `hetero report`'s."""

from __future__ import annotations

from typing import Any

from hetero import paths
from hetero.accel.notes import HEAD
from hetero.evaluation import markup

_MARK = b"<!-- by hetero.accel -->"
_NONE = markup.paragraph("None.")


def page(command: list[str], installed: Any) -> str:
    """The whole page, which loads nothing."""
    book = installed.session.book
    rows = book.table()
    first, *advice = book.sums()
    taken = [row for row in rows if row[-1].startswith("taken")]
    sections = {
        "Taken": _table(taken),
        "Left alone": _table([row for row in rows if row not in taken]),
        "To gain more": "".join(map(markup.paragraph, advice)) or _NONE,
        "Not caught": "".join(map(markup.paragraph, installed.missed))
        or markup.paragraph("No module had imported a function by name before."),
    }
    return markup.document(" ".join(command), markup.paragraph(first), sections)


def _table(rows: list[list[str]]) -> str:
    """A table without the columns that are empty, for which a telephone has no room."""
    if not rows:
        return _NONE
    used = [column for column in zip(HEAD, *rows, strict=True) if any(column[1:])]
    return markup.paragraph("Longest first.") + markup.table(zip(*used, strict=True))


def obstacle(file: str) -> str | None:
    """Why no page is written to a file: it is there, and is no such page."""
    path = paths.Path(file)
    if not path.exists() or (path.is_file() and path.read_bytes().endswith(_MARK)):
        return None
    return f"{file} is there already, and is no report of hetero.accel's"


def write(file: str, command: list[str], installed: Any) -> None:
    """Write the page to a file; OSError where that is not possible, or it is another file."""
    if why := obstacle(file):
        raise FileExistsError(why)
    paths.replace_file(paths.Path(file), page(command, installed).encode() + _MARK)
