"""Tables for a notebook's cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hetero.imports import load

_LINE = "border-bottom:1px solid rgba(128,128,128,.35)"
_CELL = f"text-align:left;vertical-align:top;padding:.2em .9em .2em 0;{_LINE}"
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CAPTION = "text-align:left;opacity:.75;padding:.25em 0"


def table(caption: str, rows: Iterable[Sequence[str]], first: bool = False) -> str:
    """Rows of plain text as an HTML table that follows the page's colours; the first one bold."""
    escape = load("html").escape
    lines = [f"<table style='{_TABLE}'><caption style='{_CAPTION}'>{escape(caption)}</caption>"]
    for number, row in enumerate(rows):
        weight = ";font-weight:bold" if first and not number else ""
        cells = "".join(f"<td style='{_CELL}{weight}'>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return "".join([*lines, "</table>"])


def tree(value: Mapping[str, Any]) -> str:
    """Plain data in mappings and lists, as lists that can be folded."""
    escape = load("html").escape
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            is_open = "" if len(item) > 12 else " open"
            lines.append(
                f"<details{is_open}><summary>{escape(key)}</summary>{tree(item)}</details>"
            )
        else:
            shown = "; ".join(map(str, item)) if isinstance(item, list) else item
            shown = "none" if shown in (None, "", {}) else str(shown)
            name = f"<span style='opacity:.75'>{escape(key)}</span>"
            lines.append(f"<div>{name}: <span>{escape(shown)}</span></div>")
    return f"<div style='margin-left:1.2em;overflow-wrap:anywhere'>{''.join(lines)}</div>"
