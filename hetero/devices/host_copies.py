"""Copies between host and device: by the driver, directly from pinned memory, or staged.

Callers have `Device.upload`, `download`, `begin_upload` and `begin_download`; which way a copy goes
is chosen here. `hetero.host.copying.staging` stages it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.host.copying.copy_jobs import Copy, copy_packed
from hetero.host.copying.staging import least


def copy(device: Any, direction: str, array: np.ndarray, buffer: Any, offset: int) -> None:
    """Copy a host array of any strides, packed in C order, the faster way; returns when it is done.

    Parameters
    ----------
    device : Device
    direction : {"upload", "download"}
    array : numpy.ndarray
    buffer : buffer
    offset : int
        Bytes from the buffer's begin.
    """
    if _is_large(device, direction, array):
        staged = _staged(device, direction, array, buffer, offset)
        if staged is not None:
            staged.wait()
            return
    if array.flags.c_contiguous:
        device.enqueue(direction, array, buffer, offset)
    else:
        copy_packed(device, direction, array, buffer, offset)


def begin(
    device: Any,
    direction: str,
    array: np.ndarray,
    buffer: Any,
    offset: int,
    after: Any,
    overlap: bool = True,
) -> Copy:
    """Begin to copy a host array of any strides, packed in C order.

    Until `Copy.wait` returns, neither what is read nor what is written may be written to, and
    nothing that is begun on the device may use what is written. Copies of one direction go in the
    order of their start, both directions at once. A copy that is dropped without having been waited
    for is cancelled. Where the device has no `ring`, the copy is complete at once.

    Parameters
    ----------
    device, direction, array, buffer, offset
        As for `copy`.
    after : event or None
        What must have come before the buffer is touched, as `Device.record` gives it; None: all
        that the default queue holds now.
    overlap : bool
        Whether the host has something to do meanwhile.
    """
    if not overlap and _is_large(device, direction, array):
        staged = _staged(device, direction, array, buffer, offset, after)
        if staged is not None:
            return staged
    ring = device.ring() if overlap else None
    if ring is None or not array.nbytes:
        if after is not None:
            device.wait(after)
        copy_packed(device, direction, array, buffer, offset)
        return Copy()
    if after is None:
        after = device.record()
    start = ring.start_pinned if device.copies_directly(array) else ring.start
    return start(direction, array, buffer, offset, after)


def _is_large(device: Any, direction: str, array: np.ndarray) -> bool:
    """Whether staged copies of that many bytes are the faster ones, if they are pageable."""
    return array.nbytes >= (least(device.name) or device.least_staged)[direction]


def _staged(
    device: Any, direction: str, array: np.ndarray, buffer: Any, offset: int, after: Any = None
) -> Copy | None:
    """Begin a staged copy if that is faster than the driver alone; None where it is not."""
    ring = device.ring()
    if ring is None or (array.flags.c_contiguous and device.is_pinned(array)):
        return None
    return ring.start(direction, array, buffer, offset, after or device.record())
