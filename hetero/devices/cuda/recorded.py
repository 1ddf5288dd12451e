"""Launches on a stream that are recorded once and started again as one graph.

PyCUDA has no graphs; `cuda.bindings` has, for the same driver and the context that is current.
"""

from __future__ import annotations

from typing import Any

from hetero import imports
from hetero.devices.cuda.cooperative import check


class Recorded:
    """What a stream was given between the making of this object and `end`.

    It is recorded and not done. To be used inside the device's `active`.
    """

    def __init__(self, device: Any, stream: Any) -> None:
        self._driver = imports.load("cuda.bindings.driver")
        self._device, self._place, self._stream = device, device.place(), stream
        self._executable: Any = None
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(self._driver.cuStreamBeginCapture(stream.handle, mode))

    def end(self) -> None:
        """From now on the stream does what it is given, and `launch` what was recorded."""
        graph = check(self._driver.cuStreamEndCapture(self._stream.handle))
        try:
            self._executable = check(self._driver.cuGraphInstantiate(graph, 0))
        finally:
            check(self._driver.cuGraphDestroy(graph))

    def launch(self) -> None:
        """Let the stream do all of it; returns at once."""
        check(self._driver.cuGraphLaunch(self._executable, self._stream.handle))

    def __del__(self) -> None:
        if self._executable is not None and self._device.holds(self._place):
            try:
                with self._device.active():
                    self._driver.cuGraphExecDestroy(self._executable)
            except Exception:  # the process is ending, and the driver frees it
                return
