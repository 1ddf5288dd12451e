"""Times as people say them."""

from __future__ import annotations

import math

# Name, seconds, below how many of them it is taken, and how those are written.
_UNITS = (
    ("us", 1e-6, 999.5, ".3g"),
    ("ms", 1e-3, 999.5, ".3g"),
    ("s", 1.0, 99.95, ".3g"),
    ("min", 60.0, 9.95, ".1f"),
    ("min", 60.0, 59.5, ".0f"),
    ("h", 3600.0, 99.95, ".1f"),
)


def readable(seconds: float) -> str:
    """Seconds as people say them: '12.3 us', '4.56 ms', '7.89 s', '2.5 min', '32 min', '1.2 h'."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    for unit, scale, most, digits in _UNITS:
        if abs(seconds) < most * scale:
            return f"{seconds / scale:{digits}} {unit}"
    return f"{seconds / 3600.0:,.0f} h"
