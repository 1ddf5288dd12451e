"""One exception class per cause; each says what was received and what is valid."""

from __future__ import annotations

from typing import Any


class HeteroError(Exception):
    """Base class of every exception hetero raises itself."""


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
    x : numpy.ndarray, number or None
        What a solve can go on from: the last iterate that was saved on the host.
    iterations : int
        The number of iterations until then.
    """

    device: str | None = None
    x: Any = None
    iterations: int = 0


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has not enough free memory for the problem."""


class KernelCompileError(DeviceError):
    """A kernel could not be compiled for a device."""


class KeptOperandChanged(HeteroError, ValueError):
    """An array that was promised not to change was written to; see `hetero.keep`."""


class ProfileError(HeteroError, ValueError):
    """A profile file cannot be used; the message says which part is wrong."""


class GraphError(HeteroError, RuntimeError):
    """A call that a graph cannot hold, while it was captured; or a wrong use of a graph."""
