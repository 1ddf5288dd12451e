"""SVG as text: elements, and pictures with a title and a description that can be read out.

Pictures are 360 units wide, so that their text is readable on a phone, and have no colour of their
own: `hetero.evaluation.page.style` gives that, by classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import count

WIDTH = 360
FONT = 10.5  # units
# In font sizes, on the wide side of usual sans-serif fonts.
_LETTER, _NARROW, _BROAD = 0.6, 0.36, 0.96


def element(name: str, content: str | Iterable[str] = "", **attributes: object) -> str:
    """An element; its content is markup. ``class_`` is "class", ``stroke_width`` "stroke-width"."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = content if isinstance(content, str) else "\n".join(content)
    return f"<{name}{given}>{inner}</{name}>" if inner else f"<{name}{given}/>"


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """A line of text."""
    return element("text", escape(content), x=x, y=y, **attributes)


def width(content: str, font: float = FONT) -> float:
    """About how wide a line of text is, in units."""
    narrow = sum(content.count(letter) for letter in "ijltfI.,:;'|()[]1 ")
    broad = sum(content.count(letter) for letter in "mwMW@%")
    other = len(content) - narrow - broad
    return font * (narrow * _NARROW + broad * _BROAD + other * _LETTER)


def fitting(content: str, room: float, font: float = FONT) -> str:
    """The text, cut where it is wider than the room."""
    if width(content, font) <= room:
        return content
    while content and width(content, font) > room - font:
        content = content[:-1]
    return content + "…"


class Names:
    """Names for the elements of one page, each given once."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self) -> str:
        return f"p{next(self._numbers)}"


def picture(names: Names, title: str, told: str, height: float, parts: Iterable[str]) -> str:
    """A whole picture.

    Parameters
    ----------
    names : Names
    title, told : str
        Its title, and what there is to see, for who cannot.
    height : float
        Units.
    parts : iterable of str
    """
    name = names.new()
    return element(
        "svg",
        [
            element("title", escape(title), id=f"{name}t"),
            element("desc", escape(told), id=f"{name}d"),
            *parts,
        ],
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_labelledby=f"{name}t {name}d",
        font_size=FONT,
    )


def _text(value: object) -> str:
    short = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return escape(short)
