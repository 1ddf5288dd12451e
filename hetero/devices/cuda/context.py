"""The contexts that a CUDA device works in: made current, given up, opened anew; what each has.

PyCUDA gives back a stream or an event when it is dropped, in whatever context is current then, and
ends the process if the driver refuses. Ours go back to their context's lists, without a call.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices.base import Device, short_host
from hetero.devices.cuda import driver
from hetero.devices.cuda.pinned import end_event
from hetero.devices.storage import Pool, Storage
from hetero.errors import DeviceError, DeviceMemoryError

_lock = locks.new()
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
        contexts, context = device.contexts, device.driver.Context
        self._pushed = False
        try:
            current = context.get_current()
            if current is None or not contexts.owns(current):
                contexts.primary().push()
                self._pushed = True
            state = contexts.find_state()
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
            if context.get_current() == device.contexts.primary():
                context.pop()
        except device.driver.Error as error:
            log.debug("%s: the context is given up: %s", device.name, error)
            device.contexts.give_up()
        return refused


class Contexts:
    """The contexts that work of a device is done in, and what belongs to each.

    Attributes
    ----------
    held : Context or None
        The primary one, while it is retained.
    states : dict
        Context -> `State`.
    """

    def __init__(self, device: Any) -> None:
        self.held: Any = None
        self.states: dict[Any, State] = {}
        self._device, self._driver, self._ordinal = device, device.driver, device.ordinal
        self._raw = device.driver.Device(device.ordinal)
        self._bus_id = self._raw.pci_bus_id()
        self._process = os.getpid()

    def primary(self) -> Any:
        """The primary context, retained on first use and given back at exit."""
        with _lock:
            if self.held is None:
                self.held = self._raw.retain_primary_context()
                atexit.register(self.close)
            return self.held

    def owns(self, context: Any) -> bool:
        """Whether a current context belongs to this device."""
        return context.get_device().pci_bus_id() == self._bus_id

    def is_usual(self) -> bool:
        """Whether this thread works in the primary context; not where it has one of its own, in
        which its arrays lie."""
        current = self._driver.Context.get_current()
        return current is None or not self.owns(current) or current == self.primary()

    def find_state(self) -> State:
        """What belongs to the current context."""
        context = self._driver.Context.get_current()
        try:
            return self.states[context]
        except KeyError:
            with _lock:
                return self.states.setdefault(context, State(self._driver, self._ordinal))

    def close(self) -> None:
        """Give everything back, at the process's end."""
        if os.getpid() != self._process or self.held is None:
            return  # a forked child must not touch its parent's context
        try:
            with self._device.active():
                self._driver.Context.synchronize()
                for state in self.states.values():
                    state.close()
        except DeviceError:  # the process is ending; the driver frees the rest
            pass
        self.give_up()

    def give_up(self) -> None:
        """Give the primary context back, whatever state it is in; the next use gets a new one.

        From then on PyCUDA makes no call to the driver for what belongs to the old one.
        """
        with _lock:
            primary, self.held = self.held, None
            if primary is None:
                return
            handle = primary.handle
            try:  # in another thread than its own PyCUDA detaches without a call, nor a complaint
                detach = threading.Thread(target=primary.detach)
                detach.start()
                detach.join()
            except RuntimeError:  # the interpreter is ending and starts no threads
                primary.detach()
            self._driver.Context.get_current()  # here PyCUDA forgets one that is detached
            if driver.current_context() == handle:
                driver.pop_context()
            driver.release_primary_context(self._ordinal)
            lost = [s for c, s in self.states.items() if c == primary]
            self.states = {c: s for c, s in self.states.items() if c != primary}
        for state in lost:
            state.storage.let_go()

    def renew(self) -> None:
        """Give up a primary context that work has made unusable."""
        try:
            with self._device.active():
                self._driver.Context.synchronize()
        except DeviceError as error:
            log.debug("%s gets a new context: %s", self._device.name, error)
            self.give_up()

    def memory(self) -> dict[str, int]:
        """Purpose -> bytes of the device's memory, in all contexts."""
        found: Counter[str] = Counter()
        for state in list(self.states.values()):
            found.update(state.memory())
        return dict(found)

    def clear(self) -> None:
        """Let go of what contexts keep; give back what the primary and this thread's own have."""
        for state in list(self.states.values()):
            state.storage.let_go()
        try:
            current, primary = self._driver.Context.get_current(), self.held
            if current is not None and self.owns(current):
                self._device.trim()
            if primary is not None and primary != current:
                primary.push()
                try:
                    self._device.trim()
                finally:
                    primary.pop()
        except self._driver.Error as error:
            raise reported(error) from error


class State:
    """What belongs to one context: memory, loaded kernels, cuBLAS handle."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.storage = Storage()
        self.pool = Pool(driver, ordinal, self.storage.drop, self.storage.shed)
        self.modules: list[Any] = []
        self.kernels: dict[Any, Any] = {}
        self.constants: dict[Any, Any] = {}  # kernels with constant memory
        self.handles: dict[str, Any] = {}
        self.shared_bytes: dict[Any, int] = {}
        self.staging: np.ndarray | None = None
        # Unused ones of PyCUDA's, see `Lent`; marks are events that take the time, and who waits
        # for one of copied sleeps meanwhile.
        self.streams: list[Any] = []
        self.events: list[Any] = []
        self.marks: list[Any] = []
        self.copied: list[Any] = []
        self.handles_of_events: list[int] = []  # as copied, without PyCUDA, which hides the handle

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
        self.storage.let_go()
        for kept in (self.shared_bytes, self.kernels, self.constants, self.handles, self.modules):
            kept.clear()
        for unused in (self.streams, self.events, self.marks, self.copied):
            unused.clear()
        while self.handles_of_events:
            end_event(self.handles_of_events.pop())
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
    """

    state: Any = None
