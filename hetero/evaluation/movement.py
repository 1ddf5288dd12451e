"""`hetero bench movement`: copies between host and device, and calls on host operands beside CuPy.

Three tables: the speed of copies of each kind and size; what a product of NumPy's loses while
another thread copies; whole calls from host operands to a host result, as operations name them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from hetero import devices, registry
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable
from hetero.evaluation import bench, left_out
from hetero.host import pages
from hetero.ops import benchmark

SIZES = tuple(1 << n for n in (16, 20, 24, 28, 30))  # bytes
_LEAST, _MOST, _SECONDS = 3, 15, 0.4  # samples of a copy, and seconds for all of them
_PRODUCT = 2048  # rows and columns of the product beside copies
_PRODUCTS = 12


def movement(
    dtype: str | None = None,
    *,
    device: str | None = None,
    sizes: tuple[int, ...] = SIZES,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Speed of copies, and seconds of calls on host operands.

    Parameters
    ----------
    dtype : str, optional
        Of the calls. Default: each operation's own choice.
    device : str, optional
        Default: the first GPU.
    sizes : tuple of int
        Bytes of a copy. What the device has no room for is left out.
    progress : callable, optional
        As in `hetero.calibrate`.

    Returns
    -------
    dict
        device; copies: a dict for each size, with bytes and the bytes per second of each kind of
        copy; beside: seconds of a product of NumPy's alone, and while another thread copies;
        calls: rows as `hetero.evaluation.bench.bench` gives them.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or no GPU and none was named.
    """
    where = place(device)
    say = progress or (lambda share, text: None)
    room = int(where.describe()["memory_bytes"]) // 4
    copies = []
    for number, nbytes in enumerate(size for size in sizes if size <= room):
        say(0.3 * number / len(sizes), f"copies of {nbytes} bytes")
        copies.append({"bytes": nbytes, **speeds(where, nbytes)})
    say(0.3, "a product beside copies")
    beside = product_beside_copies(where, min(copies[-1]["bytes"], SIZES[-2]))
    rows, failed = [], dict[str, str]()
    cases = [case for o in registry.operations() for case in _moved(o, dtype)]
    for number, case in enumerate(cases):
        say(0.35 + 0.65 * number / len(cases), case.case)
        row = bench.row(case, None, failed)
        if row["seconds"]:
            rows.append(row)
    left_out.warn(failed)
    return {"device": where.name, "copies": copies, "beside": beside, "calls": rows}


def place(device: str | None) -> Device:
    """The device that is named, else the first GPU.

    Raises
    ------
    DeviceNotAvailable
        If there is none, which says what is missing.
    """
    name = device or benchmark.cuda_device()
    if name is not None:
        return devices.get(name)
    others = ", ".join(devices.proven())
    ask = f"; --device takes {others}" if others else ""
    raise DeviceNotAvailable(f"no GPU is here: {'; '.join(devices.missing())}{ask}")


def _moved(operation: registry.Operation, dtype: str | None) -> Iterator[benchmark.Benchmark]:
    moved = benchmark.of(operation, "moved")
    if moved is not None:
        yield from moved(dtype or benchmark.of(operation, "DTYPE", benchmark.DTYPE))


def speeds(device: Device, nbytes: int) -> dict[str, float]:
    """Bytes per second of each kind of copy, of both directions together where both go at once."""
    with device.active():
        (there, _one), (other, _two) = device.allocate(nbytes), device.allocate(nbytes)
        ordinary = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
        given, shape = np.ones(nbytes, np.uint8), (nbytes,)
        pinned, second = device.pinned(nbytes), device.pinned(nbytes)
        pinned[:], second[:] = ordinary, 1

        def both() -> None:
            down = device.begin_download(other, second)
            device.begin_upload(pinned, there).wait()
            down.wait()

        ways: dict[str, Callable[[], object]] = {
            "upload": lambda: device.upload(ordinary, there),
            "upload, pinned": lambda: device.upload(pinned, there),
            "download, new array": lambda: device.download(there, pages.empty(shape, np.uint8)),
            "download, fresh pages": lambda: device.download(there, np.empty(nbytes, np.uint8)),
            "download, given array": lambda: device.download(there, given),
            "download, pinned": lambda: device.download(there, pinned),
            "both at once, pinned": both,
            **_by_cupy(device, ordinary),
        }
        found = {}
        for name, copy in ways.items():
            moved = nbytes * (2 if name.startswith("both") else 1)
            found[name] = moved / _typical(copy)
    return found


def _by_cupy(device: Device, values: np.ndarray) -> dict[str, Callable[[], object]]:
    if not device.traits.cuda_libraries:
        return {}
    try:
        import cupy

        with cupy.cuda.Device(int(device.name.partition(":")[2])):
            there = cupy.asarray(values)
            cupy.cuda.Device().synchronize()
    except Exception:  # not installed, not working here, or no room
        return {}

    def up() -> None:
        cupy.asarray(values)
        cupy.cuda.Device().synchronize()

    return {"CuPy asarray": up, "CuPy asnumpy": lambda: cupy.asnumpy(there)}


def _typical(call: Callable[[], object]) -> float:
    """Seconds of a call, which was made once before."""
    call()
    samples: list[float] = []
    while len(samples) < _LEAST or (len(samples) < _MOST and sum(samples) < _SECONDS):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return median(samples)


def product_beside_copies(device: Device, nbytes: int) -> dict[str, float]:
    """Seconds of a product of NumPy's: alone, and while another thread uploads and downloads."""
    A = np.random.default_rng(1).random((_PRODUCT, _PRODUCT), np.float32)
    values, ended = np.ones(nbytes, np.uint8), threading.Event()
    begun = threading.Event()

    def move() -> None:
        with device.active():
            there, _owner = device.allocate(nbytes)
            while not ended.is_set():
                device.upload(values, there)
                begun.set()
                device.download(there, values)

    alone = median(_times(A))
    thread = threading.Thread(target=move, name="hetero-beside")
    thread.start()
    try:
        begun.wait(10.0)
        beside = median(_times(A))
    finally:
        ended.set()
        thread.join()
    return {"alone": alone, "beside copies": beside}


def _times(A: np.ndarray) -> Iterator[float]:
    _ = A @ A
    for _ in range(_PRODUCTS):
        start = time.perf_counter()
        _ = A @ A
        yield time.perf_counter() - start
