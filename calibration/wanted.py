"""What a calibration is to measure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from hetero.calibration import budgets
from hetero.ops.cases import Budget


class Wanted(NamedTuple):
    """What a calibration is to measure.

    Attributes
    ----------
    quick : bool
    devices : list of str or None
        None for all.
    only : tuple of str
        Names of operations, devices and methods; empty for everything.
    base : dict or None
        Content of a profile whose other constants stay where ``only`` is given.
    unfinished : Path or None
        Where to keep what was measured so far.
    fresh : bool
        Whether what an interrupted calibration left is not to be continued.
    kernels : bool
        Whether tuning tables are measured too.
    """

    quick: bool = False
    devices: list[str] | None = None
    only: tuple[str, ...] = ()
    base: dict[str, Any] | None = None
    unfinished: Path | None = None
    fresh: bool = False
    kernels: bool = False

    @property
    def budget(self) -> Budget:
        return budgets.QUICK if self.quick else budgets.FULL

    def plain(self) -> dict[str, Any]:
        """What must be the same in a calibration that goes on with another one's samples."""
        return {
            "budget": dataclasses.asdict(self.budget),
            "devices": self.devices,
            "only": sorted(self.only),
            "kernels": self.kernels,
        }
