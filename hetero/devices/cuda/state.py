"""What belongs to one CUDA context, and what a thread does with a device.

PyCUDA gives back a stream or an event when it is dropped, in whatever context is current then, and
ends the process if the driver refuses. Ours go back to their context's lists, without a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices.cuda import pinned
from hetero.devices.cuda.pool import Pool
from hetero.devices.storage import Storage
from hetero.host.copying.staging import Ring


class Constants:
    """A kernel with constant memory, which is its module's: who fills it holds the lock.

    Attributes
    ----------
    kernel : Function
    address, nbytes : int
        Of the constant memory.
    lock, user
        For `hetero.locks.sole`.
    """

    def __init__(self, kernel: Any, address: int, nbytes: int) -> None:
        self.kernel, self.address, self.nbytes = kernel, int(address), nbytes
        self.lock, self.user = locks.new(), None


class State:
    """What belongs to one context: memory, loaded kernels, cuBLAS handle."""

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.storage = Storage()
        self.pool = Pool(driver, ordinal, self.storage.drop, self.storage.copies.shed)
        self.modules: list[Any] = []
        self.kernels: dict[Any, Any] = {}
        self.constants: dict[Any, Constants] = {}
        self.handles: dict[str, Any] = {}
        self.shared_bytes: dict[Any, int] = {}
        self.staging: np.ndarray | None = None
        self.ring: Ring | None = None
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

    def shed(self, nbytes: int | None = None) -> bool:
        """Let go of copies of operands and give their memory back; True if there was one."""
        found = self.storage.copies.shed(nbytes)
        if found:
            self.pool.trim()
        return found

    def handle_of_event(self) -> int:
        """The driver's handle of an event that nobody uses, for `handles_of_events`."""
        try:
            return self.handles_of_events.pop()
        except IndexError:
            return pinned.sleeping_event()

    def let_go(self) -> None:
        """Keep nothing any longer; end the threads that copy, and give their buffers back."""
        self.storage.drop_all()
        self._end_copies()

    def _end_copies(self) -> None:
        if self.ring is not None:
            self.ring.close()

    def close(self) -> None:
        """Give everything back to the driver, in this context."""
        self.storage.drop_all()
        for kept in (self.shared_bytes, self.kernels, self.constants, self.handles, self.modules):
            kept.clear()
        self._end_copies()
        for unused in (self.streams, self.events, self.marks, self.copied):
            unused.clear()
        while self.handles_of_events:
            pinned.end_event(self.handles_of_events.pop())
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
