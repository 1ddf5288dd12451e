"""The context that a CUDA device works in, what belongs to it, and what a thread does there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.devices.cuda_pool import Pool
from hetero.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from hetero.devices.cuda import CudaDevice


def reported(error: Exception) -> DeviceError:
    """PyCUDA's error as one of ours; it carries text, no code."""
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return DeviceMemoryError(f"out of device memory: {error}")
    return DeviceError(str(error))


class Active:
    """Makes a context current for a ``with`` block and turns PyCUDA's errors into ours."""

    __slots__ = ("_device", "_outer", "_pushed")

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def __enter__(self) -> CudaDevice:
        device = self._device
        driver = device.driver
        current = driver.Context.get_current()
        self._pushed = not (current is not None and device.owns(current))
        if self._pushed:
            try:
                device.primary().push()
            except driver.Error as error:
                raise reported(error) from error
        self._outer = device.local.state
        device.local.state = device.find_state()
        return device

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._device.local.state = self._outer
        if self._pushed:
            self._device.driver.Context.pop()
        if isinstance(error, (self._device.driver.Error, MemoryError)) and not isinstance(
            error, DeviceError
        ):
            raise reported(error) from error


class State:
    """What belongs to one context: memory pool, loaded kernels, cuBLAS handle."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.pool = Pool(driver, ordinal)
        self.modules: list[Any] = []
        self.kernels: dict[Any, Any] = {}
        self.handles: dict[str, Any] = {}
        self.shared_bytes: dict[Any, int] = {}
        self.staging: np.ndarray | None = None


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
