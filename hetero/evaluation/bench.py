"""`hetero bench`: an operation by every method side by side, and by the libraries that are here.

And `hetero bench movement`: the speed of copies of each kind and size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import HOST
from hetero.calibration.measure import measure
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable, one_of
from hetero.evaluation import problems
from hetero.evaluation.comparing import compared, on_device
from hetero.evaluation.report import markdown
from hetero.host import pages
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Operation

SIZES = tuple(1 << n for n in (16, 20, 24, 28, 30))  # bytes of a copy
_SECONDS = 0.4  # for all samples of a copy
_LONGEST = 5.0  # predicted seconds of a candidate that is timed
_LONGEST_CALL = 0.5  # predicted seconds of a call on host operands, of sizes that nobody named
Say = Callable[[float, str], object]


def bench(
    operation: Operation,
    dtype: str | None = None,
    *,
    device: str | None = None,
    order: str = "C",
    cases: str | None = None,
    progress: Say | None = None,
) -> list[dict[str, Any]]:
    """Rows of `hetero.evaluation.comparing` for each size that is compared of an operation.

    Operands lie on the host, and on the first GPU; those of products on the ``device`` alone, which
    is "cpu" for the host, their first one in this ``order``. ``cases`` names sizes that others
    measured. A size for which there is no room, or no time, is left out.

    Raises
    ------
    ValueError
        If the operation has no cases of that name; the message names those that it has.
    """
    of, gpu = problems.of(operation), problems.cuda_device()
    options, sizes = {"order": order} if "order" in of.options else {}, of.sizes
    if cases is not None:
        if not of.cases:
            raise ValueError(f"--cases: there are none of {operation.function}, got {cases!r}")
        if cases not in of.cases:
            raise ValueError(one_of(f"--cases of {operation.function}", of.cases, cases))
        dtype, sizes = dtype or of.cases[cases].dtype, of.cases[cases].sizes
    places = [HOST, gpu]
    if "device" in of.options:
        if device not in (None, CPU):
            devices.get(device)  # or says which there are
        device = device or gpu or CPU
        places = [HOST if device == CPU else device]
    every = [(place, dims) for place in places if place for dims in sizes]
    rows, dtype = list[dict[str, Any]](), dtype or of.dtype
    for number, (place, dims) in enumerate(every):
        extents = "x".join(map(str, dims))
        case = f"{operation.function} {extents}, operands on {place}, {dtype}"
        if progress is not None:
            progress(number / len(every), case)
        problem = operation.from_dims(dims, dtype, HOST)
        nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
        if 8 * nbytes > inventory.devices()[CPU if place == HOST else place]["memory_bytes"]:
            continue
        if place == HOST and cases is None:
            predicted = planner.plan(problem, CPU if device == CPU else None).seconds
            if predicted is not None and predicted > _LONGEST_CALL:
                continue
        trial = of.trial(dims, dtype, **options)
        if place == HOST:
            row = compared(operation, trial, case, longest=_LONGEST)[0]
        elif all(isinstance(x, (np.ndarray, int)) for x in trial.operands):
            row = on_device(operation, trial, case, devices.get(place), longest=_LONGEST)
        else:
            continue
        if set(row["seconds"]) - set(row["peers"]):
            rows.append(row)
    return rows


# -- Movement --------------------------------------------------------------------------------------


def movement(
    *,
    device: str | None = None,
    sizes: tuple[int, ...] = SIZES,
    progress: Say | None = None,
) -> dict[str, Any]:
    """Speed of copies of ``sizes`` bytes, for which there is room.

    Gives device; copies: for each size bytes and the bytes per second of each kind of copy.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or no GPU and none was named.
    """
    where, copies = place(device), []
    room = int(where.describe()["memory_bytes"]) // 4
    for number, nbytes in enumerate(size for size in sizes if size <= room):
        if progress is not None:
            progress(number / len(sizes), f"copies of {nbytes} bytes")
        copies.append({"bytes": nbytes, **speeds(where, nbytes)})
    return {"device": where.name, "copies": copies}


def place(device: str | None) -> Device:
    """The device that is named, else the first GPU; DeviceNotAvailable says what is missing."""
    name = device or problems.cuda_device()
    if name is not None:
        return devices.get(name)
    others = ", ".join(devices.proven())
    ask = f"; --device takes {others}" if others else ""
    raise DeviceNotAvailable(f"no GPU is here: {'; '.join(devices.missing())}{ask}")


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
        }
        found = {}
        for name, copy in ways.items():
            moved = nbytes * (2 if name.startswith("both") else 1)
            found[name] = moved / measure(copy, budget=_SECONDS)
    return found


def text(found: Mapping[str, Any]) -> str:
    """What `movement` gives, in Markdown."""
    kinds = [name for name in found["copies"][0] if name != "bytes"]
    sizes = [f"{row['bytes'] >> 10} KiB" for row in found["copies"]]
    cells = [[kind, *(f"{row[kind] / 1e9:.1f}" for row in found["copies"])] for kind in kinds]
    head = f"copies between the host and {found['device']}, in GB/s\n"
    return "\n".join([head, *markdown(("", *sizes), cells)])
