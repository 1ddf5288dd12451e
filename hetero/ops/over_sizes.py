"""Problems over one or two sizes, for pictures: each operation names its own.

An operation's module of benchmarks may have ``LINES``, a tuple of `Line`, and ``PLANES``, a tuple
of `Plane`. Without ``LINES`` all dimensions are equal; without ``PLANES`` there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hetero.ops import benchmark
from hetero.registry import Operation

_LEAST, _MOST = 16, 4096
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


def lines(operation: Operation) -> tuple[Line, ...]:
    """An operation's own, or one of equal dimensions."""
    number = len(operation.dims[0].split())
    text = " x ".join("n" * number)
    equal = Line(f"{text} ({operation.dims[0]})", Axis("n", _LEAST, _MOST), lambda n: (n,) * number)
    return benchmark.of(operation, "LINES", (equal,))


def planes(operation: Operation) -> tuple[Plane, ...]:
    """An operation's own."""
    return benchmark.of(operation, "PLANES", ())
