"""Memory of a CUDA context that is kept when it is freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero.devices.budget import rounded


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
