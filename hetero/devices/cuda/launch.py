"""Launches on a CUDA device: kernels compiled, loaded and started, or captured for a graph."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hetero import locks
from hetero.devices.base import kernel_text
from hetero.devices.cuda import cooperative, cubin, cufft
from hetero.devices.cuda.context import CudaContexts
from hetero.devices.cuda.state import Constants
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError, GraphError
from hetero.kernels import Launch, LaunchPlan

_UNASKED_SHARED_BYTES = 48 << 10  # more of it a kernel gets only after an attribute is set


_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_LEGACY = 0  # the default stream of the current context, where our work goes


class CudaLaunches(CudaContexts):
    """A device on which kernels are launched, in its default stream or in one that is captured."""

    def _queue(self, stream: Any) -> Any:
        """PyCUDA's stream for one of ours; None for the default one."""
        queue = stream or self.local.queue
        return None if queue is None else queue.raw

    def compiled(self, text: str, defines: cubin.Defines) -> bytes:
        """Machine code of a kernel file, which stays in the cache on disk. Any thread may ask."""
        return cubin.cubin(kernel_text(text, self.dialect), self.arch, defines)

    def compile_ahead(self, wanted: Iterable[tuple[str, cubin.Defines]]) -> None:
        # Reading them from the cache on disk, to see that they are there, takes every fit's time.
        new = [one for one in dict.fromkeys(wanted) if one not in self.ahead]
        if new:
            cubin.make_ahead(
                [(kernel_text(text, self.dialect), self.arch, defines) for text, defines in new]
            )
            self.ahead.update(new)

    def build(self, text: str, kernel: str, defines: cubin.Defines) -> Any:
        kernels = self.state().kernels
        key = (text, kernel, defines)
        try:
            return kernels[key]
        except KeyError:
            module = self.driver.module_from_buffer(self.compiled(text, defines))
            self.state().modules.append(module)
            kernels[key] = module.get_function(kernel)
            return kernels[key]

    @contextlib.contextmanager
    def constant_memory(
        self, text: str, kernel: str, defines: cubin.Defines, name: str, nbytes: int
    ) -> Iterator[tuple[Any, int]]:
        self._not_captured("what fills constant memory")

        def load() -> Constants:
            module = self.driver.module_from_buffer(self.compiled(text, defines))
            self.state().modules.append(module)
            return Constants(module.get_function(kernel), *module.get_global(name))

        known, key = self.state().constants, (text, kernel, defines, name)
        found = known.get(key) or known.setdefault(key, load())
        with locks.sole(found, load) as mine:
            yield mine.kernel, mine.address

    def launch(
        self,
        kernel: Any,
        grid: int,
        block: int,
        arguments: list[int | float],
        shared_bytes: int = 0,
        stream: Any = None,
    ) -> None:
        if shared_bytes > _UNASKED_SHARED_BYTES:
            self._allow(kernel, shared_bytes)
        # What prepared_async_call does, less its inspection.
        kernel._launch_kernel(
            (grid, 1, 1),
            (block, 1, 1),
            _packed(arguments),
            shared_bytes,
            self._queue(stream),
        )

    def cooperative(
        self, text: str, kernel: str, defines: cubin.Defines, block: int, shared_bytes: int
    ) -> cooperative.CooperativeKernel | None:
        return cooperative.load(self, text, kernel, defines, block, shared_bytes)

    def transforms(self, layouts: Sequence[tuple[Any, ...]]) -> cufft.Plans:
        return cufft.Plans(self, layouts)

    def prepared(
        self, launch_plan: LaunchPlan, names: tuple[str, str, str], itemsize: int, **numbers: float
    ) -> Callable[[int, int, int], None]:
        """A launch plan in the current context, as a function of three named buffers' addresses.

        ``numbers`` are what else the launches name.
        """
        launches = [
            self._prepared(launch, (*names, "partial"), numbers) for launch in launch_plan.launches
        ]
        if not launch_plan.workspace:
            (only,) = launches
            return only
        allocate, nbytes = self.state().pool.allocate, launch_plan.workspace * itemsize

        def run(a: int, b: int, c: int) -> None:
            scratch = allocate(nbytes)
            for launch in launches:
                launch(a, b, c, scratch.address)

        return run

    def _prepared(
        self, planned: Launch, names: tuple[str, ...], numbers: dict[str, float]
    ) -> Callable[..., None]:
        """A launch as a function of the named addresses; the numbers that follow are packed."""
        kernel = self.build(planned.source, planned.kernel, planned.defines)
        if planned.shared_bytes > _UNASKED_SHARED_BYTES:
            self._allow(kernel, planned.shared_bytes)
        given = [numbers.get(a, a) if type(a) is str else a for a in planned.arguments]
        used = [argument for argument in given if type(argument) is str]
        pack, rest = struct.Struct(f"{len(used)}q").pack, _packed(given[len(used) :])
        order = [names.index(name) for name in used]
        launch, grid, block = kernel._launch_kernel, (planned.grid, 1, 1), (planned.block, 1, 1)
        shared_bytes = planned.shared_bytes
        if order == [0, 1, 2]:

            def as_given(a: int, b: int, c: int, scratch: int = 0) -> None:
                launch(grid, block, pack(a, b, c) + rest, shared_bytes, None)

            return as_given

        def run(*addresses: int) -> None:
            arguments = pack(*[addresses[i] for i in order]) + rest
            launch(grid, block, arguments, shared_bytes, None)

        return run

    def _allow(self, kernel: Any, shared_bytes: int) -> None:
        """Let a kernel have that much dynamic shared memory."""
        allowed = self.state().shared_bytes
        if allowed.get(kernel, 0) < shared_bytes:
            name = self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel.set_attribute(name, shared_bytes)
            allowed[kernel] = shared_bytes

    def keep(self, *things: Any) -> None:
        if self.local.queue is not None:
            self.local.kept.extend(things)

    @property
    def capturing(self) -> bool:
        return self.local.queue is not None

    def begin_capture(self, queue: Any) -> None:
        """From now on this thread's work without a stream goes to one that is captured."""
        self.local.queue = queue

    def end_capture(self) -> Workspace:
        """Back to the default stream; holds what must live as long as the captured work."""
        kept, self.local.queue, self.local.kept = self.local.kept, None, []
        held = Workspace(self, "graphs")
        for thing in kept:
            ours = isinstance(thing, self.driver.PointerHolderBase)
            held.hold(thing, thing.size if ours else 0)
        return held

    def _not_captured(self, what: str) -> None:
        if self.local.queue is not None:
            raise GraphError(f"{what} cannot be part of a graph")

    def follow_stream(self, handle: int) -> None:
        self._not_captured("waiting for another stream")
        _order(handle, _LEGACY)

    def precede_stream(self, handle: int) -> None:
        self._not_captured("holding another stream")
        _order(_LEGACY, handle)


def _packed(arguments: list[Any]) -> bytes:
    """Arguments of a launch; all of ours are 64-bit."""
    types = "".join(["d" if type(argument) is float else "q" for argument in arguments])
    return struct.pack(types, *arguments)


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
