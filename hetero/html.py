"""Tables for a notebook's cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hetero.imports import load

_CELL = "text-align:left;vertical-align:top;padding:0.15em 0.9em 0.15em 0"


def table(caption: str, rows: Iterable[Sequence[str]], first: bool = False) -> str:
    """Rows of plain text as an HTML table that follows the page's colours; the first one bold."""
    escape = load("html").escape
    lines = [f"<table><caption style='text-align:left'>{escape(caption)}</caption>"]
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
            lines.append(f"<div>{escape(key)}: <span>{escape(shown)}</span></div>")
    return f"<div style='margin-left:1.2em'>{''.join(lines)}</div>"
