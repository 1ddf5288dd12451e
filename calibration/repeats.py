"""Samples that met other load, or cannot be, are taken again later: bursts of load last."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from typing import Any

from hetero.calibration import doubts, fit, sampling
from hetero.calibration.sampling import Samples
from hetero.calibration.workbench import Bench
from hetero.runtime.cases import Budget, Case, Copies, Dims, Passes, Place, SampleGrid, grid
from hetero.runtime.models import bind

ROUNDS = 6
SHARE = 0.2  # of the time that measuring took, for taking samples again
_LEAST_SECONDS = 0.5
_CALLS = 5  # that one sample takes
_MARKED = 1.5  # how far beyond the bounds a sample counts that met other load
_SAME = 1.25  # times another sample: near enough to be true
