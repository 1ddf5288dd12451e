"""How many bytes of a device's memory a call may hold at once, where a limit is set.

Devices ask before they allocate. What a call lets go of counts no longer, what others hold never
did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hetero import locks
from hetero.errors import DeviceMemoryError


def rounded(nbytes: int) -> int:
    """What a pool takes for these bytes: from 1 MiB on in four steps to the next power of two."""
    size = max(512, 1 << (nbytes - 1).bit_length())
    if size > 1 << 20:
        step = size >> 3
        size = -(-nbytes // step) * step
    return size


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
        self._lock = locks.new()

    def take(self, device: str, nbytes: int) -> None:
        """Count bytes that are about to be allocated.

        Raises
        ------
        DeviceMemoryError
            If that is more than there may be.
        """
        with self._lock:
            held = self._held.get(device, 0)
            if held + nbytes > self.most:
                raise DeviceMemoryError(
                    f"{nbytes} bytes beside {held} are more than the memory limit, {self.most}"
                )
            self._held[device] = held + nbytes

    def give(self, device: str, nbytes: int) -> None:
        """Count bytes no longer."""
        with self._lock:
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
def of(most: int | None) -> Iterator[None]:
    """Inside the block, in this thread, that many bytes of each device may be held; None: all."""
    token = _budget.set(None if most is None else Budget(most))
    try:
        yield
    finally:
        _budget.reset(token)
