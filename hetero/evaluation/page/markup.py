"""HTML as text: elements, tables, lists; the whole document by `template.html`.

The template has how everything looks: light or dark as the reader has it, one column on a phone. It
lets nothing be loaded or run, whatever stands in the names that a machine gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

_TEMPLATE = Path(__file__).with_name("template.html")


def paragraph(text: str, class_: str = "") -> str:
    """Plain text as a paragraph; what stands in backticks is code."""
    content = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f"<p{_class(class_)}>{content}</p>"


def heading(level: int, text: str, name: str = "") -> str:
    """A heading, which a link can lead to by its name."""
    named = f' id="{escape(name)}"' if name else ""
    return f"<h{level}{named}>{escape(text)}</h{level}>"


def figure(picture: str, title: str, lines: Iterable[str] = (), more: str = "") -> str:
    """A picture with its title and some lines of text below; ``more`` is markup."""
    text = "".join(paragraph(line) for line in lines)
    head = paragraph(title, "title")
    return f"<figure>{picture}<figcaption>{head}{text}{more}</figcaption></figure>"


def side_by_side(figures: Iterable[str]) -> str:
    """Figures, side by side where there is the room."""
    return "\n".join(['<div class="figures">', *figures, "</div>"])


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = (0,)
) -> str:
    """A table whose first column names the rows; columns in ``words`` hold no numbers."""
    words = set(words)
    lines = ["<table>", f"<caption>{escape(caption)}</caption>", "<thead><tr>"]
    lines += [
        f'<th scope="col"{_class("words" * (column in words))}>{escape(cell)}</th>'
        for column, cell in enumerate(head)
    ]
    lines.append("</tr></thead><tbody>")
    for first, *cells in rows:
        lines.append(f'<tr><th scope="row">{escape(first)}</th>')
        lines += [
            f"<td{_class('words' * (column in words))}>{escape(cell)}</td>"
            for column, cell in enumerate(cells, 1)
        ]
        lines.append("</tr>")
    return "".join([*lines, "</tbody></table>"])


def folded(summary: str, content: str) -> str:
    """Markup that is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def items(found: Iterable[str], class_: str = "") -> str:
    """A list of markup."""
    return f"<ul{_class(class_)}>{''.join(f'<li>{one}</li>' for one in found)}</ul>"


def facts(found: Mapping[str, Any]) -> str:
    """Names and values, those of values that are mappings within them."""
    lines = ["<dl>"]
    for name, value in found.items():
        over = ""
        if isinstance(value, Mapping) and value:
            content, over = facts(value), _class("over")
        elif isinstance(value, Mapping):
            content = "none"
        elif isinstance(value, (list, tuple)):
            content = items(escape(str(one)) for one in value) if value else "none"
        else:
            content = escape("none" if value is None else str(value))
        lines.append(
            f"<dt{over}>{escape(str(name).replace('_', ' '))}</dt><dd{over}>{content}</dd>"
        )
    return "".join([*lines, "</dl>"])


def document(title: str, first: str, sections: Mapping[str, str]) -> str:
    """The whole page: what is ``first`` stands before the contents; sections by their headings."""
    names = {text: f"s{number}" for number, text in enumerate(sections, 1)}
    contents = items(f'<a href="#{name}">{escape(text)}</a>' for text, name in names.items())
    parts = []
    for text, name in names.items():
        parts += [f'<section aria-labelledby="{name}">', heading(2, text, name), sections[text]]
        parts.append("</section>")
    given = {"title": escape(title), "first": first, "contents": contents}
    return Template(_TEMPLATE.read_text("utf-8")).substitute(given, sections="\n".join(parts))


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
