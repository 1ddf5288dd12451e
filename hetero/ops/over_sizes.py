"""Problems over one or two sizes, for pictures: each operation names its own.

An operation's module of benchmarks has ``LINES``, a tuple of `Line`, and may have ``PLANES``, a
tuple of `Plane`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Dims = tuple[int, ...]


class Axis(NamedTuple):
    """One size.

    Attributes
    ----------
    name : str
    least, most : int
    """

    name: str
    least: int
    most: int

    def sizes(self, parts: int = 4) -> list[int]:
        """Sizes from the least to the most, ``parts`` for each doubling."""
        sizes = {self.most}
        size = self.least
        while size < self.most:
            sizes |= {min(round(size * (1 + part / parts)), self.most) for part in range(parts)}
            size *= 2
        return sorted(sizes)


class Line(NamedTuple):
    """Problems over one size.

    Attributes
    ----------
    text : str
        The dimensions in words, such as "n x n".
    axis : Axis
    dims : callable
        ``dims(n)`` gives the dimensions as the command line takes them.
    """

    text: str
    axis: Axis
    dims: Callable[[int], Dims]


class Plane(NamedTuple):
    """Problems over two sizes.

    Attributes
    ----------
    text : str
    x, y : Axis
    dims : callable
        ``dims(x, y)``.
    """

    text: str
    x: Axis
    y: Axis
    dims: Callable[[int, int], Dims]
