"""What a calibration is asked to measure, and how much time it may take."""

from __future__ import annotations

from typing import Any, NamedTuple

from hetero.ops.cases import Budget

QUICK = Budget(
    quick=True,
    point=0.004,
    longest=0.03,
    step=8.0,
    solve_step=64.0,
    largest_solve=2**22,
    held_out=8,
    largest_transfer=2**27,
    link_step=2.0,
)
FULL = Budget(
    quick=False,
    point=0.005,
    longest=0.02,
    step=1.0,
    solve_step=1.0,
    largest_solve=2**24,
    held_out=16,
    largest_transfer=2**30,
    link_step=2.0,
)


class Request(NamedTuple):
    """What a calibration is to measure.

    Attributes
    ----------
    quick : bool
    devices : list of str or None
        None for all.
    only : tuple of str
        Names of operations, devices and methods; empty for everything.
    base : dict or None
        Content of a profile, which keeps its other constants where ``only`` is given.
    """

    quick: bool = False
    devices: list[str] | None = None
    only: tuple[str, ...] = ()
    base: dict[str, Any] | None = None

    @property
    def budget(self) -> Budget:
        return QUICK if self.quick else FULL
