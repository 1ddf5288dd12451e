"""The contexts that a CUDA device works in: made current, given up, opened anew; what each has,
its memory first of all.

PyCUDA gives back a stream when it is dropped, in whatever context is current then, and ends the
process if the driver refuses. Ours go back to their context's lists, without a call, as events do.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from hetero import locks
from hetero.devices.base import Device, reraise
from hetero.devices.cuda import driver
from hetero.devices.storage import Storage, rounded
from hetero.errors import DeviceError, DeviceMemoryError

_lock = locks.new()
log = logging.getLogger("hetero")


def _is_short(error: Exception) -> bool:
    return "out of memory" in str(error)  # PyCUDA's carries text, no code


class Active:
    """Makes a context current for a ``with`` block and turns PyCUDA's errors into ours."""

    __slots__ = ("_device", "_outer", "_pushed")

    def __init__(self, device: InContexts) -> None:
        self._device = device

    def __enter__(self) -> InContexts:
        device, self._pushed = self._device, False
        try:
            context = device.own_context()
            if context is None:
                context = device.primary()
                context.push()
                self._pushed = True
            state = device.state_of(context)
        except Exception as error:
            if self._pushed:
                self._pop()
            reraise(device, error, _is_short(error))
        self._outer = getattr(device.local, "state", None)
        device.local.state = state
        return device

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._device.local.state = self._outer
        refused = self._pop() if self._pushed else None
        if error is None:
            if refused is not None:
                reraise(self._device, refused, _is_short(refused))
        elif isinstance(error, (DeviceError, self._device.driver.Error, MemoryError)):
            reraise(self._device, error, _is_short(error))

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
            device.give_up()
        return refused


class InContexts(Device):
    """A CUDA device as what works in contexts: the thread's own, where it has one that PyCUDA made
    current and in which its arrays lie, else the primary one.

    Attributes
    ----------
    driver : module
        ``pycuda.driver``, or `hetero.devices.cuda.driver`.
    number : int
        The driver's, of the device.
    held : Context or None
        The primary one, while it is retained.
    states : dict
        Context -> `State`.
    """

    def __init__(self, ordinal: int, package: Any) -> None:
        self.driver, self.ordinal, self.errors = package, ordinal, (package.Error,)
        self.raw, self.number = package.Device(ordinal), driver.given("cuDeviceGet", ordinal)
        self.held: Any = None
        self.states: dict[Any, State] = {}
        self.local = threading.local()  # ``state``: of the context that `Active` made current
        self._process = os.getpid()

    def primary(self) -> Any:
        """The primary context, retained on first use and given back at exit."""
        with _lock:
            if self.held is None:
                self.held = self.raw.retain_primary_context()
                atexit.register(self.close)
            return self.held

    def own_context(self) -> Any:
        """The context that PyCUDA has current in this thread, None where it is not this device's.

        It is the primary one inside `active`.
        """
        current = self.driver.Context.get_current()
        is_ours = current is not None and driver.given("cuCtxGetDevice") == self.number
        return current if is_ours else None

    def state_of(self, context: Any) -> State:
        """What belongs to a context, which is current."""
        try:
            return self.states[context]
        except KeyError:
            with _lock:
                holder = getattr(self.driver, "PointerHolderBase", object)
                return self.states.setdefault(context, State(holder, self.ordinal))

    def active(self) -> Active:
        return Active(self)

    def state(self) -> State:
        """What belongs to the context that `active` made current in this thread."""
        return self.local.state

    def holds(self, wanted: State) -> bool:
        """Whether the context that something belongs to is still in use."""
        return any(state is wanted for state in self.states.values())

    def same_in_threads(self) -> bool:
        own = self.own_context()
        return own is None or own == self.primary()

    context_handle = staticmethod(driver.current_context)  # in this thread, None without one

    def storage(self) -> Storage:
        return self.state().storage

    def memory_held(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for state in list(self.states.values()):
            found.update(state.memory())
        return dict(found)

    def trim(self) -> bool:
        with self.active():
            self.storage().drop()
            return self.state().pool.trim()

    def clear(self) -> None:
        """Let go of what contexts keep; give back what the primary and this thread's own have."""
        used = [c for c in (self.held, self.own_context()) if c is not None]
        for context, state in list(self.states.items()):
            state.storage.let_go()
            if context in used:
                with driver.pushed(context.handle):
                    state.pool.trim()

    def close(self) -> None:
        """Give everything back, at the process's end."""
        if os.getpid() != self._process or self.held is None:
            return  # a forked child must not touch its parent's context
        with contextlib.suppress(DeviceError), self.active():  # else the driver frees the rest
            self.clear()
            for state in self.states.values():  # what PyCUDA ends while its context is there
                for kept in (state.kernels, state.modules, state.streams):
                    kept.clear()
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
            self.driver.Context.get_current()  # here PyCUDA forgets one that is detached
            if driver.current_context() == handle:
                driver.pop()
            driver.status_of("cuDevicePrimaryCtxRelease_v2", self.number)
            lost = [s for c, s in self.states.items() if c == primary]
            self.states = {c: s for c, s in self.states.items() if c != primary}
        for state in lost:
            state.storage.let_go()

    def reopen(self) -> None:
        """Give up a primary context that work has made unusable."""
        try:
            with self.active():
                driver.call("cuCtxSynchronize")
        except DeviceError as error:
            log.debug("%s gets a new context: %s", self.name, error)
            self.give_up()


class Pool:
    """Memory of one context. The driver's own allocation takes 100 us and waits, so freed memory is
    kept for the next call; freeing makes no call to the driver, in whatever thread and context a
    garbage collector does it.

    Where memory is short, what is only kept for later calls in ``storage`` goes; where it is short
    still, copies of operands. ``holder`` is what PyCUDA's arrays have for pointers, or `object`.
    """

    def __init__(self, holder: type, ordinal: int, storage: Storage) -> None:
        self.nbytes = 0  # that were had from the driver and not given back
        self._storage = storage
        self._free: dict[int, list[int]] = {}  # size -> addresses

        class Block(holder):
            """Device memory that goes back to the pool when nobody holds it, in any thread."""

            def __init__(block, size: int, address: int) -> None:
                super().__init__()
                block.size, block.address, block.ordinal = size, address, ordinal

            def get_pointer(block) -> int:
                return block.address

            __int__ = __index__ = get_pointer

            def __del__(block) -> None:
                self._free.setdefault(block.size, []).append(block.address)

        self._block = Block

    def allocate(self, nbytes: int) -> Any:
        """Memory for ``nbytes`` bytes, as PyCUDA's pointer holder."""
        size = rounded(nbytes)
        try:
            return self._block(size, self._free[size].pop())
        except (KeyError, IndexError):
            pass
        if self.unused() + size > driver.free_memory() // 2:
            self.trim()
        try:
            address = driver.given("cuMemAlloc_v2", size)
        except DeviceMemoryError as error:
            address = self._when_short(size, error)
        self.nbytes += size
        return self._block(size, address)

    def _when_short(self, size: int, refused: Exception) -> int:
        """An allocation that was refused, once there is room; what is easily made anew goes first,
        and the error is raised where nothing is left to let go of."""
        self._storage.drop()
        while True:
            if self.trim():
                with contextlib.suppress(DeviceMemoryError):
                    return driver.given("cuMemAlloc_v2", size)
            if not self._storage.shed(size):
                raise refused

    def unused(self) -> int:
        """Bytes that are kept and in nobody's use."""
        return sum(size * len(free) for size, free in list(self._free.items()))

    def trim(self) -> bool:
        """Give unused memory back to the driver, once nothing that runs can still touch it; True
        if there was some."""
        driver.call("cuCtxSynchronize")
        found = False
        for size, free in list(self._free.items()):
            with contextlib.suppress(IndexError):  # other threads take and return blocks
                while True:
                    address = free.pop()
                    found = True
                    self.nbytes -= size
                    driver.twice("cuMemFree_v2", address)
        return found


class State:
    """What belongs to one context: memory, loaded kernels, cuBLAS handle."""

    def __init__(self, holder: type, ordinal: int) -> None:
        self.storage = Storage()
        self.pool = Pool(holder, ordinal, self.storage)
        self.modules: list[Any] = []
        self.kernels: dict[Any, Any] = {}  # of all kinds, by what they were asked for with
        self.handles: dict[str, Any] = {}
        self.shared_bytes: dict[Any, int] = {}
        self.streams: list[Any] = []  # unused ones, see `Lent`
        self.events: dict[int, list[int]] = defaultdict(list)  # by their flags

    def memory(self) -> dict[str, int]:
        """Purpose -> bytes; what no workspace accounts for belongs to arrays and running calls."""
        unused, found = self.pool.unused(), self.storage.sizes()
        calls = self.pool.nbytes - unused - sum(found.values())
        rest = {"arrays and running calls": max(calls, 0), "free in the pool": unused}
        return found | {purpose: nbytes for purpose, nbytes in rest.items() if nbytes}


class Lent:
    """A stream of PyCUDA's, or the driver's handle of an event, that goes back to a list when
    nobody holds it.

    Attributes
    ----------
    raw : Stream or int
    handle : int
        The driver's.
    """

    __slots__ = ("_home", "handle", "raw")

    def __init__(self, home: list[Any], make: Callable[[], Any]) -> None:
        self._home = home
        try:
            self.raw = home.pop()
        except IndexError:
            self.raw = make()
        self.handle = self.raw if isinstance(self.raw, int) else self.raw.handle

    def __del__(self) -> None:
        if hasattr(self, "raw"):
            self._home.append(self.raw)
