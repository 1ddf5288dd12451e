"""Memory of a context: kept when it is freed, held beyond a call, limited for a call.

Of copies of host operands the one that was not used for longest goes first. Whoever holds the
buffer of a copy may use it after it was dropped.

Where a call has a limit of memory, devices ask before they allocate. What the call lets go of
counts no longer, what others hold never did.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from hetero import locks
from hetero.errors import DeviceMemoryError

T = TypeVar("T")
_lock = locks.new()  # held for a few steps only
_uses = itertools.count()


class Copy:
    """An operand's copy.

    Attributes
    ----------
    buffer : Any
        As a kernel takes it.
    owner : Any
        Frees it.
    nbytes : int
    used : int
        The number of its last use, among those of all copies.
    """

    __slots__ = ("buffer", "nbytes", "owner", "used")

    def __init__(self, buffer: Any, owner: Any, nbytes: int) -> None:
        self.buffer, self.owner, self.nbytes = buffer, owner, nbytes
        self.used = next(_uses)

    def use(self) -> None:
        """Note that a call takes it."""
        self.used = next(_uses)


class Copies:
    """What one context holds copies of. Keys have a dict ``held``, which tells where their copies
    are; see `hetero.arrays.kept.Kept`.
    """

    def __init__(self) -> None:
        self._held: dict[Any, Copy] = {}

    def find(self, key: Any) -> Copy | None:
        return self._held.get(key)

    def put(self, key: Any, copy: Copy, device: str) -> None:
        """Hold a copy on the device of that name from now on."""
        self._held[key] = copy
        key.held[self] = device

    def remove(self, key: Any) -> None:
        """Let go of a copy; called by finalizers, so that no lock is taken."""
        key.held.pop(self, None)
        self._held.pop(key, None)

    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.nbytes for copy in list(self._held.values()))

    def shed(self, nbytes: int | None = None) -> bool:
        """Let go of copies of that many bytes or more, the least recently used; default: all.

        Memory that a call still uses is freed when that call ends.

        Returns
        -------
        bool
            Whether there was one.
        """
        found = False
        with _lock:
            left = self.nbytes() if nbytes is None else nbytes
            for key, copy in sorted(self._held.items(), key=lambda item: item[1].used):
                if left <= 0:
                    break
                self.remove(key)
                left -= copy.nbytes
                found = True
        return found


class Storage:
    """What one context holds in its device's memory: things kept for later calls, and the count.

    It belongs to the context and is dropped with it. See `Device.storage`.

    Attributes
    ----------
    copies : Copies
        Of operands that do not change.
    """

    def __init__(self) -> None:
        self.copies = Copies()
        self._kept: dict[str, OrderedDict[Hashable, Any]] = {}
        self._workspaces: weakref.WeakSet[Any] = weakref.WeakSet()

    def find(self, purpose: str, key: Hashable) -> Any:
        """What is kept under a key, or None."""
        with _lock:
            kept = self._kept.get(purpose, {})
            if key not in kept:
                return None
            kept.move_to_end(key)
            return kept[key]

    def put(self, purpose: str, key: Hashable, value: Any, most: int) -> None:
        """Keep a value, and of each purpose no more than the ``most`` that were asked for last."""
        with _lock:
            kept = self._kept.setdefault(purpose, OrderedDict())
            kept[key] = value
            while len(kept) > most:
                kept.popitem(last=False)

    def get(self, purpose: str, key: Hashable, most: int, make: Callable[[], T]) -> T:
        """What is kept under a key; made now where there is nothing."""
        value = self.find(purpose, key)
        if value is None:
            value = make()
            self.put(purpose, key, value, most)
        return value

    def drop(self) -> bool:
        """Keep nothing any longer, but for copies of operands; whether something was kept.

        Memory that a call in another thread still uses is freed when that call ends.
        """
        with _lock:
            kept, self._kept = self._kept, {}
        return any(kept.values())

    def drop_all(self) -> None:
        """`drop`, copies included."""
        self.drop()
        self.copies.shed()

    def add(self, workspace: Any) -> None:
        """Count a workspace as long as it lives."""
        with _lock:
            self._workspaces.add(workspace)

    def sizes(self) -> dict[str, int]:
        """Purpose -> bytes, of all workspaces that live."""
        with _lock:
            living = list(self._workspaces)
        found: dict[str, int] = {}
        for each in living:
            found[each.purpose] = found.get(each.purpose, 0) + each.nbytes
        return found


def rounded(nbytes: int) -> int:
    """What a pool takes for these bytes: from 1 MiB on in four steps to the next power of two."""
    size = max(512, 1 << (nbytes - 1).bit_length())
    if size > 1 << 20:
        step = size >> 3
        size = -(-nbytes // step) * step
    return size


class Pool:
    """Freed memory kept for the next call: the driver's own allocation takes 100 us and waits.

    PyCUDA's pool aborts the process when memory is released while its context is not current, which
    a garbage collector cannot promise; here releasing makes no call to the driver.

    Parameters
    ----------
    driver : module
    ordinal : int
        Of the device.
    drop : callable
        Called where memory is short: lets go of what is only kept for later calls.
    shed : callable
        ``shed(nbytes)`` is called where it is short still: lets go of copies of operands of
        that many bytes or more, and tells whether there was one.

    Attributes
    ----------
    nbytes : int
        All that was had from the driver and not given back.
    """

    def __init__(
        self,
        driver: Any,
        ordinal: int,
        drop: Callable[[], object],
        shed: Callable[[int], bool],
    ) -> None:
        self.nbytes = 0
        self._driver = driver
        self._drop = drop
        self._shed = shed
        self._free: dict[int, list[Any]] = {}
        self._all: list[Any] = []

        class Block(driver.PointerHolderBase):
            """Device memory that goes back to the pool when nobody holds it, in any thread."""

            def __init__(block, size: int, allocation: Any) -> None:
                super().__init__()
                block.size = size
                block.allocation = allocation
                block.address = int(allocation)
                block.ordinal = ordinal

            def get_pointer(block) -> int:
                return block.address

            def __int__(block) -> int:
                return block.address

            __index__ = __int__

            def __del__(block) -> None:
                self._free.setdefault(block.size, []).append(block.allocation)

        self._block = Block

    def allocate(self, nbytes: int) -> Any:
        """Memory for ``nbytes`` bytes, as PyCUDA's pointer holder."""
        size = rounded(nbytes)
        try:
            return self._block(size, self._free[size].pop())
        except (KeyError, IndexError):
            pass
        if self.unused() + size > self._driver.mem_get_info()[0] // 2:
            self.trim()
        try:
            allocation = self._driver.mem_alloc(size)
        except self._driver.MemoryError as error:
            allocation = self._when_short(size, error)
        self._all.append(allocation)
        self.nbytes += size
        return self._block(size, allocation)

    def _when_short(self, size: int, refused: Exception) -> Any:
        """An allocation that was refused, once there is room; what is easily made anew goes first.

        Raises
        ------
        Exception
            The one given, where nothing is left to let go of.
        """
        self._drop()
        while True:
            if self.trim():
                try:
                    return self._driver.mem_alloc(size)
                except self._driver.MemoryError:
                    pass
            if not self._shed(size):
                raise refused

    def unused(self) -> int:
        """Bytes that are kept and in nobody's use."""
        return sum(size * len(free) for size, free in list(self._free.items()))

    def trim(self) -> bool:
        """Give unused memory back to the driver, once nothing that runs can still touch it.

        True if there was some.
        """
        self._driver.Context.synchronize()
        found = False
        for size, free in list(self._free.items()):
            while True:
                try:
                    unused = free.pop()  # in one step: other threads take and return blocks
                except IndexError:
                    break
                found = True
                self._all.remove(unused)
                self.nbytes -= size
                unused.free()
        return found

    def close(self) -> None:
        """Give everything back to the driver; called at exit, in the pool's context."""
        for allocation in self._all:
            allocation.free()
        self._all.clear()


class Budget:
    """What one call may hold of each device's memory.

    Parameters
    ----------
    most : int
        Bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[str, int] = {}

    def take(self, device: str, nbytes: int) -> None:
        """Count bytes that are about to be allocated.

        Raises
        ------
        DeviceMemoryError
            If that is more than there may be.
        """
        with _lock:
            held = self._held.get(device, 0)
            if held + nbytes > self.most:
                raise DeviceMemoryError(
                    f"{nbytes} bytes and {held} held are more than the memory limit, {self.most}"
                )
            self._held[device] = held + nbytes

    def give(self, device: str, nbytes: int) -> None:
        """Count bytes no longer."""
        with _lock:
            self._held[device] -= nbytes


class _Counted:
    """An owner of memory that is counted as long as somebody holds it."""

    __slots__ = ("_budget", "_device", "owner", "size")

    def __init__(self, owner: Any, budget: Budget, device: str, nbytes: int) -> None:
        self.owner, self.size = owner, nbytes
        self._budget, self._device = budget, device

    def __int__(self) -> int:
        return int(self.owner)

    def __del__(self) -> None:
        self._budget.give(self._device, self.size)


_budget: ContextVar[Budget | None] = ContextVar("hetero_budget", default=None)


def allocated(device: str, nbytes: int, allocate: Any) -> Any:
    """The owner that ``allocate()`` gives, counted where the call that runs here has a limit."""
    budget = _budget.get()
    if budget is None:
        return allocate()
    budget.take(device, nbytes)
    try:
        owner = allocate()
    except BaseException:
        budget.give(device, nbytes)
        raise
    return _Counted(owner, budget, device, nbytes)


@contextmanager
def limited_to(most: int | None) -> Iterator[None]:
    """Inside the block, in this thread, that many bytes of each device may be held; None: all."""
    token = _budget.set(None if most is None else Budget(most))
    try:
        yield
    finally:
        _budget.reset(token)
