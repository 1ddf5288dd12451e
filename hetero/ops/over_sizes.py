"""Problems over one size, for pictures: ``LINES`` of an operation's module of benchmarks."""

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

    def sizes(self) -> list[int]:
        """Sizes from the least to the most, four for each doubling."""
        sizes = {self.most}
        size = self.least
        while size < self.most:
            sizes |= {min(round(size * (1 + part / 4)), self.most) for part in range(4)}
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
