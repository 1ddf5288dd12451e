"""Compiled kernels: made by NVRTC, kept in a cache of our own that is checked on reading.

The cache's folder must be the user's alone, which keeps out code that others put there. Each file's
digest is of its name, which stands for source and options, and its content: neither a damaged file
nor one for another kernel is taken.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import operator
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hetero import locks, paths
from hetero.devices.base import Defines
from hetero.devices.cuda import driver
from hetero.devices.cuda.context import InContexts
from hetero.errors import KernelCompileError
from hetero.imports import INSTALL, load
from hetero.kernels import Launch, LaunchPlan, kernel_text

_KIND = "cubin"  # of things in the cache
_under_way: dict[str, Any] = {}  # of each name a lock: what several threads need is compiled once
_ahead: set[tuple[str, str, Defines]] = set()  # (architecture, file, macros) that were compiled
log = logging.getLogger("hetero")


@functools.cache
def version() -> str | None:
    """Which compiler there is, such as "NVRTC 13.0", or None."""
    try:
        status, major, minor = load("cuda.bindings.nvrtc").nvrtcVersion()
    except Exception:  # package or library missing: both mean there is no NVRTC
        return None
    return f"NVRTC {major}.{minor}" if int(status) == 0 else None


def cubin(text: str, arch: str, defines: Defines) -> bytes:
    """Machine code for one architecture, such as "sm_90", from the cache where it is there.

    Raises
    ------
    KernelCompileError
        With the compiler's own words.
    """
    name = _name(text, arch, defines)
    with _under_way.setdefault(name, locks.new()):
        code = paths.cached(_KIND, name)
        if code is None:
            code = _compile(text, arch, _options(defines))
            paths.cache(_KIND, name, code)
    return code


def _name(text: str, arch: str, defines: Defines) -> str:
    """A file's name, by all that the code depends on."""
    parts = (text, arch, *_options(defines), str(version()))
    return f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.cubin"


def _options(defines: Defines) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in defines)


def _compile(text: str, arch: str, options: tuple[str, ...]) -> bytes:
    if version() is None:
        raise KernelCompileError(f"there is no NVRTC to compile kernels with; {INSTALL['cuda']}")
    nvrtc = load("cuda.bindings.nvrtc")

    def check(result: tuple) -> Any:
        if int(result[0]) != 0:
            raise KernelCompileError(f"NVRTC: {result[0]!r}")
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    try:
        flags = [o.encode() for o in (f"--gpu-architecture={arch}", *options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        words = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        check(nvrtc.nvrtcGetProgramLog(program, words))
        if int(status) != 0:
            message = words.rstrip(b"\0").decode(errors="replace")
            raise KernelCompileError(f"NVRTC failed for {arch}: {message or status!r}")
        code = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


_UNASKED_SHARED_BYTES = 48 << 10  # more of it a kernel gets only after `Compiling.allow`
# Invalid value, no binary for this card, PTX of another version, not found, too many blocks for a
# cooperative launch, not supported: the card or the driver cannot do what was asked, and is well.
_UNABLE = frozenset({1, 209, 218, 222, 500, 720, 801})
_COOPERATIVE = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CooperativeKernel(NamedTuple):
    """A kernel for cooperative launches of one block shape, which PyCUDA does not have: all blocks
    are on the device at once and may wait for each other.

    Attributes
    ----------
    most_blocks : int
        That the device holds at once.
    """

    function: int
    block: int
    shared_bytes: int
    most_blocks: int

    def launch(self, grid: int, arguments: list[int | float], stream: Any = None) -> None:
        """Start the kernel, by default in the default queue; arguments as for `Device.launch`."""
        values = [
            ctypes.c_double(a) if type(a) is float else ctypes.c_int64(int(a)) for a in arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = grid, 1, 1, self.block, 1, 1, self.shared_bytes
        queue = driver.LEGACY if stream is None else stream.handle
        driver.call("cuLaunchCooperativeKernel", self.function, *shape, queue, addresses)


class Compiling(InContexts):
    """What a CUDA device does with kernels, which belong to the context that is active."""

    kind = "cuda"
    arch: str

    def build(self, text: str, kernel: str, defines: Defines) -> Any:
        kernels, key = self.state().kernels, (text, kernel, defines)
        try:
            return kernels[key]
        except KeyError:
            made = kernels[key] = self._module(text, defines).get_function(kernel)
            return made

    def _module(self, text: str, defines: Defines) -> Any:
        code = cubin(kernel_text(text, self.kind), self.arch, defines)
        module = self.driver.module_from_buffer(code)
        self.state().modules.append(module)  # PyCUDA unloads one that is dropped
        return module

    def compile_ahead(self, wanted: Iterable[tuple[str, Defines]]) -> None:
        # Reading them from the cache on disk, to see that they are there, takes every fit's time.
        new = [one for one in dict.fromkeys(wanted) if (self.arch, *one) not in _ahead]
        if not new or paths.private_folder(_KIND) is None:  # else they would be compiled twice
            return
        _ahead.update((self.arch, *one) for one in new)
        asked = [(kernel_text(text, self.kind), self.arch, defines) for text, defines in new]
        missing = [one for one in asked if paths.cached(_KIND, _name(*one)) is None]
        if len(missing) > 1:  # of many processors one is left to whoever measures meanwhile
            number = min(max((os.cpu_count() or 1) - 1, 2), len(missing))
            with load("concurrent.futures").ThreadPoolExecutor(number) as threads:
                for one in missing:  # what fails here fails again where it is built
                    threads.submit(cubin, *one)

    def constant_memory(
        self, text: str, kernel: str, defines: Defines, name: str, nbytes: int
    ) -> tuple[Any, int, None]:
        known, key = self.state().kernels, (text, kernel, defines, name)
        if key not in known:  # the memory is its module's
            module = self._module(text, defines)
            known[key] = module.get_function(kernel), int(module.get_global(name)[0]), None
        return known[key]

    def allow(self, kernel: Any, shared_bytes: int) -> None:
        """Let a kernel have that much dynamic shared memory, where it has to be asked for."""
        allowed = self.state().shared_bytes
        if allowed.get(kernel, _UNASKED_SHARED_BYTES) < shared_bytes:
            name = self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel.set_attribute(name, shared_bytes)
            allowed[kernel] = shared_bytes

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
            self.allow(kernel, shared_bytes)
        # What prepared_async_call does, less its inspection.
        kernel._launch_kernel(
            (grid, 1, 1), (block, 1, 1), _packed(arguments), shared_bytes, stream and stream.raw
        )

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
        self.allow(kernel, planned.shared_bytes)
        given = [numbers.get(a, a) if type(a) is str else a for a in planned.arguments]
        used = [argument for argument in given if type(argument) is str]
        pack, rest = struct.Struct(f"{len(used)}q").pack, _packed(given[len(used) :])
        order = [names.index(name) for name in used]
        taken = operator.itemgetter(*order)
        launch, grid, block = kernel._launch_kernel, (planned.grid, 1, 1), (planned.block, 1, 1)
        shared_bytes = planned.shared_bytes

        def as_given(a: int, b: int, c: int, scratch: int = 0) -> None:  # 0.3 us less
            launch(grid, block, pack(a, b, c) + rest, shared_bytes, None)

        def run(*addresses: int) -> None:
            launch(grid, block, pack(*taken(addresses)) + rest, shared_bytes, None)

        return as_given if order == [0, 1, 2] else run

    def cooperative(
        self, text: str, kernel: str, defines: Defines, block: int, shared_bytes: int
    ) -> CooperativeKernel | None:
        kernels, key = self.state().kernels, (text, kernel, defines, block, shared_bytes)
        if key in kernels:
            return kernels[key]
        found = None
        try:
            if driver.given("cuDeviceGetAttribute", _COOPERATIVE, self.number):
                code = cubin(kernel_text(text, self.kind), self.arch, defines)
                # The binary is loaded a second time, by the driver's own function.
                module = driver.given("cuModuleLoadData", code)
                function = driver.given("cuModuleGetFunction", module, kernel.encode())
                driver.call("cuFuncSetAttribute", function, _SHARED_BYTES, shared_bytes)
                count = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
                resident = driver.given(count, function, block, shared_bytes)
                most = resident * self.multiprocessors
                found = CooperativeKernel(function, block, shared_bytes, most) if most else None
        except (AttributeError, KernelCompileError, driver.DriverError) as error:
            if getattr(error, "status", 1) not in _UNABLE:
                raise
            # Too old a driver, or another card: there is another way.
            log.info("no cooperative launches on %s: %s", self.name, error)
        kernels[key] = found
        return found


def _packed(arguments: list[Any]) -> bytes:
    """Arguments of a launch; all of ours are 64-bit."""
    types = "".join(["d" if type(argument) is float else "q" for argument in arguments])
    return struct.pack(types, *arguments)
