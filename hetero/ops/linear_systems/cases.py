"""What the cases of the solves share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetero.runtime import registry
from hetero.runtime.cases import Case, Copies, Place
from hetero.runtime.problem import DEVICE_DTYPES
from hetero.runtime.registry import Implementation

SECONDS = 0.5  # of a case
CYCLES = (1, 4)  # of multigrid: not so many that float32 meets rounding
ITERATIONS = (8, 40)
_SMALLEST = 2**8
_LARGEST = {"cpu": 2**20, "opencl": 2**16}
_LARGEST_OTHERS = 2**24


def rows(operation: str, place: Place) -> list[Implementation]:
    """The implementations there are at a place."""
    return [i for i in registry.lookup(operation) if i.kind == place.kind and i.run is not None]


def estimates(operation: str, place: Place) -> Iterator[Case]:
    """What a quick calibration takes: bytes at copy speed, flops for free.

    The methods differ by more than such an estimate errs, and compiling the CPU's loops alone would
    take too long.
    """
    how = Copies(4e-4 if place.devices else 2e-5)
    for row in rows(operation, place):
        for dtype in DEVICE_DTYPES:
            yield Case(row, dtype, "*", how, seconds=0.05)


def unknowns(place: Place, limits: tuple[dict[str, int], int] | None = None, ratio: int = 4):
    """Numbers of unknowns to measure: up to a limit by kind of device, or for others."""
    by_kind, others = limits or (_LARGEST, _LARGEST_OTHERS)
    sizes = [_SMALLEST]
    while sizes[-1] * ratio <= by_kind.get(place.kind, others):
        sizes.append(sizes[-1] * ratio)
    return sizes


def even_grid(n: int, ndim: int) -> tuple[int, ...]:
    """The most even grid of about n points; an extent is no power of two less one."""
    return (round(n ** (1.0 / ndim)),) * ndim


def right_hand_side(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random numbers, with which no solve ends before its last step."""
    return (np.random.default_rng(0).random(shape) - 0.5).astype(dtype)
