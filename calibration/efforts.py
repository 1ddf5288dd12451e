"""How much time a calibration may take, and the sizes it goes through."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time the probes may take.

    Attributes
    ----------
    budget : float
        Seconds for one measured point.
    longest : float
        Seconds of one call above which a point is extrapolated, not measured.
    step, device_step : float
        Ratio of neighbouring sizes of a grid, on the CPU and on a device.
    held_out : int
        Shapes measured beside each grid, for the residuals.
    largest_transfer : int
        Bytes.
    link_step : float
        Ratio of neighbouring transfer sizes.
    total, device_total : float
        Seconds for the CPU, and for each device beside it; a slow machine measures fewer of
        the large knots.
    solves : float
        Seconds for the solves on each of them, and on each group of equal devices.
    filters : float
        Seconds for the convolutions on each of them.
    """

    budget: float
    longest: float
    step: float
    device_step: float
    held_out: int
    largest_transfer: int
    link_step: float
    total: float
    device_total: float
    solves: float
    filters: float


QUICK = Effort(
    budget=0.004,
    longest=0.03,
    step=2.0,
    device_step=4.0,
    held_out=8,
    largest_transfer=2**27,
    link_step=2.0,
    total=8.0,
    device_total=25.0,
    solves=3.0,
    filters=3.0,
)
FULL = Effort(
    budget=0.008,
    longest=0.2,
    step=2.0,
    device_step=2.0,
    held_out=32,
    largest_transfer=2**30,
    link_step=2.0,
    total=20.0,
    device_total=70.0,
    solves=11.0,
    filters=18.0,
)


def axis(smallest: int, largest: int, step: float) -> list[int]:
    """Sizes from smallest to largest with about the given ratio."""
    sizes = [smallest]
    while sizes[-1] * step <= largest * 1.01:
        sizes.append(round(sizes[-1] * step))
    return sizes
