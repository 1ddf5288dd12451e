"""SVG as text: elements, pictures with a title and a description that can be read out, logarithmic
scales with their axes, and marks that tell things apart without colour.

Pictures are 360 units wide, so that their text is readable on a phone. They have no colour of their
own: `template.html` gives that, by classes. Number i has the i-th dashes, marker and hatch, and the
colour of class ``c<i>``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from hetero.times import readable

WIDTH = 360
FONT = 10.5  # units
BASELINE = 0.35 * FONT  # from the middle of a letter down
# In font sizes, on the wide side of usual sans-serif fonts.
_LETTER, _NARROW, _BROAD = 0.6, 0.36, 0.96
_ROOM = 0.03  # of the length, beyond all values
_DASHES = (None, "7 3", "2 2", "9 3 2 3", "5 2 1 2 1 2", "12 3", "4 4", "1 3", "6 2 2 2 2 2", "3 1")
_MARKERS = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",  # circle
    "M-2.6 -2.6h5.2v5.2h-5.2z",  # square
    "M0 -3.4l3.4 6h-6.8z",  # triangle
    "M0 -3.8l3.4 3.8l-3.4 3.8l-3.4 -3.8z",  # diamond
    "M0 3.4l3.4 -6h-6.8z",  # triangle, upside down
    "M-1 -3.2h2v2.2h2.2v2h-2.2v2.2h-2v-2.2h-2.2v-2h2.2z",  # cross
    "M3.4 0l-6 3.4v-6.8z",  # to the left
    "M-3.4 0l6 3.4v-6.8z",  # to the right
    "M-1.6 -3.2h3.2l1.6 3.2l-1.6 3.2h-3.2l-1.6 -3.2z",  # hexagon
    "M-3.2 -1.6h6.4v3.2h-6.4z",  # bar
)

Writer = Callable[[float], str]


# -- Elements --------------------------------------------------------------------------------------


def element(name: str, content: str | Iterable[str] = "", **attributes: object) -> str:
    """An element; its content is markup. ``class_`` is "class", ``stroke_width`` "stroke-width"."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = content if isinstance(content, str) else "\n".join(content)
    return f"<{name}{given}>{inner}</{name}>" if inner else f"<{name}{given}/>"


def _attribute(value: object) -> str:
    short = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return escape(short)


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """A line of text."""
    return element("text", escape(content), x=x, y=y, **attributes)


def width(content: str) -> float:
    """About how wide a line of text is, in units."""
    narrow = sum(content.count(letter) for letter in "ijltfI.,:;'|()[]1 ")
    broad = sum(content.count(letter) for letter in "mwMW@%")
    other = len(content) - narrow - broad
    return FONT * (narrow * _NARROW + broad * _BROAD + other * _LETTER)


def fitting(content: str, room: float) -> str:
    """The text, cut where it is wider than the room."""
    if width(content) <= room:
        return content
    while content and width(content) > room - FONT:
        content = content[:-1]
    return content + "…"


def picture(title: str, description: str, height: float, parts: Iterable[str]) -> str:
    """A whole picture; ``description`` says what there is to see, for who cannot.

    No two pictures of a page have one title.
    """
    name = f"p{zlib.crc32(title.encode()):x}"
    return element(
        "svg",
        [
            element("title", escape(title), id=f"{name}t"),
            element("desc", escape(description), id=f"{name}d"),
            *parts,
        ],
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_labelledby=f"{name}t {name}d",
        font_size=FONT,
    )


# -- Marks -----------------------------------------------------------------------------------------


class Numbers(dict[str, int]):
    """Name -> its number, given when it is first asked for; the same in all pictures that share
    them."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def coloured(number: int, style: str) -> str:
    """The classes of what has a number's colour."""
    return f"c{number % len(_MARKERS)} {style}"


def dashes(number: int) -> str | None:
    """The dashes of a line, None for a solid one."""
    return _DASHES[number % len(_DASHES)]


def marker(number: int, x: float, y: float, style: str) -> str:
    """A sample's mark; ``style`` is "full" or "hollow"."""
    return element(
        "path",
        d=_MARKERS[number % len(_MARKERS)],
        transform=f"translate({x:.1f} {y:.1f})",
        class_=coloured(number, style),
    )


def hatch(number: int) -> str:
    """What fills a region: a pattern of the template's."""
    return f"url(#hatch{number % len(_MARKERS)})"


# -- Scales and axes -------------------------------------------------------------------------------


class Scale(NamedTuple):
    """From values to units of a picture, logarithmically."""

    least: float  # values at the two ends
    most: float
    begin: float  # and their places
    end: float

    def at(self, value: float) -> float:
        part = math.log(value / self.least) / math.log(self.most / self.least)
        return self.begin + part * (self.end - self.begin)


def limits(values: Iterable[float]) -> tuple[float, float]:
    """The least and the most value, apart."""
    values = [*values]
    least, most = min(values), max(values)
    return (least, most) if least < most else (least / 2, most * 2)


def with_room(values: Iterable[float]) -> tuple[float, float]:
    """Some room beyond the least and the most value; and a tick at least, at a power of ten."""
    least, most = limits(values)
    room = (most / least) ** _ROOM
    least, most = least / room, most * room
    if not decades(least, most):
        least = 10.0 ** math.floor(math.log10(least))
    return least, most


def decades(least: float, most: float, number: int = 7) -> list[float]:
    """Powers of ten from least to most, every second one and so on where there are too many; where
    there are few their double and fivefold, too."""
    first, last = math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9)
    if last - first < 2:
        ticks = [f * 10.0**power for power in range(first - 1, last + 1) for f in (1, 2, 5)]
        return [tick for tick in ticks if least * (1 - 1e-9) <= tick <= most * (1 + 1e-9)]
    step = max(1, math.ceil((last - first + 1) / number))
    return [10.0**power for power in range(first, last + 1, step)]


def doublings(least: float, most: float, number: int = 6) -> list[float]:
    """Powers of two likewise."""
    first, last = math.ceil(math.log2(least) - 1e-9), math.floor(math.log2(most) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / number))
    return [2.0**power for power in range(first, last + 1, step)]


def x_axis(
    scale: Scale, ticks: Sequence[float], write: Writer, name: str, floor: float, grid: str
) -> list[str]:
    """An axis along the floor of a picture; each tick's line goes on from there as ``grid`` says.

    A tick is left out where its text would lie over that of the one before.
    """
    parts, taken = [], 0.0
    for tick in ticks:
        at, half = scale.at(tick), width(write(tick)) / 2
        if at - half >= taken:
            taken = at + half + 3
            parts.append(element("path", d=f"M{at:.1f} {floor:g}{grid}", class_="grid"))
            parts.append(text(write(tick), at, floor + 13, text_anchor="middle"))
    middle = (scale.begin + scale.end) / 2
    return [*parts, text(name, middle, floor + 27, text_anchor="middle", class_="name")]


def y_axis(
    scale: Scale, ticks: Sequence[float], write: Writer, name: str, left: float, grid: str
) -> list[str]:
    """An axis along the left side of a picture, likewise."""
    parts = []
    for tick in ticks:
        at = scale.at(tick)
        parts.append(element("path", d=f"M{left:g} {at:.1f}{grid}", class_="grid"))
        parts.append(text(write(tick), left - 4, at + 3.5, text_anchor="end"))
    return [*parts, text(name, 2, 10, class_="name")]


# -- Values as text --------------------------------------------------------------------------------


def whole(value: float) -> str:
    """A size as it is written: 4096, 32k, 1M."""
    for unit, scale in (("M", 1 << 20), ("k", 1 << 10)):
        if value >= 16 * scale or (unit == "M" and value >= scale):
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}"


def in_bytes(value: float) -> str:
    """Bytes: 64 KiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def when(text: str) -> str:
    """A time as it is kept, for a reader: 2026-11-24 17:41 UTC."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text


def rate(value: float) -> str:
    """Bytes per second: 55 GB/s."""
    return f"{value / 1e12:.3g} TB/s" if value >= 999.5e9 else f"{value / 1e9:.3g} GB/s"


def seconds(value: float) -> str:
    """A time at an axis; from ten thousand seconds on in powers of ten."""
    if value < 9999.5:
        return readable(value) if value < 59.5 else f"{value:.0f} s"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)} s"


def mean_error(errors: Mapping[str, float]) -> str:
    """The mean of relative errors, where it is known."""
    return f"{errors['mean']:.0%}" if "mean" in errors else "-"
