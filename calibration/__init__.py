"""Measuring a machine and fitting its constants."""

from hetero.calibration.calibrate import calibrate
from hetero.ops import functions  # noqa: F401  # every operation is registered, and so measured

__all__ = ["calibrate"]
