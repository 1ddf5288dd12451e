"""`hetero.empty_pinned`: arrays in memory that devices copy from and to directly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hetero import devices
from hetero.devices.base import Device
from hetero.errors import DeviceError

log = logging.getLogger("hetero")
_state = {"warned": False}


def empty_pinned(shape: int | Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """A new NumPy array, not initialized, in pinned memory of the host.

    GPUs copy from and to pinned memory at the speed of the bus, without the CPU. The array is an
    ordinary one in all else; operations find out by its address what memory it is in. So do they of
    its views. It is made slowly, at some GB/s, and the system cannot swap it out: make few, and use
    them again. The memory is given back when the array and all its views are gone.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype, optional

    Returns
    -------
    numpy.ndarray
        C-contiguous. In ordinary memory where there is no GPU, or the system gives no pinned
        memory; a warning is logged, once.

    Raises
    ------
    TypeError
        For a dtype of Python objects.
    ValueError
        For a negative extent.

    See Also
    --------
    hetero.memory : tells under "host" how much there is.

    Notes
    -----
    In a forked child it is ordinary memory, with a copy of its content.

    Examples
    --------
    >>> import hetero
    >>> A = hetero.empty_pinned((1000, 1000), "float32")
    >>> A[...] = 1.0
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"dtype must be one of plain values, got {dtype}")
    shape = np.empty(shape, np.dtype((np.void, 0))).shape  # as NumPy takes it, and complains
    nbytes = prod(shape) * dtype.itemsize
    if nbytes:
        try:
            device = _device()
            with device.active():
                memory = device.pinned(nbytes)
        except DeviceError as error:
            if not _state["warned"]:
                _state["warned"] = True
                log.warning("arrays are in ordinary memory instead of pinned: %s", error)
        else:
            return memory.view(dtype).reshape(shape)
    return np.empty(shape, dtype)


def _device() -> Device:
    """The first device that has pinned memory; DeviceError where there is none."""
    for name, device in devices.available().items():
        if device.stages and not devices.inherited(name) and devices.believed(name):
            return device
    raise DeviceError("there is no GPU here that can be used")
