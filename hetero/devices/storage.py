"""Memory of a context: held by a name and counted, kept beyond a call, limited for a call.

Of copies of host operands the one that was not used for longest goes first. Whoever holds the
buffer of a copy may use it after it was dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from hetero import locks
from hetero.arrays.kept import Kept, every
from hetero.errors import DeviceMemoryError
from hetero.tables import setting

T = TypeVar("T")
_lock = locks.new()  # held for a few steps only


@dataclasses.dataclass(slots=True, eq=False)
class Copy:
    """An operand's copy: a kernel takes ``buffer``, ``owner`` frees it."""

    device: str
    buffer: Any
    owner: Any
    nbytes: int
    used: float = dataclasses.field(default_factory=time.monotonic)  # by a call, the last time
    checksum: bytes | None = None  # of the operand, where that is asked for


class Storage:
    """What one context holds in its device's memory: things kept for later calls, copies that
    `Kept` objects have, and the count of workspaces. See `Device.storage`.

    Attributes
    ----------
    ring : hetero.host.copying.staging.Ring or None
        Of staged copies, from the first one on.
    """

    def __init__(self) -> None:
        self.ring: Any = None
        self._kept: dict[str, OrderedDict[Hashable, Any]] = {}
        self._workspaces: weakref.WeakSet[Any] = weakref.WeakSet()

    def put(self, purpose: str, key: Hashable, value: Any, most: int) -> None:
        """Keep a value, and of each purpose no more than the ``most`` that were asked for last."""
        with _lock:
            kept = self._kept.setdefault(purpose, OrderedDict())
            kept[key] = value
            while len(kept) > most:
                kept.popitem(last=False)

    def get(self, purpose: str, key: Hashable, most: int, make: Callable[[], T]) -> T:
        """What is kept under a key; made now where there is nothing."""
        with _lock:
            kept = self._kept.get(purpose, OrderedDict())
            if (value := kept.get(key)) is not None:
                kept.move_to_end(key)
        if value is None:
            value = make()
            self.put(purpose, key, value, most)
        return value

    @contextlib.contextmanager
    def borrowed(
        self, purpose: str, key: Hashable, most: int, make: Callable[[], T]
    ) -> Iterator[T]:
        """What is kept under a key, or made now, for this block alone: another thread, or a signal
        handler, that wants it meanwhile makes one of its own. Not kept any longer if the block
        raises."""
        with _lock:
            value = self._kept.get(purpose, OrderedDict()).pop(key, None)
        value = make() if value is None else value
        yield value
        self.put(purpose, key, value, most)

    def drop(self) -> bool:
        """Keep nothing any longer, but for copies of operands; whether something was kept.

        Memory that a call in another thread still uses is freed when that call ends.
        """
        with _lock:
            kept, self._kept = self._kept, {}
        return any(kept.values())

    def _copies(self) -> list[tuple[Copy, Kept]]:
        """The copies of operands, the least recently used first, and what is known of these."""
        found = [(copy, known) for known in every() if (copy := known.held.get(self)) is not None]
        return sorted(found, key=lambda item: item[0].used)

    def copied(self) -> int:
        """Bytes of the copies of operands."""
        return sum(copy.nbytes for copy, _ in self._copies())

    def shed(self, nbytes: float = math.inf) -> bool:
        """Let go of copies of that many bytes or more, the least recently used first.

        Whether there was one. Memory that a call still uses is freed when that call ends.
        """
        found = False
        for copy, known in self._copies():
            if nbytes > 0:
                known.held.pop(self, None)
                nbytes -= copy.nbytes
                found = True
        return found

    def let_go(self) -> None:
        """Keep nothing any longer; end the threads that copy, and give their buffers back."""
        self.drop()
        self.shed()
        if self.ring is not None:
            self.ring.close()

    def add(self, workspace: Any) -> None:
        """Count a workspace as long as it lives."""
        with _lock:
            self._workspaces.add(workspace)

    def sizes(self) -> dict[str, int]:
        """Purpose -> bytes, of copies and of all workspaces that live."""
        found = Counter({"kept operands": copied} if (copied := self.copied()) else {})
        with _lock:
            living = list(self._workspaces)
        for each in living:
            found[each.purpose] += each.nbytes
        return dict(found)


def shed(device: Any, nbytes: float) -> bool:
    """Let go of copies of operands on a device, as `Storage.shed`, and of what pools keep; True if
    there was one."""
    with device.active():
        found = device.storage().shed(nbytes)
    if found:
        device.trim()
    return found


def rounded(nbytes: int) -> int:
    """What a pool takes for these bytes: from 1 MiB on in four steps to the next power of two."""
    size = max(512, 1 << (nbytes - 1).bit_length())
    step = size >> 3 if size > 1 << 20 else size
    return max(-(-nbytes // step), 1) * step


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

    def __init__(self, device: Any, purpose: str, stream: Any = None) -> None:
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
        buffer = self.buffers.get(name)
        if buffer is None:
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


_budget: ContextVar[tuple[int, Counter[str]] | None] = ContextVar("hetero_budget", default=None)


class _Counted:
    """An owner of memory that is counted, of a device, as long as somebody holds it."""

    __slots__ = ("_device", "_held", "owner", "size")

    def __init__(self, held: Counter[str], device: str, size: int) -> None:
        self._held, self._device, self.size = held, device, size
        self.owner: Any = None

    def __int__(self) -> int:
        return int(self.owner)

    def __del__(self) -> None:
        with _lock:
            self._held[self._device] -= self.size


def allocated(device: str, nbytes: int, allocate: Any) -> Any:
    """The owner that ``allocate()`` gives, counted where the call that runs here has a limit, and
    refused beyond it."""
    budget = _budget.get()
    if budget is None:
        return allocate()
    most, held = budget
    with _lock:
        if held[device] + nbytes > most:
            raise DeviceMemoryError(
                f"{nbytes} bytes and {held[device]} held are more than the memory limit, {most}"
            )
        held[device] += nbytes
        counted = _Counted(held, device, nbytes)
    try:
        counted.owner = allocate()
    except BaseException:
        del counted  # now, though the error's traceback holds this frame
        raise
    return counted


def limited_to(most: int | None) -> contextlib.AbstractContextManager[None]:
    """Inside the block, in this thread, that many bytes of each device may be held; None: all."""
    return setting(_budget, None if most is None else (most, Counter()))
