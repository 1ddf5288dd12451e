"""Measuring a machine and fitting its constants."""

from hetero.calibration.calibrate import calibrate

__all__ = ["calibrate"]
