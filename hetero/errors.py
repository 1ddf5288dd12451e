"""One exception class per cause, with what was received and what is valid; texts of messages."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from hetero.imports import load

# Name, seconds, below how many of them it is taken, and how those are written.
_UNITS = (
    ("us", 1e-6, 999.5, ".3g"),
    ("ms", 1e-3, 999.5, ".3g"),
    ("s", 1.0, 99.95, ".3g"),
    ("min", 60.0, 9.95, ".1f"),
    ("min", 60.0, 59.5, ".0f"),
    ("h", 3600.0, 99.95, ".1f"),
)


class HeteroError(Exception):
    """Base class of every exception hetero raises itself."""


def one_of(name: str, valid: Iterable[str], got: object) -> str:
    """The message of an argument that has to be one of some names, with the nearest of them."""
    names = [*valid]
    near = load("difflib").get_close_matches(str(got), names, 1)
    if "gpu" in str(got).lower():  # not "cpu", the nearest by its letters
        near = [n for n in names if n.startswith("cuda:")][:1]
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name} must be one of {', '.join(map(repr, names))}, got {got!r}{meant}"


def readable(seconds: float) -> str:
    """Seconds as people say them: '12.3 us', '4.56 ms', '7.89 s', '2.5 min', '32 min', '1.2 h'."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    for unit, scale, most, digits in _UNITS:
        if abs(seconds) < most * scale:
            return f"{seconds / scale:{digits}} {unit}"
    return f"{seconds / 3600.0:,.0f} h"


def outside() -> int:
    """The ``stacklevel`` of a warning that names the nearest caller outside of hetero."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("hetero."):
        level += "importlib._bootstrap" not in frame.f_code.co_filename  # which warnings skips
        frame = frame.f_back
    return level


class DeviceNotAvailable(HeteroError, ValueError):
    """``device=`` names something that is not here; the message names what is."""


class MethodNotAvailable(HeteroError, ValueError):
    """``method=`` names no implementation that can do this problem on this device."""


class PackageMissing(HeteroError, ImportError):
    """An optional package is not installed; the message names the command that installs it."""


class NotPriced(HeteroError, ValueError):
    """No candidate for a problem has constants in the profile, so none can be chosen."""


class DeviceError(HeteroError, RuntimeError):
    """A device reported an error while it moved data or computed.

    Attributes
    ----------
    device : str or None
        Its name, such as "cuda:0", where it is known.
    """

    device: str | None = None


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has not enough free memory for the problem."""


class KernelCompileError(DeviceError):
    """A kernel could not be compiled for a device."""


class KeptOperandChanged(HeteroError, ValueError):
    """An array that was promised not to change was written to; see `hetero.keep`."""


class ProfileError(HeteroError, ValueError):
    """A profile file cannot be used; the message says which part is wrong."""
