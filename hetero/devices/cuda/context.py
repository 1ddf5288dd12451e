"""The contexts that a CUDA device works in: made current, given up, opened anew."""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import threading
from typing import Any

from hetero import locks
from hetero.devices.base import Device, short_host
from hetero.devices.cuda.state import Local, State
from hetero.devices.storage import Storage
from hetero.errors import DeviceError, DeviceMemoryError, GraphError

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


class CudaContexts(Device):
    """A device with the contexts that work is done in, and what belongs to each.

    Parameters
    ----------
    driver : module
        ``pycuda.driver``.
    ordinal : int
    """

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.driver = driver
        self.errors = (driver.Error,)
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.local = Local()
        self.ahead: set[tuple[str, Any]] = set()  # kernel files that were compiled, with macros
        self._device = driver.Device(ordinal)
        self._bus_id = self._device.pci_bus_id()
        self._primary: Any = None
        self._states: dict[Any, State] = {}
        self._lock = locks.new()
        self._process = os.getpid()

    def primary(self) -> Any:
        """The primary context, retained on first use and given back at exit."""
        with self._lock:
            if self._primary is None:
                self._primary = self._device.retain_primary_context()
                atexit.register(self._close)
            return self._primary

    def owns(self, context: Any) -> bool:
        """Whether a current context belongs to this device."""
        return context.get_device().pci_bus_id() == self._bus_id

    def active(self) -> Active:
        return Active(self)

    def state(self) -> State:
        """What belongs to the context that `active` made current in this thread."""
        return self.local.state

    def place(self) -> State:
        return self.local.state

    def holds(self, place: State) -> bool:
        """Whether the context that something belongs to is still in use."""
        return any(state is place for state in self._states.values())

    def same_in_threads(self) -> bool:
        """Not where this thread has a context of its own, in which its arrays lie."""
        current = self.driver.Context.get_current()
        return current is None or not self.owns(current) or current == self.primary()

    @staticmethod
    def context_handle() -> int | None:
        handle = ctypes.c_void_p()
        _driver_library().cuCtxGetCurrent(ctypes.byref(handle))
        return handle.value

    def find_state(self) -> State:
        """What belongs to the current context."""
        context = self.driver.Context.get_current()
        try:
            return self._states[context]
        except KeyError:
            with self._lock:
                return self._states.setdefault(context, State(self.driver, self.ordinal))

    def _close(self) -> None:
        if os.getpid() != self._process or self._primary is None:
            return  # a forked child must not touch its parent's context
        try:
            with self.active():
                self.driver.Context.synchronize()
                for state in self._states.values():
                    state.close()
        except DeviceError:  # the process is ending; the driver frees the rest
            pass
        self.give_up_context()

    def give_up_context(self) -> None:
        """Give the primary context back, whatever state it is in; the next use gets a new one.

        From then on PyCUDA makes no call to the driver for what belongs to the old one.
        """
        with self._lock:
            primary, self._primary = self._primary, None
            if primary is None:
                return
            handle = primary.handle
            try:  # in another thread than its own PyCUDA detaches without a call, nor a complaint
                detach = threading.Thread(target=primary.detach)
                detach.start()
                detach.join()
            except RuntimeError:  # the interpreter is ending and starts no threads
                primary.detach()
            self.driver.Context.get_current()  # here PyCUDA forgets one that is detached
            library, ordinal = _driver_library(), ctypes.c_int()
            if self.context_handle() == handle:
                library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            library.cuDeviceGet(ctypes.byref(ordinal), self.ordinal)
            library.cuDevicePrimaryCtxRelease_v2(ordinal)
            lost = [s for c, s in self._states.items() if c == primary]
            self._states = {c: s for c, s in self._states.items() if c != primary}
        for state in lost:
            state.storage.drop_all()
            state.end_copies()

    def reopen(self) -> None:
        try:
            with self.active():
                self.driver.Context.synchronize()
        except DeviceError as error:
            log.debug("%s gets a new context: %s", self.name, error)
            self.give_up_context()

    def storage(self) -> Storage:
        return self.state().storage

    def memory_held(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for state in list(self._states.values()):
            for purpose, nbytes in state.memory().items():
                found[purpose] = found.get(purpose, 0) + nbytes
        return found

    def trim(self) -> bool:
        with self.active():
            return self.state().trim()

    def shed(self, nbytes: int | None = None) -> bool:
        with self.active():
            return self.state().shed(nbytes)

    def clear(self) -> None:
        """`trim` the primary context and this thread's own; others let go of what they keep."""
        if self.capturing:
            raise GraphError("giving memory back cannot be part of a graph")
        for state in list(self._states.values()):
            state.storage.drop_all()
            state.end_copies()
        try:
            current, primary = self.driver.Context.get_current(), self._primary
            if current is not None and self.owns(current):
                self.trim()
            if primary is not None and primary != current:
                primary.push()
                try:
                    self.trim()
                finally:
                    primary.pop()
        except self.driver.Error as error:
            raise reported(error) from error


@functools.cache
def _driver_library() -> Any:
    return ctypes.CDLL("libcuda.so.1")
