"""HTML as text: paragraphs, tables, lists, and the document around them.

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
:root{color-scheme:light dark;--ground:#fff;--text:#1b1b1b;--soft:#5c5c5c;--rule:#d8d8d8}
@media (prefers-color-scheme:dark){:root{--ground:#16181a;--text:#ececec;--soft:#a8a8a8;
--rule:#3c4043}figure svg{filter:invert(.93) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
main{max-width:1240px;margin:0 auto;padding:1rem clamp(.5rem,3vw,1rem)}
h1{font-size:1.5rem;line-height:1.25}
h2{font-size:1.25rem;margin-top:2.5rem;border-top:1px solid var(--rule);padding-top:1rem}
p,nav ul{max-width:48rem}
nav ul{padding:0;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;list-style:none}
a{color:inherit}
.soft,caption,summary{color:var(--soft);font-size:.875rem;text-align:left}
.warn{border-left:4px solid #d55e00;padding-left:.75rem}
.side{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
.side>div{border:1px solid var(--rule);border-radius:8px;padding:.25rem 1rem .75rem}
.side h2{font-size:1rem;margin:.5rem 0;padding:0;border:0}
.big{font-size:1.375rem;font-weight:600}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;max-width:480px;height:auto}
figcaption{font-weight:600}
table{border-collapse:collapse;font-size:.8125rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .5rem .2rem 0;text-align:right;vertical-align:top;font-weight:400;
border-bottom:1px solid var(--rule)}
th:first-child,.words{text-align:left}
pre{overflow-x:auto;font-size:.8125rem;line-height:1.35}
code,pre{font-family:ui-monospace,monospace}
</style></head><body><main><h1>$title</h1>
$first
<nav aria-label="Contents">$contents</nav>
$sections
</main></body></html>
""")


def paragraph(text: str, class_: str = "") -> str:
    """Plain text as a paragraph; what stands in backticks is code."""
    content = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f"<p{_class(class_)}>{content}</p>"


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = (0,)
) -> str:
    """A table whose first column names the rows; columns in ``words`` hold no numbers."""
    words = set(words)

    def line(cells: Sequence[str], first: str, rest: str) -> str:
        made = []
        for column, cell in enumerate(cells):
            tag, style = rest if column else first, _class("words" * (column in words))
            made.append(f"<{tag}{style}>{escape(cell)}</{tag[:2]}>")
        return f"<tr>{''.join(made)}</tr>"

    column = 'th scope="col"'
    body = "".join(line(row, 'th scope="row"', "td") for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead>{line(head, column, column)}</thead>"
        f"<tbody>{body}</tbody></table>"
    )


def items(found: Iterable[str], class_: str = "") -> str:
    """A list of markup."""
    return f"<ul{_class(class_)}>{''.join(f'<li>{one}</li>' for one in found)}</ul>"


def folded(summary: str, content: str) -> str:
    """Markup that is shown when the reader opens it."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def boxes(found: Iterable[str]) -> str:
    """Pieces of markup, next to each other where there is the room."""
    return f'<div class="side">{"".join(f"<div>{one}</div>" for one in found)}</div>'


def document(title: str, first: str, sections: Mapping[str, str]) -> str:
    """The whole page: ``first`` stands before the contents; sections by their headings."""
    names = {text: f"s{number}" for number, text in enumerate(sections, 1)}
    contents = items(f'<a href="#{name}">{escape(text)}</a>' for text, name in names.items())
    parts = [
        f'<section><h2 id="{name}">{escape(text)}</h2>{sections[text]}</section>'
        for text, name in names.items()
    ]
    given = {"title": escape(title), "first": first, "contents": contents}
    return _DOCUMENT.substitute(given, sections="\n".join(parts))


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
