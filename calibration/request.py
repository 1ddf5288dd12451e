"""What a calibration is asked to measure, and how much time it may take."""

from __future__ import annotations

from dataclasses import replace
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
)
_MORE = {"step": 1.0, "solve_step": 1.0, "largest_solve": 2**24, "largest_transfer": 2**30}
FULL = replace(QUICK, quick=False, point=0.005, longest=0.02, held_out=16, **_MORE)


class Request(NamedTuple):
    """What a calibration is to measure.

    All ``devices`` where that is None; of operations, devices and methods ``only`` those of these
    names, or everything. ``base`` is the content of a profile, which keeps its other constants
    where ``only`` is given.
    """

    quick: bool = False
    devices: list[str] | None = None
    only: tuple[str, ...] = ()
    base: dict[str, Any] | None = None

    @property
    def budget(self) -> Budget:
        return QUICK if self.quick else FULL
