"""What the first staged copies of a process need, made by a thread beside them.

The loops have to be compiled, which takes 0.1 s, and buffers to be pinned, 0.2 ms a MiB. The driver
copies in less. So whoever begins a copy meanwhile lets the driver do it, or as much of it as
there is until then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import locks
from hetero.errors import DeviceError
from hetero.host.copying import lane
from hetero.host.copying.copy_jobs import DOWNLOAD, UPLOAD, Device
from hetero.host.copying.lanes import PURPOSE

_NAME = "hetero-copy buffers"  # begins as all threads of ours that never call BLAS


class Regions:
    """Pinned memory for the threads of a ring that lead.

    Parameters
    ----------
    device : Device
    place : object
        The device's when the ring was made.
    made : callable
        Called with the direction when there is some, before anybody can take it, and with what
        `is_wanted` takes.
    """

    def __init__(self, device: Device, place: Any, made: Callable[[str, Any], None]) -> None:
        self._device, self._place, self._tell = device, place, made
        self._lock = locks.new()
        self._spare: dict[str, list[np.ndarray]] = {UPLOAD: [], DOWNLOAD: []}
        self._asked: dict[str, int] = {}
        self._made: dict[str, int] = {}  # or tried
        self._threads: list[threading.Thread] = []
        self.forget()

    def forget(self) -> None:
        """Give back what nobody took; the next copy asks again."""
        with self._lock:
            self._asked = {UPLOAD: 0, DOWNLOAD: 0}
            self._made = {UPLOAD: 0, DOWNLOAD: 0}
            for spare in self._spare.values():
                spare.clear()

    def ask(self, direction: str, leaders: int, nbytes: int) -> int:
        """Have memory made for ``leaders`` threads, ``nbytes`` each; how many have theirs."""
        with self._lock:
            made = self._made[direction]
            if leaders <= self._asked[direction] or made < self._asked[direction]:
                return made
            self._asked[direction] += 1
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(
                target=self._make, args=(direction, nbytes, self._asked), name=_NAME, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many
                self._made[direction] += 1
            else:
                self._threads.append(thread)
            return self._made[direction]

    def is_coming(self, direction: str) -> bool:
        """Whether memory that was asked for is not there yet."""
        return self._made[direction] < self._asked[direction]

    def take(self, direction: str) -> np.ndarray | None:
        """Memory that nobody has taken."""
        with contextlib.suppress(IndexError):
            return self._spare[direction].pop()
        return None

    def end(self) -> list[threading.Thread]:
        """Give all back; the threads that may be at it yet."""
        with self._lock:
            threads, self._threads = self._threads, []
        self.forget()
        return threads

    def is_wanted(self, when: Any) -> bool:
        """Whether nothing was given back since."""
        return when is self._asked

    def _make(self, direction: str, nbytes: int, asked: Any) -> None:
        # Not nice: it starts the thread that leads, which would be as nice for ever.
        lane.settled.wait()
        made = None
        if lane.ready("serve") is not None:
            with contextlib.suppress(DeviceError), self._device.active():
                if self._device.place() is self._place:
                    # Where there is none, whoever copies tries again, and tells why.
                    with contextlib.suppress(Exception):
                        made = self._device.pinned(nbytes, PURPOSE)
                        self._tell(direction, asked)
        with self._lock:
            if not self.is_wanted(asked):
                return
            if made is not None:
                self._spare[direction].append(made)
            self._made[direction] += 1
