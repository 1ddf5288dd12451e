"""What becomes of a device that fails: said once, set aside after the second time, tried again.

A device that has no room is not failing: its memory is short for one call, and it stays.
"""

from __future__ import annotations

import logging
import traceback
from contextvars import ContextVar

from hetero import devices
from hetero.arrays import kept
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.profile import inventory

log = logging.getLogger("hetero")
# Whether a device that fails is an error of the call, as measuring wants it.
without_fallback: ContextVar[bool] = ContextVar("hetero_without_fallback", default=False)


def report(name: str, error: DeviceError, remedy: str = "the CPU computes this call") -> None:
    """Count a device's failure, and say once what becomes of the call: the ``remedy``.

    ``name`` is the device where the error does not tell it.
    """
    if without_fallback.get():
        raise error
    name = error.device or name
    if out_of_memory(error):
        known = devices.health[name]
        say, known.was_short = log.info if known.was_short else log.warning, True
        say("%s has not enough free memory (%s); %s", name, error, remedy)
        return
    for known in kept.every():  # what it holds is not relied on any longer
        known.held = {}
    struck = devices.count_failure(name, error)
    if struck:
        log.warning(
            "%s failed again (%s) and is set aside; its calls run on the CPU until "
            "hetero.reset(%r)",
            *(name, error, name),
        )
        inventory.changed()
    elif struck is not None:
        log.warning("%s failed (%s); %s", name, error, remedy)


def out_of_memory(error: DeviceError) -> bool:
    """Whether a device had no room; a solve's error tells it by its cause."""
    return isinstance(error, DeviceMemoryError) or isinstance(error.__cause__, DeviceMemoryError)


def release(error: BaseException | None) -> None:
    """Let go of the buffers that a failed call holds by the frames of its traceback."""
    if log.isEnabledFor(logging.DEBUG) and error is not None:
        log.debug("%s", "".join(traceback.format_exception(error)))
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def reset(device: str | None = None) -> None:
    """Use devices again that failed and were set aside.

    A device that fails twice in a process is set aside: its calls run on the CPU; one that fails
    the small kernel it is first asked to run is broken. After a reset a device is asked anew. If it
    fails again, it is set aside, or broken, again. After an illegal memory access the CUDA driver
    refuses all work until the process ends: then a reset only turns set aside into broken, with
    that reason, and calls go on on the CPU.

    Parameters
    ----------
    device : str, optional
        Such as "cuda:0". Default: all.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device; the message names those that are here.

    Notes
    -----
    In a process that was forked from one that used its devices they stay set aside: the driver
    does not work there.

    See Also
    --------
    hetero.machine : tells which devices are set aside, and why.

    Examples
    --------
    >>> import hetero
    >>> hetero.reset()
    """
    here = devices.everything()
    if device is not None and device not in here:
        raise devices.not_available(device)
    for name in here if device is None else (device,):
        if devices.reset_failures(name):
            devices.get(name).reopen()
    inventory.changed()
