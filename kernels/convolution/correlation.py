"""What every plan of a 2-D correlation begins with: its problem, checked and transposed."""

from __future__ import annotations

from typing import NamedTuple

from ..common.boundaries import BOUNDARIES
from ..common.launch import ceil_div, check_dtype

__all__ = [
    "SHARED_BYTES",
    "WARP",
    "Correlation",
    "correlation",
    "count_blocks",
    "fetch_rows",
]

WARP = 32
SHARED_BYTES = 49152  # of shared memory that a kernel may declare
_MOST_BLOCKS = (1 << 31) - 1
_FETCHES = 12  # loads that a thread has in flight as a tile is filled


class Correlation(NamedTuple):
    """A correlation, transposed if need be so that rows lie in memory."""

    batch: int
    height: int
    width: int
    filter_height: int
    filter_width: int
    out_height: int
    out_width: int
    top: int
    left: int
    boundary: int
    dtype: str
    image: tuple[int, int, int]
    out: tuple[int, int, int]
    tap_strides: tuple[int, int]
    transposed: bool

    def vectors(self, strides: tuple[int, int, int], rows: int, alignment: int, width: int) -> bool:
        """Whether rows can be read or written in vectors of ``width`` elements."""
        return (
            alignment >= width * check_dtype(self.dtype)
            and strides[2] == 1
            and (rows == 1 or strides[1] % width == 0)
            and (self.batch == 1 or strides[0] % width == 0)
        )


def correlation(
    batch: int,
    extents: tuple[int, int],
    taps: tuple[int, int],
    outs: tuple[int, int],
    before: tuple[int, int],
    boundary: str,
    dtype: str,
    image: tuple[int, int, int],
    out: tuple[int, int, int],
    tap_strides: tuple[int, int] | None = None,
) -> Correlation:
    """Check the arguments, and transpose them where columns lie in memory."""
    tap_strides = tap_strides or (taps[1], 1)
    check_dtype(dtype)
    if boundary not in BOUNDARIES:
        valid = ", ".join(BOUNDARIES)
        raise ValueError(f"boundary must be one of {valid}, got {boundary!r}")
    transposed = extents[0] > 1 and (extents[1] == 1 or abs(image[1]) < abs(image[2]))
    if transposed:
        extents, taps, outs, before = extents[::-1], taps[::-1], outs[::-1], before[::-1]
        image, out = (image[0], image[2], image[1]), (out[0], out[2], out[1])
        tap_strides = tap_strides[::-1]
    where = BOUNDARIES.index(boundary)
    strides = tuple(image), tuple(out), tuple(tap_strides)
    return Correlation(batch, *extents, *taps, *outs, *before, where, dtype, *strides, transposed)


def fetch_rows(columns: int) -> int:
    """Rows of a tile whose loads a warp has in flight."""
    return max(1, min(4, _FETCHES // ceil_div(columns, WARP)))


def count_blocks(across: int, down: int, batch: int) -> int:
    """Blocks of a launch."""
    blocks = across * down * batch
    if blocks > _MOST_BLOCKS:
        raise ValueError(f"a launch must have at most {_MOST_BLOCKS} blocks, got {blocks}")
    return blocks
