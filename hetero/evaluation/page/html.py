"""HTML as text: elements, tables, lists, the whole document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from hetero.evaluation.page.style import STYLE

# Nothing may be loaded or run, whatever stands in the names that a machine gives.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def paragraph(text: str, class_: str = "") -> str:
    """Plain text as a paragraph."""
    return f"<p{_class(class_)}>{escape(text)}</p>"


def heading(level: int, text: str, name: str = "") -> str:
    """A heading, which a link can lead to by its name."""
    named = f' id="{escape(name)}"' if name else ""
    return f"<h{level}{named}>{escape(text)}</h{level}>"


def figure(picture: str, title: str, lines: Iterable[str] = (), more: str = "") -> str:
    """A picture with its title and some lines of text below; ``more`` is markup."""
    text = "".join(paragraph(line) for line in lines)
    head = paragraph(title, "title")
    return f"<figure>{picture}<figcaption>{head}{text}{more}</figcaption></figure>"


def figures(found: Iterable[str]) -> str:
    """Figures side by side where there is the room."""
    return "\n".join(['<div class="figures">', *found, "</div>"])


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = (0,)
) -> str:
    """A table whose first column names the rows; columns in ``words`` hold no numbers."""
    words = set(words)
    lines = ["<table>", f"<caption>{escape(caption)}</caption>", "<thead><tr>"]
    lines += [f'<th scope="col">{escape(cell)}</th>' for cell in head]
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


def document(title: str, sections: Mapping[str, str], first: str, common: str) -> str:
    """The whole page.

    Parameters
    ----------
    title : str
    sections : mapping
        Heading -> markup.
    first : str
        Markup between the title and the contents.
    common : str
        Markup that pictures refer to.
    """
    names = {text: f"s{number}" for number, text in enumerate(sections, 1)}
    contents = items(f'<a href="#{name}">{escape(text)}</a>' for text, name in names.items())
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title>",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<link rel="icon" href="data:,">',
        f"<style>{STYLE}</style></head><body>",
        common,
        f"<main><h1>{escape(title)}</h1>",
        first,
        f'<nav aria-label="Contents">{contents}</nav>',
    ]
    for text, content in sections.items():
        name = names[text]
        parts += [f'<section aria-labelledby="{name}">', heading(2, text, name), content]
        parts.append("</section>")
    return "\n".join([*parts, "</main></body></html>", ""])


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
