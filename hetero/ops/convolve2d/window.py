"""Which part of a convolution is wanted, what lies beyond the image."""

from __future__ import annotations

from typing import Any, NamedTuple

NAME = "convolve2d"
DIRECT, SEPARABLE, FFT, SCIPY = "direct", "separable", "fft", "scipy"  # methods
# Methods that add up more than the filter covers: NaN and infinity would spread.
SPREADS = frozenset({SEPARABLE, FFT})
MODES = ("full", "same", "valid")
BOUNDARIES = ("fill", "wrap", "symm")
ALIASES = {"pad": "fill", "circular": "wrap", "symmetric": "symm"}  # as SciPy
# Products of one image's direct sum up to which SciPy's loop on one thread has ended before
# another has begun, by the character of the dtype.
_RESULT = 4  # products in whose time SciPy's loop goes on to the next result
FEW_PRODUCTS = {"f": 1 << 14, "d": 1 << 14, "F": 1 << 16, "D": 1 << 16}


class Window(NamedTuple):
    """Which part of a convolution is wanted, and what lies beyond the image.

    out[i, j] = sum over u, v of taps[u, v] * image[i + u - top, j + v - left], the taps being the
    flipped filter: rotated by 180 degrees.
    """

    height: int  # of the image
    width: int
    filter_height: int
    filter_width: int
    out_height: int
    out_width: int
    top: int  # rows above the image that the first result reads
    left: int  # likewise columns
    boundary: str  # "fill", "wrap" or "symm"; "fill" where nothing beyond the image is read
    filled: bool = False  # whether the fill value is another one than 0
    # Products of a column and a row that make up the filter; 0: too many, or values not known.
    rank: int = 0
    finite: bool = True  # False where image or filter is known to hold NaN or infinity
    # Whether values are known to differ so much in size that a transform would lose small ones.
    wide_range: bool = False

    @property
    def products(self) -> int:
        """Of the direct sum for one image."""
        return self.out_height * self.out_width * self.filter_height * self.filter_width

    def has_few(self, char: str) -> bool:
        """Whether the direct sum of a dtype with this character is SciPy's.

        SciPy's loop takes as long for each result as for four products more.
        """
        results = self.out_height * self.out_width
        return self.products + _RESULT * results <= FEW_PRODUCTS[char]

    @property
    def code(self) -> int:
        """The boundary's number, as kernels know it."""
        return BOUNDARIES.index(self.boundary)

    @property
    def extents(self) -> dict[str, Any]:
        """Sizes, place and boundary, as every launch plan takes them."""
        return dict(zip(self._fields[:9], self, strict=False))

    @property
    def is_outer(self) -> bool:
        """Whether each result is one product, all else zeros beyond the image."""
        thin = min(self.height, self.filter_height) == min(self.width, self.filter_width) == 1
        return thin and (not self.extended or self.filter_height * self.filter_width == 1)

    @property
    def extended(self) -> bool:
        """Whether something other than zeros lies beyond the image."""
        return self.boundary != "fill" or self.filled


def window_of(
    shape: tuple[int, int],
    filter_shape: tuple[int, int],
    mode: str,
    boundary: str = "fill",
    filled: bool = False,
    rank: int = 0,
    finite: bool = True,
    wide_range: bool = False,
) -> Window:
    """The window of a mode; for 'valid', the image is the larger one."""
    (h, w), (fh, fw) = shape, filter_shape
    if mode == "full":
        out, lead = (h + fh - 1, w + fw - 1), (fh - 1, fw - 1)
    elif mode == "same":
        out, lead = (h, w), (fh // 2, fw // 2)
    else:
        out, lead, boundary, filled = (h - fh + 1, w - fw + 1), (0, 0), "fill", False
    filled = filled and boundary == "fill"
    return Window(h, w, fh, fw, *out, *lead, boundary, filled, rank, finite, wide_range)


def mode_of(window: Window) -> str | None:
    """The mode of SciPy that a window is of; None for a part of one, a band of rows."""
    h, w, fh, fw = window[:4]
    part = window[4:8]
    if part == (h + fh - 1, w + fw - 1, fh - 1, fw - 1):
        return "full"
    if part == (h, w, fh // 2, fw // 2):
        return "same"
    return "valid" if part == (h - fh + 1, w - fw + 1, 0, 0) else None
