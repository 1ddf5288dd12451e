"""The order of our work and that of the caller's streams, by events: the host does not wait.

Our work goes to a device's default queue. Arrays that belong to other streams are read and written
after what those streams held when the call began; what comes to them later waits for the call.
"""

from __future__ import annotations

from collections.abc import Iterable

from hetero.arrays import UNKNOWN_STREAM, Operand
from hetero.devices.base import Device


def of(device: Device, operands: Iterable[Operand]) -> set[int]:
    """The streams of operands on a device that its default queue is not ordered with."""
    return {o.stream for o in operands if o.location == device.name and not o.is_ordered()}


def follow(device: Device, streams: set[int]) -> None:
    """Let the device's default queue wait for what the streams hold now.

    Where a library does not tell its stream, it was asked to order its work itself; see
    `hetero.arrays.dlpack`. In a context that is not the primary one that is no order.
    """
    for stream in streams:
        if stream != UNKNOWN_STREAM:
            device.follow_stream(stream)
        elif device.capturing or not device.same_in_threads():
            device.synchronize()


def precede(device: Device, streams: set[int]) -> None:
    """Let the streams wait for what the device's default queue holds now.

    The host waits where a library does not tell its stream.
    """
    for stream in streams:
        if stream != UNKNOWN_STREAM:
            device.precede_stream(stream)
        else:
            device.synchronize()
