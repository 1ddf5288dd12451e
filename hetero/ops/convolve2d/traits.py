"""What a method of convolution is, as its row in `methods` says: nobody asks for its name."""

from __future__ import annotations

from typing import NamedTuple

from hetero import registry
from hetero.ops.convolve2d.window import NAME


class Traits(NamedTuple):
    """What planning, prices and calibration ask of a method; the field ``traits`` of its row.

    Attributes
    ----------
    spreads : bool
        It adds up more than the filter covers, so that NaN and infinity would spread.
    transforms : bool
        Its error is as large for small values as for the largest: an image on the host is looked
        at before it is chosen, which is part of its price. It computes tiles: bands of an image
        are whole rows of them.
    factors : bool
        It takes the filter's factors, so that the filter's values are needed.
    few : bool
        Where there are few products it runs SciPy's loop; see `Window.has_few`.
    any_dtype : bool
        It computes in whatever dtype, complex ones too.
    compiled : bool
        It is by loops or kernels of our own, which calibration compiles before it measures.
    form : str
        Of the model that calibration fits: "filter", by results and taps; "surface", by the points
        of transforms, of filters that are small beside the image.
    images, filters : tuple of int
        Extents that calibration measures; (): those of the kind of device.
    """

    spreads: bool = False
    transforms: bool = False
    factors: bool = False
    few: bool = False
    any_dtype: bool = False
    compiled: bool = False
    form: str = "filter"
    images: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()


_NONE = Traits()


def of_row(row: registry.Implementation | None) -> Traits:
    """The traits of a row; none where it says nothing, as one that was added from outside may."""
    return _NONE if row is None else row.traits or _NONE


def of(method: str | None) -> Traits:
    """The traits of a method by its name: those of its first row, none where there is no such."""
    if method is not None:
        for row in registry.lookup(NAME):
            if row.method == method:
                return row.traits or _NONE
    return _NONE
