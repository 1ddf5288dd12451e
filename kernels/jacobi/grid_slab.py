"""A slab of a grid in a device's memory, and ranges of its rows."""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES, VECTOR_BYTES, ceil_div, check_dtype

__all__ = ["GridSlab", "Ranges", "two"]


class GridSlab(NamedTuple):
    """A slab of a grid as it lies in a buffer of a device."""

    dims: int  # 2 or 3
    held: int  # rows (2-D) or planes (3-D) in the buffer
    first: int  # where the grid begins and ends, in rows of the buffer: 0 and `held`,
    last: int  # or beyond them where the slab has neighbours
    lines: int  # of a plane; 1 in 2-D
    columns: int  # points of a line
    pitch: int  # elements from one line to the next, a multiple of those in 16 bytes
    dtype: str
    spacing: tuple[float, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], spacing: tuple[float, ...], dtype: str) -> GridSlab:
        """A whole grid of ``shape`` points, alone on a device."""
        width = VECTOR_BYTES // check_dtype(dtype)
        lines = shape[1] if len(shape) == 3 else 1
        pitch = ceil_div(shape[-1], width) * width
        return cls(
            len(shape), shape[0], 0, shape[0], lines, shape[-1], pitch, dtype, tuple(spacing)
        )

    def slab(self, begin: int, held: int) -> GridSlab:
        """``held`` rows of this grid, from row ``begin`` on."""
        return self._replace(held=held, first=self.first - begin, last=self.last - begin)

    @property
    def packed(self) -> bool:
        """Whether one line begins where the one before ends, as in the caller's arrays."""
        return self.pitch == self.columns

    @property
    def plane_bytes(self) -> int:
        """Bytes of a row (a plane in 3-D)."""
        return self.lines * self.pitch * ELEMENT_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.held * self.plane_bytes

    def weights(self) -> tuple[float, float, float]:
        """1 / spacing^2 along rows, lines (0 in 2-D) and columns."""
        weights = [1.0 / step**2 for step in self.spacing]
        return (weights[0], 0.0, weights[1]) if self.dims == 2 else (*weights,)

    def factors(self) -> tuple[float, float, float, float]:
        """The weights over the matrix's diagonal, and one over the diagonal."""
        weights = self.weights()
        diagonal = 2.0 * sum(weights)
        return (*(weight / diagonal for weight in weights), 1.0 / diagonal)


Ranges = tuple[tuple[int, int], ...]


def two(rows: Ranges) -> tuple[int, int, int, int]:
    """Begin and end of two ranges; a second one that is not there is empty."""
    if not 1 <= len(rows) <= 2 or any(begin >= end for begin, end in rows):
        raise ValueError(f"rows must be one or two ranges that are not empty, got {rows}")
    second = rows[1] if len(rows) == 2 else (rows[0][1], rows[0][1])
    return (*rows[0], *second)
