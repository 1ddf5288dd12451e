"""CUDA devices whose memory is the host's: the whole path of device arrays without a GPU.

Addresses are real, so whatever is computed from pointers, strides and spans is put to the proof.
Every allocation stands between guard bytes that read as NaN and must not change.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import sys
import time
import types
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hetero import devices, registry
from hetero.arrays import Access, libraries
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.profile import inventory

_GUARD = 256


class Memory:
    """Bytes between guards; of a device, which counts them as long as somebody holds them."""

    def __init__(self, nbytes: int, device: FakeCuda | None = None) -> None:
        self._bytes = np.full(nbytes + 2 * _GUARD + 64, 0xFF, np.uint8)
        start = self._bytes.ctypes.data + _GUARD
        self.address = start + -start % 64
        self.nbytes, self.device = nbytes, device

    def damaged(self) -> bool:
        """Whether anything outside was written to."""
        low = self.address - self._bytes.ctypes.data
        outside = np.concatenate([self._bytes[:low], self._bytes[low + self.nbytes :]])
        return bool((outside != 0xFF).any())

    def __del__(self) -> None:
        if self.device is not None:
            self.device.was_damaged |= self.damaged()
            self.device.live -= self.nbytes


def view(address: int, shape, dtype, strides) -> np.ndarray:
    """NumPy's view of memory at an address; strides in bytes."""
    dtype, (low, high) = np.dtype(dtype), ends(shape, strides)
    raw = (ctypes.c_char * (high - low + dtype.itemsize)).from_address(address + low)
    return np.ndarray(shape, dtype, raw, -low, strides)


def ends(shape, strides) -> tuple[int, int]:
    """Where an array's elements begin that lie first and last, in bytes from its address."""
    steps = [s * (n - 1) for s, n in zip(strides, shape, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)


def raising(error):
    """A function of any arguments that raises an error."""

    def fails(*arguments, **options):
        raise error

    return fails


def noting(monkeypatch, owner, name, note):
    """Have ``note(*arguments)`` called before a method of an object or a class, or of one of its
    objects; it may raise in its place."""
    plain = getattr(owner, name)

    def noted(*arguments, **options):
        note(*(arguments[1:] if isinstance(owner, type) else arguments))
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, noted)


def failing(monkeypatch, owner, name, number, error):
    """Have the call of that number of a method raise an error; a list, as long as calls were."""
    calls = []

    def note(*arguments):
        calls.append(name)
        if len(calls) == number:
            raise error

    noting(monkeypatch, owner, name, note)
    return calls


def uploads(monkeypatch, device):
    """A list: the bytes of each copy that is sent to a device, or to all of its type."""
    sizes = []

    def note(direction, array, *where):
        if direction == "upload":
            sizes.append(array.nbytes)

    noting(monkeypatch, device, "enqueue", note)
    return sizes


def moves(monkeypatch, device, least):
    """A list of ("upload" or "download", bytes): a device's copies of ``least`` bytes or more."""
    found = []
    for name in ("upload", "begin_upload", "download", "begin_download"):

        def note(*arguments, name=name):
            if (nbytes := arguments["down" in name].nbytes) >= least:
                found.append((name.removeprefix("begin_"), nbytes))

        noting(monkeypatch, device, name, note)
    return found


def change_rows(monkeypatch, operation, change):
    """Put ``change(row)`` in place of each row that the registry has of an operation."""
    rows = [change(row) for row in registry.lookup(operation)]
    monkeypatch.setitem(registry._implementations, operation, rows)


def in_threads(*tasks):
    """Do tasks at once, each in a thread of its own; returns when all have ended."""
    with ThreadPoolExecutor(len(tasks)) as threads:
        for done in [threads.submit(task) for task in tasks]:
            done.result()


class FakeCuda(Device):
    """A "cuda" device in host memory; kernels are replaced by `compute`.

    Attributes
    ----------
    live, room : int
        Bytes that somebody holds, and that there are.
    uploads : int
        How many copies of more than 64 KiB there were.
    entered : int
        Blocks of `active` that are open.
    context : int
        Handle of the context that is current, for remembered calls.
    """

    kind = "cuda"
    multiprocessors = 4
    block_limit = 1024
    room = 1 << 40

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.memory: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.log: list[str] = []
        self.live = self.uploads = self.entered = 0
        self.was_damaged, self.context = False, 1

    def damaged(self) -> bool:
        """Whether anything was written to outside of its memory."""
        return self.was_damaged or any(memory.damaged() for memory in self.memory)

    def describe(self):
        return {
            "kind": "cuda",
            "name": f"fake {self.ordinal}",
            "pci_bus_id": f"0000:0{self.ordinal}:00.0",
            "memory_bytes": 2**30,
            "multiprocessors": self.multiprocessors,
            "block_limit": self.block_limit,
            "driver": "0.0",
            "toolkit": None,
            "library": None,
        }

    @contextlib.contextmanager
    def active(self):
        self.entered += 1
        try:
            yield self
        except DeviceError as error:
            error.device = error.device or self.name
            raise
        finally:
            self.entered -= 1

    def allocate(self, nbytes):
        if self.live + nbytes > self.room:
            raise DeviceMemoryError(f"no room for {nbytes} bytes")
        self.log.append("allocate")
        memory = Memory(nbytes, self)
        self.memory.add(memory)
        self.live += nbytes
        return memory.address, memory

    def new_array(self, shape, dtype):
        made = Array.empty(shape, dtype, self)
        return made, made.pointer

    def enqueue(self, direction, array, buffer, offset=0, stream=None):
        assert array.flags.c_contiguous
        self.log.append(direction)
        self.uploads += direction == "upload" and array.nbytes > 1 << 16
        ends = buffer + offset, array.ctypes.data
        ctypes.memmove(*(ends if direction == "upload" else ends[::-1]), array.nbytes)

    def fill(self, buffer, nbytes, offset=0, stream=None):
        ctypes.memset(buffer + offset, 0, nbytes)

    def copy(self, target, source, nbytes):
        self.log.append("copy")
        ctypes.memmove(target, source, nbytes)

    def context_handle(self):
        return self.context

    def new_stream(self):
        return object()

    def ring(self):
        """None: copies are complete at once."""

    def copy_from_peer(
        self, target, peer, source, nbytes, target_offset=0, source_offset=0, stream=None
    ):
        ctypes.memmove(target + target_offset, source + source_offset, nbytes)

    build = launch = raising(NotImplementedError("kernels are replaced by compute()"))

    def probe(self):
        """Believed as it is."""

    def passed(self, mark):
        return False

    def elapsed(self, start, end):
        return end - start

    def synchronize(self, stream=None):
        self.log.append("synchronize")

    def record(self, stream=None, event=None, timed=False):
        return time.perf_counter() if timed else object()

    def wait(self, event, stream=None):
        """All is done when it returns."""

    def pinned(self, nbytes, purpose=""):
        return np.empty(nbytes, np.uint8)


def compute(devices, problem, arguments) -> None:
    """What a kernel does: nothing but addresses, dimensions and the problem's strides."""
    devices[0].log.append("compute")
    inputs, output, _ = arguments
    size = np.dtype(problem.dtype).itemsize

    def matrix(address, rows, columns, strides):
        in_bytes = tuple(size * s for s in strides)
        return view(address, (problem.batch, rows, columns), problem.dtype, in_bytes)

    if problem.operation == "matmul":
        m, n, k = problem.dims
        a, b, c = problem.strides
        first, second = inputs
    else:
        (m, k), n = problem.dims, 1
        a, (x_batch, x_step), (y_batch, y_step) = problem.strides
        b, c = (x_batch, x_step, 0), (y_batch, y_step, 0)
        # The matrix comes second where one row is multiplied with a matrix.
        columns = problem.inputs[1].shape[1:][-1:] if problem.function == "matmul" else ()
        first, second = inputs if columns in ((), (1,)) else inputs[::-1]
    result = matrix(output, m, n, c)
    A, B = matrix(first, m, k, a), matrix(second, k, n, b)
    result[...] = np.einsum("bik,bkj->bij", A, B)


def convolve(devices, problem, arguments, taps=None) -> None:
    """What the kernels of a direct convolution do, with the taps given or the filter's own."""
    devices[0].log.append("compute")
    (address,), output, request = arguments
    w, size = problem.options, np.dtype(problem.dtype).itemsize
    strides = [size * s for s in problem.strides[0]]
    image = view(address, (problem.batch, w.height, w.width), problem.dtype, strides)
    below = w.out_height + w.filter_height - 1 - w.top - w.height
    right = w.out_width + w.filter_width - 1 - w.left - w.width
    pad = ((0, 0), (w.top, below), (w.left, right))
    if w.boundary == "fill":
        image = np.pad(image, pad, constant_values=request.fillvalue)
    else:
        image = np.pad(image, pad, {"wrap": "wrap", "symm": "symmetric"}[w.boundary])
    taps = request.downloaded(problem.dtype).taps if taps is None else taps
    windows = np.lib.stride_tricks.sliding_window_view(image, taps.shape, (1, 2))
    shape = (problem.batch, w.out_height, w.out_width)
    strides = [size * s for s in problem.strides[1]]
    view(output, shape, problem.dtype, strides)[...] = np.einsum("bijuv,uv->bij", windows, taps)


def prepare(device, problem, alignment, options):
    """What a remembered call launches, with the filter as it was when this was made, or what lies
    at its address."""
    assert device.entered  # for the context that it is launched in
    device.log.append(f"prepare {alignment}")
    taps, context = None, device.context
    if problem.operation == "convolve2d" and options.array is not None:
        taps = options.array[::-1, ::-1].copy()

    def launch(a, b, c):
        assert context == device.context, "what was prepared in another one"
        if problem.operation != "convolve2d":
            compute((device,), problem, ((a, b), c, options))
            return
        shape = problem.options.filter_height, problem.options.filter_width
        there = taps
        if there is None:
            there = view(b, shape, problem.dtype, options.operand.strides)[::-1, ::-1]
        convolve((device,), problem, ((a,), c, options), there)

    return launch


class Place:
    """What CuPy gives as ``array.device``."""

    current = 0

    def __init__(self, ordinal: int) -> None:
        self.id = ordinal

    def __enter__(self):
        self._outer, Place.current = Place.current, self.id
        return self

    def __exit__(self, *_):
        Place.current = self._outer


class Array:
    """A device array of no known library; `Cupy` below is the same under CuPy's name."""

    def __init__(self, memory, pointer, shape, dtype, strides, device, stream, readonly):
        self.memory, self.pointer = memory, pointer
        self.shape, self.dtype, self.strides = tuple(shape), np.dtype(dtype), tuple(strides)
        self.owner, self.stream, self.readonly = device, stream, readonly
        self.device = Place(device.ordinal)
        self.data = types.SimpleNamespace(ptr=pointer)

    @classmethod
    def empty(cls, shape, dtype, device):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        values = np.empty(shape, dtype)
        address, memory = device.allocate(max(values.nbytes, 1))
        return cls(memory, address, shape, dtype, values.strides, device, None, False)

    @classmethod
    def of(cls, host, device, stream=None, readonly=False):
        """A copy with the same strides, however odd they are."""
        strides, shape = host.strides, host.shape
        low, high = ends(shape, strides)
        address, memory = device.allocate(max(high - low, 0) + host.itemsize)
        made = cls(memory, address - low, shape, host.dtype, strides, device, stream, readonly)
        if host.size:
            made.view()[...] = host
        return made

    def view(self) -> np.ndarray:
        """The memory itself, as NumPy sees it."""
        return view(self.pointer, self.shape, self.dtype, self.strides)

    def get(self) -> np.ndarray:
        """A copy on the host."""
        return self.view().copy() if 0 not in self.shape else np.empty(self.shape, self.dtype)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, self.readonly),
            "strides": self.strides,
            "descr": [("", self.dtype.str)],  # as CuPy's have it
            "version": 3,
            "stream": self.stream,
        }


class Cupy(Array):
    """Taken for CuPy's ndarray: the library is told by the name of the type's module."""


Cupy.__module__ = "cupy"


def install(monkeypatch, count: int = 1) -> list[FakeCuda]:
    """Put fake devices cuda:0, ... in place of whatever CUDA devices there are."""
    fakes = [FakeCuda(ordinal) for ordinal in range(count)]
    others = {n: d for n, d in devices.available().items() if not n.startswith("cuda")}
    monkeypatch.setattr(devices, "found", {**{f.name: f for f in fakes}, **others})
    known = {n: health for n, health in devices.health.items() if n in others}
    monkeypatch.setattr(devices, "health", defaultdict(devices.Health, known))
    runs = {"matvec": compute, "matmul": compute, "convolve2d": convolve}

    def computed(row):
        is_whole = row.kind == "cuda" and not row.from_host
        if not is_whole:
            return row
        return dataclasses.replace(row, run=runs[row.operation], prepare=row.prepare and prepare)

    for operation in runs:
        change_rows(monkeypatch, operation, computed)

    def empty(shape, dtype):
        return Cupy.empty(shape, dtype, fakes[Place.current])

    pool = types.SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)
    cupy = types.SimpleNamespace(empty=empty, cuda=types.SimpleNamespace(Device=Place))
    cupy.get_default_memory_pool = lambda: pool
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    inventory.changed()
    return fakes


def remember(monkeypatch, device, ordered=lambda: True):
    """Let calls on `Cupy` arrays be remembered, where the default stream is ``ordered``."""
    access = Access(
        libraries.layouts,
        lambda array: array.pointer,
        lambda array: not array.readonly,
        lambda _: lambda shape, dtype, like: Cupy.empty(shape, dtype, device),
        ordered,
        lambda: device.context,
    )
    monkeypatch.setattr(libraries.CUPY, "access", lambda *_: access)
