"""The context that a CUDA device works in, what belongs to it, and what a thread does there.

PyCUDA gives back a stream or an event when it is dropped, in whatever context is current then, and
ends the process if the driver refuses. Ours go back to their context's lists, without a call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.devices.base import Device, short_host
from hetero.devices.cuda_pool import Pool
from hetero.devices.storage import Storage
from hetero.errors import DeviceError, DeviceMemoryError

log = logging.getLogger("hetero")


def reported(error: Exception) -> DeviceError:
    """PyCUDA's error as one of ours; it carries text, no code."""
    if "out of memory" in str(error):
        return DeviceMemoryError(f"out of device memory: {error}")
    if isinstance(error, MemoryError):  # of Python or NumPy
        return short_host(error)
    return DeviceError(str(error))


class Active:
    """Makes a context current for a ``with`` block and turns PyCUDA's errors into ours."""

    __slots__ = ("_device", "_outer", "_pushed")

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> Device:
        device = self._device
        context = device.driver.Context
        self._pushed = False
        try:
            current = context.get_current()
            if current is None or not device.owns(current):
                device.primary().push()
                self._pushed = True
            state = device.find_state()
        except Exception as error:
            if self._pushed:
                self._pop()
            raise self._ours(error) from error
        self._outer = device.local.state
        device.local.state = state
        return device

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._device.local.state = self._outer
        refused = self._pop() if self._pushed else None
        if error is None:
            if refused is not None:
                raise self._ours(refused) from refused
        elif isinstance(error, DeviceError):
            error.device = error.device or self._device.name
        elif isinstance(error, (self._device.driver.Error, MemoryError)):
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> DeviceError:
        made = error if isinstance(error, DeviceError) else reported(error)
        made.device = made.device or self._device.name
        return made

    def _pop(self) -> Exception | None:
        """Leave the context; what the driver says where it refuses.

        PyCUDA ends the process where a thread ends in a context, so it is left all the same.
        """
        device, context = self._device, self._device.driver.Context
        try:
            context.pop()
            return None
        except device.driver.Error as error:
            refused = error
        try:
            if context.get_current() == device.primary():
                context.pop()
        except device.driver.Error as error:
            log.debug("%s: the context is given up: %s", device.name, error)
            device.give_up_context()
        return refused


class State:
    """What belongs to one context: memory, loaded kernels, cuBLAS handle."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.storage = Storage()
        self.pool = Pool(driver, ordinal, self.storage.drop)
        self.modules: list[Any] = []
        self.kernels: dict[Any, Any] = {}
        self.handles: dict[str, Any] = {}
        self.shared_bytes: dict[Any, int] = {}
        self.staging: np.ndarray | None = None
        # Unused ones of PyCUDA's, see `Lent`; marks are events that take the time.
        self.streams: list[Any] = []
        self.events: list[Any] = []
        self.marks: list[Any] = []

    def memory(self) -> dict[str, int]:
        """Purpose -> bytes; what no workspace accounts for belongs to arrays and running calls."""
        unused, found = self.pool.unused(), self.storage.sizes()
        calls = self.pool.nbytes - unused - sum(found.values())
        rest = {"arrays and running calls": max(calls, 0), "free in the pool": unused}
        return found | {purpose: nbytes for purpose, nbytes in rest.items() if nbytes}

    def trim(self) -> bool:
        """Let go of what is kept and give unused memory back; True if there was some."""
        self.storage.drop()
        return self.pool.trim()

    def close(self) -> None:
        """Give everything back to the driver, in this context."""
        self.storage.drop()
        for kept in (self.shared_bytes, self.kernels, self.handles, self.modules):
            kept.clear()
        for unused in (self.streams, self.events, self.marks):
            unused.clear()
        self.staging = None
        self.pool.close()


class Lent:
    """A stream or an event of PyCUDA's that goes back to a list when nobody holds it.

    Attributes
    ----------
    raw : Stream or Event
    """

    __slots__ = ("_home", "raw")

    def __init__(self, home: list[Any], make: Callable[[], Any]) -> None:
        self._home = home
        try:
            self.raw = home.pop()
        except IndexError:
            self.raw = make()

    @property
    def handle(self) -> int:
        """The driver's."""
        return self.raw.handle

    def __del__(self) -> None:
        if hasattr(self, "raw"):
            self._home.append(self.raw)


class Local(threading.local):
    """What a thread does with a device.

    Attributes
    ----------
    state : State
        Of the context that `CudaDevice.active` made current.
    queue : Stream or None
        Where work without a stream goes while a graph is captured; None: the legacy stream.
    kept : list
        What the graph needs to live.
    """

    state: Any = None
    queue: Any = None

    def __init__(self) -> None:
        self.kept: list[Any] = []
