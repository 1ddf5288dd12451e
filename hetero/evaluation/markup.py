"""HTML as text: paragraphs, tables, and the document around them.

A document follows the reader's light or dark ground, has one column on a phone, and lets nothing be
loaded or run, whatever stands in the names that a machine gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template

_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root{color-scheme:light dark}
body{max-width:1240px;margin:0 auto;padding:1rem;font:16px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
h1,h2{font-size:1.25rem;line-height:1.25}
.soft,summary{opacity:.75;font-size:.875rem}
.side{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
.side>div{border:1px solid #8886;border-radius:8px;padding:.25rem 1rem .75rem;min-width:0}
.big{font-size:1.375rem;font-weight:600}
figure{margin:0}
figure svg{width:100%;height:auto}
@media (prefers-color-scheme:dark){figure svg{filter:invert(.93) hue-rotate(180deg)}}
table{border-collapse:collapse;font-size:.8125rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .5rem .2rem 0;text-align:left;vertical-align:top;font-weight:400;
border-bottom:1px solid #8886}
pre{overflow-x:auto;font-size:.8125rem;line-height:1.35}
</style></head><body><h1>$title</h1>
$content
</body></html>
""")


def paragraph(text: str, class_: str = "") -> str:
    """Plain text as a paragraph; what stands in backticks is code."""
    content = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f'<p class="{class_}">{content}</p>'


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column names the rows."""
    lines = ("</td><td>".join(map(escape, row)) for row in rows)
    return f"<table><tr><td>{'</td></tr><tr><td>'.join(lines)}</td></tr></table>"


def boxes(found: Iterable[str]) -> str:
    """Pieces of markup, next to each other where there is room; nothing where there are none."""
    inside = "".join(f"<div>{one}</div>" for one in found if one)
    return f'<div class="side">{inside}</div>' if inside else ""


def document(title: str, first: str, sections: Mapping[str, str]) -> str:
    """The whole page: ``first``, then the sections that are not empty, by their headings."""
    parts = [f"<h2>{escape(head)}</h2>{text}" for head, text in sections.items() if text]
    return _DOCUMENT.substitute(title=escape(title), content="\n".join([first, *parts]))
