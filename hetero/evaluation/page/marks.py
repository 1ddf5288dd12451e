"""What tells lines and regions apart without colour: dashes, markers, hatches.

Number i of a picture has the i-th of each, and the colour of class ``c<i>``.
"""

from __future__ import annotations

from hetero.evaluation.page.svg import element

NUMBER = 10  # of colours, dashes, markers and hatches
DASHES = (None, "7 3", "2 2", "9 3 2 3", "5 2 1 2 1 2", "12 3", "4 4", "1 3", "6 2 2 2 2 2", "3 1")
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
_HATCHES = (
    "",
    "M-2 8L8 -2M0 10L10 0",
    "M-2 0L8 10M0 -2L10 8",
    "M0 4H8",
    "M4 0V8",
    "M0 0L8 8M0 8L8 0",
    "M2 2h1.4v1.4h-1.4zM6 6h1.4v1.4h-1.4z",
    "M0 4H8M4 0V8",
    "M0 2H8M0 6H8",
    "M2 0V8M6 0V8",
)


class Numbers(dict[str, int]):
    """Name -> its number, given when it is first asked for; the same in all pictures that share
    them."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def dash(number: int) -> str | None:
    """The dashes of a line, None for a solid one."""
    return DASHES[number % NUMBER]


def marker(number: int, x: float, y: float, hollow: bool = False) -> str:
    """A sample's mark."""
    kind = "hollow" if hollow else "full"
    return element(
        "path",
        d=_MARKERS[number % NUMBER],
        transform=f"translate({x:.1f} {y:.1f})",
        class_=f"c{number % NUMBER} {kind}",
    )


def hatches() -> str:
    """All hatches, defined once for a page."""
    patterns = [
        element(
            "pattern",
            [
                element("rect", width=8, height=8, class_=f"c{number} ground"),
                *([element("path", d=path, class_=f"c{number} hatch")] if path else []),
            ],
            id=f"hatch{number}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for number, path in enumerate(_HATCHES)
    ]
    return element(
        "svg",
        element("defs", patterns),
        width=0,
        height=0,
        style="position:absolute",
        aria_hidden="true",
    )


def hatch(number: int) -> str:
    """What fills a region."""
    return f"url(#hatch{number % NUMBER})"
