"""Order between our work and that of streams that other libraries made: neither waits on the host.

PyCUDA has no object for a stream that it did not make, nor for the default one, so the driver is
called directly. A stream's work is marked by an event, and the other stream waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from hetero.devices.cuda.launch import CudaLaunches
from hetero.errors import DeviceError

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_LEGACY = 0  # the default stream of the current context, where our work goes


class CudaStreams(CudaLaunches):
    """A device whose default stream waits for others' streams, and lets them wait."""

    def follow_stream(self, handle: int) -> None:
        self._not_captured("waiting for another stream")
        _order(handle, _LEGACY)

    def precede_stream(self, handle: int) -> None:
        self._not_captured("holding another stream")
        _order(_LEGACY, handle)


def _order(first: int, then: int) -> None:
    """Let a stream go on only after what another one holds now."""
    event = ctypes.c_void_p()
    with _context_of(first):
        _call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING))
    try:
        _call("cuEventRecord", event, ctypes.c_void_p(first))
        _call("cuStreamWaitEvent", ctypes.c_void_p(then), event, ctypes.c_uint(0))
    finally:  # the driver keeps it until the wait is over
        _driver().cuEventDestroy_v2(event)


@contextlib.contextmanager
def _context_of(stream: int) -> Iterator[None]:
    """The context of a stream made current: a library's current stream may be another device's."""
    here, there = ctypes.c_void_p(), ctypes.c_void_p()
    if stream != _LEGACY:
        _call("cuCtxGetCurrent", ctypes.byref(here))
        _call("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(there))
    if here.value == there.value:
        yield
        return
    _call("cuCtxPushCurrent_v2", there)
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(there))


def _call(function: str, *arguments: Any) -> None:
    status = getattr(_driver(), function)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise DeviceError(f"{function} failed: {(text.value or b'').decode()} ({status})")


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
