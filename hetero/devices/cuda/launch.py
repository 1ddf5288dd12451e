"""Kernels of a CUDA device: compiled, loaded into a context, and prepared to be launched again."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hetero import locks
from hetero.devices.cuda import cubin
from hetero.devices.cuda.state import Constants
from hetero.kernels import Launch, LaunchPlan, kernel_text

UNASKED_SHARED_BYTES = 48 << 10  # more of it a kernel gets only after `Kernels.allow`


class Kernels:
    """The kernels of a device, which belong to the context that is active.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: Any) -> None:
        self._device, self._driver = device, device.driver
        self._ahead: set[tuple[str, Any]] = set()  # files that were compiled, with macros

    def compiled(self, text: str, defines: cubin.Defines) -> bytes:
        """Machine code of a kernel file, which stays in the cache on disk. Any thread may ask."""
        return cubin.cubin(kernel_text(text, self._device.dialect), self._device.arch, defines)

    def compile_ahead(self, wanted: Iterable[tuple[str, cubin.Defines]]) -> None:
        """As `Device.compile_ahead`."""
        # Reading them from the cache on disk, to see that they are there, takes every fit's time.
        new = [one for one in dict.fromkeys(wanted) if one not in self._ahead]
        if new:
            dialect, arch = self._device.dialect, self._device.arch
            cubin.make_ahead([(kernel_text(text, dialect), arch, defines) for text, defines in new])
            self._ahead.update(new)

    def load(self, text: str, kernel: str, defines: cubin.Defines) -> Any:
        """A kernel that was not loaded yet."""
        made = self._module(text, defines).get_function(kernel)
        self._device.state().kernels[text, kernel, defines] = made
        return made

    def _module(self, text: str, defines: cubin.Defines) -> Any:
        module = self._driver.module_from_buffer(self.compiled(text, defines))
        self._device.state().modules.append(module)
        return module

    @contextlib.contextmanager
    def constant_memory(
        self, text: str, kernel: str, defines: cubin.Defines, name: str
    ) -> Iterator[tuple[Any, int]]:
        """As `Device.constant_memory`."""

        def load() -> Constants:
            module = self._module(text, defines)
            return Constants(module.get_function(kernel), *module.get_global(name))

        known, key = self._device.state().constants, (text, kernel, defines, name)
        found = known.get(key) or known.setdefault(key, load())
        with locks.sole(found, load) as mine:
            yield mine.kernel, mine.address

    def allow(self, kernel: Any, shared_bytes: int) -> None:
        """Let a kernel have that much dynamic shared memory."""
        allowed = self._device.state().shared_bytes
        if allowed.get(kernel, 0) < shared_bytes:
            name = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel.set_attribute(name, shared_bytes)
            allowed[kernel] = shared_bytes

    def prepared(
        self, launch_plan: LaunchPlan, names: tuple[str, str, str], itemsize: int, **numbers: float
    ) -> Callable[[int, int, int], None]:
        """As `CudaDevice.prepared`."""
        launches = [
            self._prepared(launch, (*names, "partial"), numbers) for launch in launch_plan.launches
        ]
        if not launch_plan.workspace:
            (only,) = launches
            return only
        allocate, nbytes = self._device.state().pool.allocate, launch_plan.workspace * itemsize

        def run(a: int, b: int, c: int) -> None:
            scratch = allocate(nbytes)
            for launch in launches:
                launch(a, b, c, scratch.address)

        return run

    def _prepared(
        self, planned: Launch, names: tuple[str, ...], numbers: dict[str, float]
    ) -> Callable[..., None]:
        """A launch as a function of the named addresses; the numbers that follow are packed."""
        kernel = self._device.build(planned.source, planned.kernel, planned.defines)
        if planned.shared_bytes > UNASKED_SHARED_BYTES:
            self.allow(kernel, planned.shared_bytes)
        given = [numbers.get(a, a) if type(a) is str else a for a in planned.arguments]
        used = [argument for argument in given if type(argument) is str]
        pack, rest = struct.Struct(f"{len(used)}q").pack, packed(given[len(used) :])
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


def packed(arguments: list[Any]) -> bytes:
    """Arguments of a launch; all of ours are 64-bit."""
    types = "".join(["d" if type(argument) is float else "q" for argument in arguments])
    return struct.pack(types, *arguments)
