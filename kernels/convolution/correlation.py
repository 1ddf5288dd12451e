"""What every plan of a 2-D correlation begins with: its problem, checked and transposed."""

from __future__ import annotations

from typing import NamedTuple

from ..common.boundaries import BOUNDARIES
from ..common.launch import by_vectors, ceil_div, check_dtype

WARP = 32
SHARED_BYTES = 49152  # of shared memory that a kernel may declare
RESIDENT_THREADS = 512  # of blocks with tiles there, that a multiprocessor is to hold
_MOST_BLOCKS = (1 << 31) - 1
_FETCHES = 12  # loads that a thread has in flight as a tile is filled


class Correlation(NamedTuple):
    """A correlation, transposed if need be so that rows lie in memory."""

    batch: int  # images, at least 1, as all extents
    height: int
    width: int
    filter_height: int  # of the taps, in any proportion to the image
    filter_width: int
    out_height: int
    out_width: int
    top: int  # rows of the filter that lie outside of the image at the first output; >= 0
    left: int  # likewise columns
    boundary: int  # number in `BOUNDARIES` of a constant; periodic; mirrored, the edge repeated
    dtype: str  # of all operands; sums are kept in it too
    image: tuple[int, int, int]  # (batch, row, column) strides in elements, of any sign, or 0
    out: tuple[int, int, int]  # likewise, but not 0
    tap_strides: tuple[int, int]  # (row, column)
    transposed: bool

    @property
    def extents(self) -> tuple[tuple[int, ...], ...]:
        """Of the image and of the filter; of the output, and where it begins: top and left."""
        return self[1:3], self[3:5], self[5:9]

    def vectors(self, strides: tuple[int, int, int], rows: int, alignment: int, width: int) -> bool:
        """Whether rows can be read or written in vectors of ``width`` elements."""
        aligned = alignment >= width * check_dtype(self.dtype)
        return aligned and by_vectors(self.batch, rows, strides, width)


def correlation(
    *,
    batch: int,
    height: int,
    width: int,
    filter_height: int,
    filter_width: int,
    out_height: int,
    out_width: int,
    top: int,
    left: int,
    boundary: str,
    dtype: str,
    image_strides: tuple[int, int, int],
    out_strides: tuple[int, int, int],
    tap_strides: tuple[int, int] | None = None,
) -> Correlation:
    """Check the problem of a plan, given by fields of `Correlation` and the boundary's name, and
    transpose it where columns lie in memory. By default the taps are contiguous."""
    check_dtype(dtype)
    if boundary not in BOUNDARIES:
        valid = ", ".join(BOUNDARIES)
        raise ValueError(f"boundary must be one of {valid}, got {boundary!r}")
    image, out, taps = image_strides, out_strides, tap_strides or (filter_width, 1)
    pairs = [(height, width), (filter_height, filter_width), (out_height, out_width), (top, left)]
    transposed = height > 1 and (width == 1 or abs(image[1]) < abs(image[2]))
    if transposed:
        pairs = [(across, down) for down, across in pairs]
        image, out = (image[0], image[2], image[1]), (out[0], out[2], out[1])
        taps = taps[::-1]
    extents = [extent for pair in pairs for extent in pair]
    where = BOUNDARIES.index(boundary)
    strides = tuple(image), tuple(out), tuple(taps)
    return Correlation(batch, *extents, where, dtype, *strides, transposed)


def fetch_rows(columns: int) -> int:
    """Rows of a tile that a warp loads at once."""
    return max(1, min(4, _FETCHES // ceil_div(columns, WARP)))


def count_blocks(across: int, down: int, batch: int) -> int:
    """Blocks of a launch."""
    blocks = across * down * batch
    if blocks > _MOST_BLOCKS:
        raise ValueError(f"a launch must have at most {_MOST_BLOCKS} blocks, got {blocks}")
    return blocks
