"""Device memory with an owner: buffers by name, counted by what they are for, freed together."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from hetero.devices.base import Device


class Workspace:
    """Buffers of one device for one purpose, by name where they have one; freed together, when
    nobody holds the workspace any longer.

    `hetero.memory` counts the bytes as ``purpose``. Without a stream the device must be active in
    this thread, here and in every method. With one, its work uses the buffers; copies between host
    and device go through the default queue: an upload is complete when it returns, a download waits
    for the stream.

    Attributes
    ----------
    buffers : dict
        Name -> buffer, as a launch takes it.
    nbytes : int
    """

    def __init__(self, device: Device, purpose: str, stream: Any = None) -> None:
        self.device = device
        self.purpose = purpose
        self.stream = stream
        self.buffers: dict[str, Any] = {}
        self.nbytes = 0
        self._owners: list[Any] = []
        with self.active():
            device.storage().add(self)

    def active(self) -> Any:
        """Context manager for what follows on the device."""
        return contextlib.nullcontext() if self.stream is None else self.device.active()

    def hold(self, owner: Any, nbytes: int = 0) -> None:
        """Let something live as long as this workspace, and count its bytes of device memory."""
        self._owners.append(owner)
        self.nbytes += nbytes

    def allocate(self, nbytes: int, *names: str) -> Any:
        """Make a buffer for each name, or one without a name; returns the last."""
        with self.active():
            for name in names or (None,):
                buffer, owner = self.device.allocate(max(nbytes, 16))
                self.hold(owner, getattr(owner, "size", nbytes))  # a pool's are rounded up
                if name is not None:
                    self.buffers[name] = buffer
        return buffer

    def upload(self, array: np.ndarray, name: str | None = None, offset: int = 0) -> Any:
        """Copy a C-contiguous host array to a buffer, which is made if there is none."""
        if name in self.buffers:
            buffer = self.buffers[name]
        else:
            buffer = self.allocate(offset + array.nbytes, *filter(None, [name]))
        if array.nbytes:
            with self.active():
                self.device.upload(array, buffer, offset)
                if self.stream is not None:  # which does not wait for the default queue
                    self.device.synchronize()
        return buffer

    def download(self, name: str, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Copy a buffer to a C-contiguous host array, after all that the stream holds now."""
        with self.active():
            if self.stream is not None:
                self.device.synchronize(self.stream)
            self.device.download(self.buffers[name], array, offset)
        return array
